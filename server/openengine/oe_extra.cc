// server/openengine/oe_extra.cc -- see oe_extra.h. Names of beam search are TensorRT-LLM's.
#include "server/openengine/oe_extra.h"

#include <cmath>
#include <cstdint>

#include "server/retention.h"

namespace quire {
namespace {

using google::protobuf::Value;

const Value* Find(const google::protobuf::Struct& extra, const char* key) {
  const auto it = extra.fields().find(key);
  return it == extra.fields().end() ? nullptr : &it->second;
}

absl::Status ReadNumber(const char* key, const Value& value, double& out) {
  if (!value.has_number_value()) return InvalidArgument("extra.{} is not a number", key);
  out = value.number_value();
  return absl::OkStatus();
}

absl::Status ReadInt(const char* key, const Value& value, int32_t& out) {
  double number = 0;
  RETURN_IF_ERROR(ReadNumber(key, value, number));
  if (!(std::abs(number) <= INT32_MAX) || number != std::floor(number)) {
    return InvalidArgument("extra.{}={} is not a whole number of 32 bits", key, number);
  }
  out = static_cast<int32_t>(number);
  return absl::OkStatus();
}

// 1 or true: as soon as there are enough; 0 or false: by the present best; other numbers: never.
absl::Status ReadEarlyStopping(const Value& value, pb::BeamParams& beam) {
  pb::EarlyStopping rule = pb::EARLY_STOPPING_UNSPECIFIED;
  if (value.has_bool_value()) {
    rule = value.bool_value() ? pb::EARLY_STOPPING_FIRST : pb::EARLY_STOPPING_HEURISTIC;
  } else if (value.has_number_value()) {
    rule = value.number_value() == 1   ? pb::EARLY_STOPPING_FIRST
           : value.number_value() == 0 ? pb::EARLY_STOPPING_HEURISTIC
                                       : pb::EARLY_STOPPING_NEVER;
  } else if (value.string_value() == "never") {
    rule = pb::EARLY_STOPPING_NEVER;
  } else if (value.string_value() == "first") {
    rule = pb::EARLY_STOPPING_FIRST;
  } else if (value.string_value() == "heuristic") {
    rule = pb::EARLY_STOPPING_HEURISTIC;
  } else {
    return InvalidArgument("extra.early_stopping is not a bool, a number or never|first|heuristic");
  }
  beam.set_early_stopping(rule);
  return absl::OkStatus();
}

absl::Status ReadBeam(const google::protobuf::Struct& extra, pb::GenerateRequest& r) {
  const Value* const width = Find(extra, "beam_width");
  if (width == nullptr) {
    for (const char* key : {"length_penalty", "early_stopping", "beam_search_diversity_rate"}) {
      if (Find(extra, key) != nullptr) return InvalidArgument("extra.{} needs beam_width", key);
    }
    return absl::OkStatus();
  }
  pb::BeamParams& beam = *r.mutable_beam();
  int32_t beam_width = 0;
  RETURN_IF_ERROR(ReadInt("beam_width", *width, beam_width));
  beam.set_beam_width(beam_width);
  // All beams are returned unless fewer are asked for.
  beam.set_num_return_sequences(r.sampling().has_n() ? r.sampling().n() : beam_width);
  r.mutable_sampling()->clear_n();
  double number = 0;
  if (const Value* const v = Find(extra, "length_penalty")) {
    RETURN_IF_ERROR(ReadNumber("length_penalty", *v, number));
    beam.set_length_penalty(static_cast<float>(number));
  }
  if (const Value* const v = Find(extra, "beam_search_diversity_rate")) {
    RETURN_IF_ERROR(ReadNumber("beam_search_diversity_rate", *v, number));
    beam.set_diversity_rate(static_cast<float>(number));
    // Diversity is between groups; there, each beam is one.
    if (number != 0) beam.set_num_groups(beam_width);
  }
  if (const Value* const v = Find(extra, "early_stopping")) {
    RETURN_IF_ERROR(ReadEarlyStopping(*v, beam));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadExtra(const google::protobuf::Struct& extra, pb::GenerateRequest& r) {
  RETURN_IF_ERROR(ReadBeam(extra, r));
  if (const Value* const v = Find(extra, "priority")) {
    int32_t priority = 0;
    RETURN_IF_ERROR(ReadInt("priority", *v, priority));
    r.mutable_scheduling()->set_priority(priority);
  }
  if (const Value* const v = Find(extra, "kv_retention")) {
    if (!v->has_string_value()) {
      return InvalidArgument("extra.kv_retention is not a text like 0-512:80:600s");
    }
    absl::StatusOr<pb::RetentionPolicy> policy = ReadRetention(r.kv(), v->string_value());
    if (!policy.ok()) return Annotate(policy.status(), "extra.kv_retention");
    *r.mutable_kv()->mutable_retention() = *std::move(policy);
  }
  return absl::OkStatus();
}

}  // namespace quire
