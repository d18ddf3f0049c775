#include "server/openai/sampling_fields.h"

#include <absl/strings/numbers.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <limits>

#include "tokenizer/tokenizer.h"

namespace quire {
namespace {

using google::protobuf::FieldDescriptor;

constexpr size_t kMaxBadWords = 1024;
constexpr int32_t kMaxPriority = 1000;  // as of requests

// Numbers that have the same name and meaning in the proto: temperature, top_p, top_k ...
void ReadSameNames(Fields& fields, google::protobuf::Message& message) {
  const auto* const descriptor = message.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* const field = descriptor->field(i);
    if (field->is_repeated() || !field->has_presence()) continue;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) {
      if (const auto value = fields.Number(field->name())) {
        message.GetReflection()->SetFloat(&message, field, static_cast<float>(*value));
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
      if (const auto value = fields.Int(field->name())) {
        message.GetReflection()->SetInt32(&message, field, *value);
      }
    }
  }
}

void ReadLogitBias(Fields& fields, pb::SamplingParams& out) {
  const auto bias = fields.Object("logit_bias");
  if (!bias) return;
  bias->json().ForEach([&](std::string_view key, const Json& value) {
    int32_t id = 0;
    const std::string text(key);
    const auto number = value.as_double();
    if (!absl::SimpleAtoi(text, &id) || !number) {
      fields.Fail(
          InvalidArgument("logit_bias.{}={} is not a token id with a number", text, Shown(value)));
      return;
    }
    (*out.mutable_logit_bias())[id] = static_cast<float>(*number);
  });
}

// As text in the middle of an answer and at its beginning: most tokenizers spell these differently.
void ReadBadWords(Fields& fields, const ServedModel& model, pb::SamplingParams& out) {
  const std::vector<std::string> words = fields.Strings("bad_words");
  if (words.size() > kMaxBadWords) {
    fields.Fail(
        InvalidArgument("bad_words has {} entries, limit is {}", words.size(), kMaxBadWords));
    return;
  }
  for (const std::string& word : words) {
    std::vector<TokenId> plain;
    for (const bool spaced : {false, true}) {
      const absl::StatusOr<std::vector<TokenId>> ids =
          model.tokenizer->Encode(spaced ? " " + word : word, /*add_special_tokens=*/false);
      if (!ids.ok()) return fields.Fail(Annotate(ids.status(), "bad_words"));
      if (ids->empty()) {
        return fields.Fail(InvalidArgument("bad_words has an empty string; leave it out"));
      }
      if (spaced && *ids == plain) continue;
      out.add_bad_words()->mutable_ids()->Add(ids->begin(), ids->end());
      plain = *ids;
    }
  }
}

void ReadStopping(Fields& fields, pb::StoppingOptions& out) {
  for (std::string& stop : fields.Strings("stop")) out.add_stop(std::move(stop));
  ToTokenIds(fields, "stop_token_ids", fields.Ints("stop_token_ids"), out.mutable_stop_token_ids());
  if (const auto value = fields.Int("min_tokens")) out.set_min_tokens(*value);
  if (const auto value = fields.Bool("ignore_eos")) out.set_ignore_eos(*value);
  if (const auto value = fields.Bool("include_stop_str_in_output")) {
    out.set_include_stop_in_output(*value);
  }
}

// n is the number of beams as in vLLM; best_of makes the search wider than what is returned.
void ReadBeam(Fields& fields, pb::GenerateRequest& out) {
  const bool beam = fields.Bool("use_beam_search").value_or(false);
  if (!beam) {
    if (fields.Number("length_penalty").value_or(1.0) != 1.0) {
      fields.Refuse("length_penalty", "needs use_beam_search=true; set it or leave this out");
    }
    if (fields.json()["early_stopping"].as_bool() != false) {
      fields.Refuse("early_stopping", "needs use_beam_search=true; set it or leave this out");
    }
    return;
  }
  pb::SamplingParams& sampling = *out.mutable_sampling();
  const int32_t n = sampling.has_n() ? sampling.n() : 1;
  out.mutable_beam()->set_num_return_sequences(n);
  out.mutable_beam()->set_beam_width(sampling.has_best_of() ? sampling.best_of() : n);
  if (const auto value = fields.Number("length_penalty")) {
    out.mutable_beam()->set_length_penalty(static_cast<float>(*value));
  }
  const Json early = fields.json()["early_stopping"];
  if (early.as_string() == "never") {
    out.mutable_beam()->set_early_stopping(pb::EARLY_STOPPING_NEVER);
  } else if (const auto first = early.as_bool()) {
    out.mutable_beam()->set_early_stopping(*first ? pb::EARLY_STOPPING_FIRST
                                                  : pb::EARLY_STOPPING_HEURISTIC);
  } else {
    fields.Refuse("early_stopping", "is not true, false or \"never\"");
  }
  sampling.clear_n();
  sampling.clear_best_of();
  sampling.clear_seed();  // nothing is drawn
}

void ReadScheduling(Fields& fields, pb::GenerateRequest& out) {
  // vLLM's direction: the lowest first.
  if (const auto value = fields.Int("priority")) {
    if (*value < -kMaxPriority || *value > kMaxPriority) {
      return fields.Refuse("priority", fmt::format("is outside [-{}, {}]; the default is 0",
                                                   kMaxPriority, kMaxPriority));
    }
    if (*value != 0) out.mutable_scheduling()->set_priority(-*value);
  }
  if (const auto salt = fields.String("cache_salt")) {
    if (salt->empty()) {
      return fields.Refuse("cache_salt", "must not be empty; leave it out");
    }
    out.mutable_kv()->set_cache_salt(*salt);
  }
}

void ReadTruncation(Fields& fields, pb::GenerateRequest& out) {
  if (const auto keep = fields.Int("truncate_prompt_tokens")) {
    out.set_truncate_prompt_tokens(*keep);
  }
  const auto side = fields.String("truncation_side");
  if (!side) return;
  if (*side != "left" && *side != "right") {
    return fields.Refuse("truncation_side", "is neither \"left\" nor \"right\"");
  }
  // Which end doesn't matter where nothing is cut.
  if (!out.has_truncate_prompt_tokens()) return;
  out.set_truncation_side(*side == "left" ? pb::TRUNCATION_SIDE_LEFT : pb::TRUNCATION_SIDE_RIGHT);
}

// Known to clients, not offered here.
void RefuseOthers(Fields& fields) {
  constexpr std::string_view kNotOffered = "is not offered here; leave it out";
  for (const char* name : {"thinking_token_budget", "repetition_detection", "kv_transfer_params",
                           "vllm_xargs", "logits_processors", "prompt_embeds"}) {
    fields.Refuse(name, kNotOffered);
  }
  if (fields.Bool("spaces_between_special_tokens") == false) {
    fields.Refuse("spaces_between_special_tokens", kNotOffered);
  }
  if (fields.Int("stream_interval").value_or(1) != 1) {
    fields.Refuse("stream_interval", "is not 1: each step of the model is told at once");
  }
}

}  // namespace

