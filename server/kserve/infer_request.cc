// server/kserve/infer_request.cc -- see infer_request.h. The JSON in sampling_parameters:
// sampling_json.cc.
#include "server/kserve/infer_request.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "server/kserve/sampling_json.h"

namespace quire {
namespace {

constexpr size_t kMaxNameBytes = 64;  // of what errors repeat

// As in Triton's README of the vLLM backend.
constexpr int64_t kOneElement = 1;

std::string Shown(const std::string& name) { return name.substr(0, kMaxNameBytes); }

const KserveTensor* FindTensor(const std::vector<KserveTensor>& tensors, const std::string& name) {
  for (const KserveTensor& tensor : tensors) {
    if (name == tensor.name) return &tensor;
  }
  return nullptr;
}

std::string NamesOf(const std::vector<KserveTensor>& tensors) {
  std::string names;
  for (const KserveTensor& tensor : tensors) {
    names += names.empty() ? "" : ", ";
    names += tensor.name;
  }
  return names;
}

// The one element of each input: a string, or a bool as one byte.
using Values = std::map<std::string, std::string>;

absl::StatusOr<std::string> RawValue(const std::string& name, bool is_bytes,
                                     const std::string& raw) {
  if (!is_bytes) {
    if (raw.size() == 1) return raw;
    return InvalidArgument("input {} has {} bytes, must have 1 (BOOL)", name, raw.size());
  }
  if (raw.size() < 4) {
    return InvalidArgument("input {} has {} bytes, must have at least 4 for the length", name,
                           raw.size());
  }
  uint32_t length = 0;
  for (int i = 3; i >= 0; --i) {
    length = length << 8 | static_cast<uint8_t>(raw[static_cast<size_t>(i)]);
  }
  if (length != raw.size() - 4) {
    return InvalidArgument("input {} says that its string has {} bytes, but {} follow", name,
                           length, raw.size() - 4);
  }
  return raw.substr(4);
}

absl::StatusOr<std::string> ContentsValue(const std::string& name, bool is_bytes,
                                          const inference::InferTensorContents& contents) {
  const int count = is_bytes ? contents.bytes_contents_size() : contents.bool_contents_size();
  if (count != 1) {
    return InvalidArgument("input {} has {} elements in contents.{}, must have 1", name, count,
                           is_bytes ? "bytes_contents" : "bool_contents");
  }
  if (is_bytes) return contents.bytes_contents(0);
  return std::string(1, contents.bool_contents(0) ? '\1' : '\0');
}

absl::Status CheckInput(const inference::ModelInferRequest::InferInputTensor& input,
                        const KserveTensor& tensor) {
  if (input.datatype() != tensor.datatype) {
    return InvalidArgument("input {} has datatype={}, must be {}", tensor.name,
                           Shown(input.datatype()), tensor.datatype);
  }
  if (!input.parameters().empty()) {
    return InvalidArgument("input {} has parameter {}; shared memory and the like are not served",
                           tensor.name, Shown(input.parameters().begin()->first));
  }
  for (const int64_t extent : input.shape()) {
    if (extent != kOneElement) {
      return InvalidArgument(
          "input {} has an extent of {} in its shape, must be [1]; send several "
          "requests",
          tensor.name, extent);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Values> ReadInputs(const inference::ModelInferRequest& r) {
  const bool is_raw = !r.raw_input_contents().empty();
  if (is_raw && r.raw_input_contents_size() != r.inputs_size()) {
    return InvalidArgument("raw_input_contents has {} entries, inputs has {}",
                           r.raw_input_contents_size(), r.inputs_size());
  }
  Values values;
  for (int i = 0; i < r.inputs_size(); ++i) {
    const auto& input = r.inputs(i);
    const KserveTensor* const tensor = FindTensor(kKserveInputs, input.name());
    if (tensor == nullptr) {
      return InvalidArgument("input {} is not known; known are {}", Shown(input.name()),
                             NamesOf(kKserveInputs));
    }
    RETURN_IF_ERROR(CheckInput(input, *tensor));
    const bool is_bytes = std::string_view(tensor->datatype) == "BYTES";
    ASSIGN_OR_RETURN(std::string value,
                     is_raw ? RawValue(tensor->name, is_bytes, r.raw_input_contents(i))
                            : ContentsValue(tensor->name, is_bytes, input.contents()));
    if (!values.emplace(tensor->name, std::move(value)).second) {
      return InvalidArgument("input {} is given twice", tensor->name);
    }
  }
  return values;
}

bool Flag(const Values& values, const char* name, bool otherwise) {
  const auto it = values.find(name);
  return it == values.end() ? otherwise : it->second[0] != '\0';
}

std::optional<int64_t> IntOf(const inference::InferParameter& p) {
  if (p.has_int64_param()) return p.int64_param();
  if (p.has_uint64_param() && p.uint64_param() <= static_cast<uint64_t>(INT64_MAX)) {
    return static_cast<int64_t>(p.uint64_param());
  }
  return std::nullopt;
}

absl::Status ReadParameters(const inference::ModelInferRequest& r, KserveRequest& out) {
  for (const auto& [name, value] : r.parameters()) {
    if (name == "triton_enable_empty_final_response") {
      if (!value.has_bool_param()) return InvalidArgument("parameter {} must be a bool", name);
      out.options.final_response = value.bool_param();
    } else if (name == "priority") {
      // Lower is sooner there, 0 the default.
      const std::optional<int64_t> level = IntOf(value);
      if (!level || *level < 0 || *level > INT32_MAX) {
        return InvalidArgument("parameter priority must be a whole number from 0 on");
      }
      if (*level > 0) {
        out.request.mutable_scheduling()->set_priority(static_cast<int32_t>(-*level));
      }
    } else if (name == "timeout") {
      const std::optional<int64_t> us = IntOf(value);
      if (!us || *us < 0) return InvalidArgument("parameter timeout must be microseconds");
      if (*us > 0) out.request.mutable_scheduling()->set_queue_timeout_ms((*us + 999) / 1000);
    } else {
      return InvalidArgument(
          "parameter {} is not known; known are triton_enable_empty_final_response, priority and "
          "timeout",
          Shown(name));
    }
  }
  return absl::OkStatus();
}

// Who names outputs gets these and no others, whatever the return_... inputs say.
absl::Status ReadOutputs(const inference::ModelInferRequest& r, KserveOptions& options) {
  std::set<std::string> names;
  for (const auto& output : r.outputs()) {
    if (FindTensor(kKserveOutputs, output.name()) == nullptr) {
      return InvalidArgument("output {} is not known; known are {}", Shown(output.name()),
                             NamesOf(kKserveOutputs));
    }
    if (!output.parameters().empty()) {
      return InvalidArgument(
          "output {} has parameter {}; shared memory and the like are not served", output.name(),
          Shown(output.parameters().begin()->first));
    }
    names.insert(output.name());
  }
  if (names.empty()) return absl::OkStatus();
  const auto wants = [&names](const char* name) { return names.count(name) > 0; };
  options.text = wants("text_output");
  options.finish_reason = wants("finish_reason");
  options.cumulative_logprob = wants("cumulative_logprob");
  options.logprobs = wants("logprobs");
  options.num_input_tokens = wants("num_input_tokens");
  options.num_output_tokens = wants("num_output_tokens");
  return absl::OkStatus();
}

}  // namespace

const std::vector<KserveTensor> kKserveInputs = {{"text_input", "BYTES", 1},
                                                 {"stream", "BOOL", 1},
                                                 {"sampling_parameters", "BYTES", 1},
                                                 {"exclude_input_in_output", "BOOL", 1},
                                                 {"return_finish_reason", "BOOL", 1},
                                                 {"return_cumulative_logprob", "BOOL", 1},
                                                 {"return_logprobs", "BOOL", 1},
                                                 {"return_num_input_tokens", "BOOL", 1},
                                                 {"return_num_output_tokens", "BOOL", 1}};
const std::vector<KserveTensor> kKserveOutputs = {
    {"text_output", "BYTES", -1},       {"finish_reason", "BYTES", -1},
    {"cumulative_logprob", "FP32", -1}, {"logprobs", "BYTES", -1},
    {"num_input_tokens", "UINT32", 1},  {"num_output_tokens", "UINT32", -1}};

absl::Status CheckKserveModel(const std::string& name, const std::string& version,
                              const ServedModel& model) {
  if (!name.empty() && name != model.name) {
    return Error(absl::StatusCode::kNotFound, "model_name={} is not served here; {} is",
                 Shown(name), model.name);
  }
  if (!version.empty() && version != kKserveModelVersion) {
    return Error(absl::StatusCode::kNotFound, "model_version={} is not served here; {} is",
                 Shown(version), kKserveModelVersion);
  }
  return absl::OkStatus();
}

absl::StatusOr<KserveRequest> FromKserve(const inference::ModelInferRequest& r,
                                         const ServedModel& model) {
  RETURN_IF_ERROR(CheckKserveModel(r.model_name(), r.model_version(), model));
  KserveRequest out;
  ASSIGN_OR_RETURN(const Values values, ReadInputs(r));
  RETURN_IF_ERROR(ReadParameters(r, out));
  const auto text = values.find("text_input");
  if (text == values.end()) return InvalidArgument("input text_input is missing; give the prompt");
  out.text = text->second;
  out.request.set_text(out.text);

  KserveOptions& options = out.options;
  options.id = r.id();
  options.stream = Flag(values, "stream", false);
  if (options.stream && !Flag(values, "exclude_input_in_output", true)) {
    return InvalidArgument("exclude_input_in_output=false can't be had with stream=true");
  }
  options.echo_prompt = !options.stream && !Flag(values, "exclude_input_in_output", false);
  options.finish_reason = Flag(values, "return_finish_reason", false);
  options.cumulative_logprob = Flag(values, "return_cumulative_logprob", false);
  options.logprobs = Flag(values, "return_logprobs", false);
  options.num_input_tokens = Flag(values, "return_num_input_tokens", false);
  options.num_output_tokens = Flag(values, "return_num_output_tokens", false);
  RETURN_IF_ERROR(ReadOutputs(r, options));

  const auto json = values.find("sampling_parameters");
  RETURN_IF_ERROR(ReadSamplingJson(json == values.end() ? "{}" : json->second, out.request));
  if (options.stream && out.request.sampling().n() > 1) {
    return InvalidArgument(
        "sampling_parameters.n={} can't be had with stream=true, which doesn't say whose text a "
        "response holds; leave stream out",
        out.request.sampling().n());
  }
  // Of the sampled token at least, for what is made of it.
  if ((options.logprobs || options.cumulative_logprob) &&
      !out.request.response().has_num_logprobs()) {
    out.request.mutable_response()->set_num_logprobs(0);
  }
  out.request.mutable_response()->set_token_ids(options.num_output_tokens);
  return out;
}

}  // namespace quire
