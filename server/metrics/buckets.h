// server/metrics/buckets.h -- the histograms and their upper bounds. At start.
//
// Bounds are those that vLLM 0.33 has, so that dashboards and alerts fit; for a small model on a
// CPU they are coarse, so each can be replaced by the option histogram_buckets.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

enum class Measure : uint8_t {
  kTimeToFirstToken,
  kInterTokenLatency,
  kTimePerOutputToken,
  kE2eLatency,
  kQueueTime,
  kInferenceTime,
  kPrefillTime,
  kDecodeTime,
  kPromptTokens,
  kGenerationTokens,
  kMaxGenerationTokens,
  kMaxTokens,
  kPrefillComputedTokens,
  kParamsN,
  kNumPreemptions,
};
inline constexpr size_t kNumMeasures = 15;

struct MeasureInfo {
  std::string_view name;  // without prefix
  std::string_view help;
};
const MeasureInfo& InfoOf(Measure measure);

// [kNumMeasures] lists of bounds, ascending. spec: "name=0.001,0.01;name=..."; token counts go up
// to max_model_len. ERRORS: kInvalidArgument naming histogram_buckets and what is wrong with it.
absl::StatusOr<std::vector<std::vector<double>>> ReadBuckets(const std::string& spec,
                                                             int32_t max_model_len);

}  // namespace quire