bool ToTokenIds(Fields& fields, std::string_view name, const std::vector<int64_t>& numbers,
                google::protobuf::RepeatedField<uint32_t>* out) {
  out->Reserve(static_cast<int>(numbers.size()));
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] < 0 || numbers[i] > std::numeric_limits<int32_t>::max()) {
      fields.Fail(InvalidArgument("{}[{}]={} is no token id", name, i, numbers[i]));
      return false;
    }
    out->Add(static_cast<uint32_t>(numbers[i]));
  }
  return true;
}

void ReadSamplingFields(Fields& fields, const ServedModel& model, pb::GenerateRequest& out) {
  if (const auto name = fields.String("model")) out.set_model(*name);
  pb::SamplingParams& sampling = *out.mutable_sampling();
  ReadSameNames(fields, sampling);
  // -1 is vLLM's way to say none.
  if (const auto seed = fields.Int64("seed"); seed && *seed != -1) {
    sampling.set_seed(static_cast<uint64_t>(*seed));
  }
  ReadLogitBias(fields, sampling);
  ToTokenIds(fields, "allowed_token_ids", fields.Ints("allowed_token_ids"),
             sampling.mutable_allowed_token_ids());
  ToTokenIds(fields, "logprob_token_ids", fields.Ints("logprob_token_ids"),
             sampling.mutable_logprob_token_ids());
  ReadBadWords(fields, model, sampling);
  ReadStopping(fields, *out.mutable_stopping());
  ReadBeam(fields, out);
  ReadScheduling(fields, out);
  ReadTruncation(fields, out);
  if (const auto value = fields.Bool("skip_special_tokens")) {
    out.mutable_response()->set_skip_special_tokens(*value);
  }
  if (const auto value = fields.Int("prompt_logprobs")) {
    out.mutable_response()->set_prompt_logprobs(*value);
  }
  out.mutable_response()->set_token_ids(true);  // they are counted
  RefuseOthers(fields);
}

}  // namespace quire
