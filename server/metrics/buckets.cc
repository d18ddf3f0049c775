// server/metrics/buckets.cc -- see buckets.h.
#include "server/metrics/buckets.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

#include "server/options.h"

namespace quire {
namespace {

constexpr size_t kMaxBounds = 100;

constexpr std::array<MeasureInfo, kNumMeasures> kInfos = {{
    {"time_to_first_token_seconds", "From a request's arrival to its first token, queue included."},
    {"inter_token_latency_seconds", "Between two neighbouring tokens of an output."},
    {"request_time_per_output_token_seconds",
     "Of a request: decode time per token after the first."},
    {"e2e_request_latency_seconds", "From a request's arrival to its end."},
    {"request_queue_time_seconds", "From a request's arrival to its first step."},
    {"request_inference_time_seconds", "From a request's first step to its last token."},
    {"request_prefill_time_seconds", "From a request's first step to its first token."},
    {"request_decode_time_seconds", "From a request's first token to its last."},
    {"request_prompt_tokens", "Tokens of a prompt."},
    {"request_generation_tokens", "Tokens of a request's outputs."},
    {"request_max_num_generation_tokens", "Tokens that a request's outputs could have had each."},
    {"request_params_max_tokens", "max_tokens of a request, or what stood for it."},
    {"request_prefill_kv_computed_tokens", "Tokens of a prompt that no cached prefix saved."},
    {"request_params_n", "Outputs that a request asked for."},
    {"request_num_preemptions", "How often a request was preempted."},
}};

std::vector<double> DefaultBounds(Measure measure, int32_t max_model_len) {
  switch (measure) {
    case Measure::kTimeToFirstToken:
      return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
              1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
    case Measure::kInterTokenLatency:
    case Measure::kTimePerOutputToken:
      return {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
    case Measure::kE2eLatency:
    case Measure::kQueueTime:
    case Measure::kInferenceTime:
    case Measure::kPrefillTime:
    case Measure::kDecodeTime:
      return {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
              30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
    case Measure::kParamsN:
      return {1, 2, 5, 10, 20};
    case Measure::kNumPreemptions:
      return {1, 2, 3, 4, 5, 10, 20};
    default:
      break;
  }
  std::vector<double> bounds;
  for (double decade = 1; decade <= max_model_len; decade *= 10) {
    for (const double step : {1., 2., 5.}) {
      if (decade * step <= max_model_len) bounds.push_back(decade * step);
    }
  }
  return bounds;
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const MeasureInfo& info : kInfos) names.emplace_back(info.name);
  return names;
}

absl::StatusOr<std::vector<double>> ReadBounds(const std::string& name, std::string_view list) {
  std::vector<double> bounds;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string_view text = list.substr(0, comma);
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    double bound = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bound);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(bound)) {
      return InvalidArgument("histogram_buckets: {} has the bound {}, which is not a number", name,
                             text);
    }
    if (!bounds.empty() && bound <= bounds.back()) {
      return InvalidArgument("histogram_buckets: {} has {} after {}; bounds must ascend", name,
                             bound, bounds.back());
    }
    bounds.push_back(bound);
  }
  if (bounds.empty() || bounds.size() > kMaxBounds) {
    return InvalidArgument("histogram_buckets: {} has {} bounds, must have 1 to {}", name,
                           bounds.size(), kMaxBounds);
  }
  return bounds;
}

}  // namespace

const MeasureInfo& InfoOf(Measure measure) { return kInfos[static_cast<size_t>(measure)]; }

absl::StatusOr<std::vector<std::vector<double>>> ReadBuckets(const std::string& spec,
                                                             int32_t max_model_len) {
  std::vector<std::vector<double>> all;
  for (size_t i = 0; i < kNumMeasures; ++i) {
    all.push_back(DefaultBounds(static_cast<Measure>(i), max_model_len));
  }
  std::set<std::string> seen;
  std::string_view rest = spec;
  while (!rest.empty()) {
    const size_t semicolon = rest.find(';');
    const std::string_view entry = rest.substr(0, semicolon);
    rest = semicolon == std::string_view::npos ? std::string_view() : rest.substr(semicolon + 1);
    const size_t equals = entry.find('=');
    const std::string name(entry.substr(0, equals));
    const auto it = std::find_if(kInfos.begin(), kInfos.end(),
                                 [&](const MeasureInfo& info) { return info.name == name; });
    if (it == kInfos.end()) {
      return InvalidArgument("histogram_buckets: {} is not a histogram; did you mean {}?", name,
                             Nearest(name, Names()));
    }
    if (!seen.insert(name).second) {
      return InvalidArgument("histogram_buckets: {} is given twice", name);
    }
    ASSIGN_OR_RETURN(all[static_cast<size_t>(it - kInfos.begin())],
                     ReadBounds(name, equals == std::string_view::npos ? std::string_view()
                                                                       : entry.substr(equals + 1)));
  }
  return all;
}

}  // namespace quire
