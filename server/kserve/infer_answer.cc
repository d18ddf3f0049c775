// server/kserve/infer_answer.cc -- see infer_answer.h.
#include "server/kserve/infer_answer.h"

#include <cstring>
#include <utility>

#include "base/json.h"

namespace quire {
namespace {

void Put32(uint32_t v, std::string& out) {
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(v >> shift & 0xff);
}

void PutBytes(const std::string& text, std::string& out) {
  Put32(static_cast<uint32_t>(text.size()), out);
  out += text;
}

void PutFloat(float v, std::string& out) {
  uint32_t bits = 0;
  std::memcpy(&bits, &v, sizeof(bits));
  Put32(bits, out);
}

// {"<id>": {"logprob": ..., "rank": ..., "decoded_token": ...}, ...}, as vLLM's objects print.
void PutLogprobs(const Sampled& sampled, const Tokenizer& tokenizer, std::string& out) {
  JsonWriter w;
  const auto put = [&](TokenId id, float logprob, int64_t rank) {
    w.Key(std::to_string(id));
    w.BeginObject();
    w.Key("logprob");
    w.Double(logprob);
    w.Key("rank");
    w.Int(rank);
    w.Key("decoded_token");
    w.String(tokenizer.TokenBytes(id));
    w.EndObject();
  };
  w.BeginObject();
  put(sampled.token, sampled.logprob, sampled.rank);
  for (size_t i = 0; i < sampled.top.size(); ++i) {
    if (sampled.top[i].token == sampled.token) continue;
    put(sampled.top[i].token, sampled.top[i].logprob, static_cast<int64_t>(i) + 1);
  }
  w.EndObject();
  if (!out.empty()) out += ", ";
  out += w.text();
}

}  // namespace

void KserveAnswer::Begin(const Generation& generation) {
  num_input_tokens_ = static_cast<uint32_t>(generation.request->prompt.size());
  outputs_.resize(static_cast<size_t>(generation.num_outputs()));
  if (options_.echo_prompt) {
    for (Output& output : outputs_) output.text = text_;
  }
}

void KserveAnswer::Append(const Delta& delta, Output& out) {
  out.text += delta.text;
  out.num_tokens += static_cast<uint32_t>(delta.token_ids.size());
  for (const Sampled& sampled : delta.logprobs) {
    out.cumulative_logprob += sampled.logprob;
    if (options_.logprobs) PutLogprobs(sampled, *model_.tokenizer, out.logprobs);
  }
}

std::optional<inference::ModelInferResponse> KserveAnswer::Add(const Delta& delta) {
  Output& output = outputs_[static_cast<size_t>(delta.branch)];
  if (!options_.stream) {
    Append(delta, output);
    return std::nullopt;
  }
  output.text.clear();
  output.logprobs.clear();
  output.num_tokens = 0;
  Append(delta, output);
  has_sent_ = true;
  return Respond(/*is_final=*/false);
}

void KserveAnswer::End(const BranchEnd& end) {
  Output& output = outputs_[static_cast<size_t>(end.branch)];
  output.finish_reason = end.reason == FinishReason::kLength ? "length" : "stop";
}

std::optional<inference::ModelInferResponse> KserveAnswer::Finish() {
  if (!options_.stream) return Respond(/*is_final=*/true);
  Output& output = outputs_.front();
  output.text.clear();
  output.logprobs.clear();
  output.num_tokens = 0;
  // The last delta came before it was known to be the last.
  if (!has_sent_ || options_.finish_reason) return Respond(/*is_final=*/true);
  if (!options_.final_response) return std::nullopt;
  inference::ModelInferResponse empty;
  empty.set_model_name(model_.name);
  empty.set_model_version(kKserveModelVersion);
  empty.set_id(options_.id);
  (*empty.mutable_parameters())["triton_final_response"].set_bool_param(true);
  return empty;
}

inference::ModelInferResponse KserveAnswer::Respond(bool is_final) const {
  inference::ModelInferResponse response;
  response.set_model_name(model_.name);
  response.set_model_version(kKserveModelVersion);
  response.set_id(options_.id);
  if (options_.final_response) {
    (*response.mutable_parameters())["triton_final_response"].set_bool_param(is_final);
  }
  const auto add = [&](const char* name, const char* datatype, size_t elements) -> std::string& {
    auto& tensor = *response.add_outputs();
    tensor.set_name(name);
    tensor.set_datatype(datatype);
    tensor.add_shape(static_cast<int64_t>(elements));
    return *response.add_raw_output_contents();
  };
  const auto add_all = [&](bool wanted, const char* name, const char* datatype, auto&& put) {
    if (!wanted) return;
    std::string& raw = add(name, datatype, outputs_.size());
    for (const Output& output : outputs_) put(output, raw);
  };
  add_all(options_.text, "text_output", "BYTES",
          [](const Output& o, std::string& raw) { PutBytes(o.text, raw); });
  add_all(options_.finish_reason, "finish_reason", "BYTES",
          [](const Output& o, std::string& raw) { PutBytes(o.finish_reason, raw); });
  add_all(options_.cumulative_logprob, "cumulative_logprob", "FP32",
          [](const Output& o, std::string& raw) {
            PutFloat(static_cast<float>(o.cumulative_logprob), raw);
          });
  add_all(options_.logprobs, "logprobs", "BYTES", [](const Output& o, std::string& raw) {
    PutBytes(fmt::format("[{}]", o.logprobs), raw);
  });
  if (options_.num_input_tokens) Put32(num_input_tokens_, add("num_input_tokens", "UINT32", 1));
  add_all(options_.num_output_tokens, "num_output_tokens", "UINT32",
          [](const Output& o, std::string& raw) { Put32(o.num_tokens, raw); });
  return response;
}

}  // namespace quire
