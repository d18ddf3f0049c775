// server/metrics/request_metrics.cc -- see request_metrics.h.
#include "server/metrics/request_metrics.h"

#include <algorithm>

#include "server/access/retry_after.h"

namespace quire {
namespace {

constexpr std::array<const char*, kNumEndReasons> kEndNames = {"stop", "length", "abort",
                                                               "deadline", "error"};
constexpr std::array<const char*, kNumRefusalReasons> kRefusalNames = {
    "queue", "rate_limit", "invalid", "denied", "draining", "other"};

EndReason ReasonOf(const RequestEnd& end) {
  switch (end.outcome.code()) {
    case absl::StatusCode::kOk:
      return end.reason == FinishReason::kLength ? EndReason::kLength : EndReason::kStop;
    case absl::StatusCode::kCancelled:
      return EndReason::kAbort;
    case absl::StatusCode::kDeadlineExceeded:
      return EndReason::kDeadline;
    default:
      return EndReason::kError;
  }
}

RefusalReason ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      // The keys' own limits name the key; the queue's wait is the same for all.
      return Message(status).find("_per_minute=") != std::string::npos ? RefusalReason::kRateLimit
                                                                       : RefusalReason::kQueue;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
      return RefusalReason::kInvalid;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return RefusalReason::kDenied;
    case absl::StatusCode::kUnavailable:
      return RefusalReason::kDraining;
    default:
      return RefusalReason::kOther;
  }
}

double Seconds(int64_t us) { return static_cast<double>(std::max<int64_t>(0, us)) / 1e6; }

}  // namespace

RequestMetrics::RequestMetrics(const std::vector<std::vector<double>>& bounds) {
  for (const std::vector<double>& b : bounds) {
    histograms_.push_back(std::make_unique<prometheus::Histogram>(b));
  }
}

void RequestMetrics::OnStarted(const RequestStats& stats) {
  prompt_tokens_.Increment(stats.prompt_tokens);
  cached_tokens_.Increment(std::min(stats.cached_tokens, stats.prompt_tokens));
}

void RequestMetrics::OnToken(const TokenTime& time) {
  generation_tokens_.Increment();
  if (time.first_s) Observe(Measure::kTimeToFirstToken, *time.first_s);
  if (time.gap_s) Observe(Measure::kInterTokenLatency, *time.gap_s);
}

void RequestMetrics::OnEnd(const RequestEnd& end) {
  const EndReason reason = ReasonOf(end);
  ends_[static_cast<size_t>(reason)].Increment();
  if (reason == EndReason::kDeadline) {
    (end.accepted ? deadline_running_ : deadline_queued_).Increment();
  }
  if (reason == EndReason::kError && !end.accepted &&
      end.outcome.code() == absl::StatusCode::kInvalidArgument) {
    never_fits_.Increment();
  }
  if (end.accepted && end.outcome.code() == absl::StatusCode::kResourceExhausted) {
    slow_client_.Increment();
  }
  Observe(Measure::kE2eLatency, end.e2e_s);
  const Request& request = *end.generation.request;
  Observe(Measure::kMaxTokens, request.stop.max_tokens);
  Observe(Measure::kParamsN, end.generation.num_outputs());
  if (!end.accepted) return;
  const RequestStats& s = end.stats;
  Observe(Measure::kQueueTime, Seconds(s.queue_us));
  Observe(Measure::kPromptTokens, s.prompt_tokens);
  Observe(Measure::kPrefillComputedTokens, std::max(0, s.prompt_tokens - s.cached_tokens));
  Observe(Measure::kGenerationTokens, s.completion_tokens);
  Observe(Measure::kMaxGenerationTokens, request.stop.max_tokens);
  Observe(Measure::kNumPreemptions, s.preemptions);
  if (s.completion_tokens == 0) return;
  Observe(Measure::kPrefillTime, Seconds(s.prefill_us));
  Observe(Measure::kDecodeTime, Seconds(s.decode_us));
  Observe(Measure::kInferenceTime, Seconds(s.prefill_us) + Seconds(s.decode_us));
  if (s.completion_tokens > 1) {
    Observe(Measure::kTimePerOutputToken, Seconds(s.decode_us) / (s.completion_tokens - 1));
  }
}

void RequestMetrics::OnRefused(const absl::Status& status) {
  refusals_[static_cast<size_t>(ReasonOf(status))].Increment();
}

void RequestMetrics::Write(const std::string& prefix, Families& out) const {
  for (size_t i = 0; i < kNumMeasures; ++i) {
    const MeasureInfo& info = InfoOf(static_cast<Measure>(i));
    out.Histogram(prefix + std::string(info.name), std::string(info.help),
                  histograms_[i]->Collect());
  }
  // Cached first: between the two reads it can only fall behind, so the difference is never < 0.
  const double cached = cached_tokens_.Value();
  const double prompt = prompt_tokens_.Value();
  out.Counter(prefix + "prompt_tokens_total", "Tokens of prompts that were started.", prompt);
  out.Counter(prefix + "prompt_tokens_cached_total", "Of these, found in cached prefixes.", cached);
  constexpr const char* kBySource = "prompt_tokens_by_source_total";
  constexpr const char* kBySourceHelp =
      "Tokens of prompts by where their keys and values are from.";
  out.Counter(prefix + kBySource, kBySourceHelp, prompt - cached, {{"source", "local_compute"}});
  out.Counter(prefix + kBySource, kBySourceHelp, cached, {{"source", "local_cache_hit"}});
  out.Counter(prefix + "generation_tokens_total", "Tokens that were generated for clients.",
              generation_tokens_.Value());
  for (size_t i = 0; i < kNumEndReasons; ++i) {
    out.Counter(
        prefix + "request_success_total",
        "Requests that were let in and have ended, by how; all of them, not successes only.",
        ends_[i].Value(), {{"finished_reason", kEndNames[i]}});
  }
  const auto refused = [&](RefusalReason reason) {
    return refusals_[static_cast<size_t>(reason)].Value();
  };
  out.Counter(prefix + "admission_rejections_total",
              "Requests refused because a limit was reached.", refused(RefusalReason::kQueue),
              {{"reason", "max_num_queued_reqs"}});
  constexpr const char* kRejections = "quire:rejections_total";
  constexpr const char* kRejectionsHelp = "Requests that were refused, by why.";
  for (size_t i = 0; i < kNumRefusalReasons; ++i) {
    out.Counter(kRejections, kRejectionsHelp, refusals_[i].Value(), {{"reason", kRefusalNames[i]}});
  }
  out.Counter(kRejections, kRejectionsHelp, never_fits_.Value(), {{"reason", "never_fits"}});
  constexpr const char* kDeadline = "quire:deadline_exceeded_total";
  constexpr const char* kDeadlineHelp = "Requests whose deadline passed, by where they were.";
  out.Counter(kDeadline, kDeadlineHelp, deadline_queued_.Value(), {{"stage", "queued"}});
  out.Counter(kDeadline, kDeadlineHelp, deadline_running_.Value(), {{"stage", "running"}});
  out.Counter("quire:slow_clients_total", "Requests cut off because their client did not read.",
              slow_client_.Value());
}

}  // namespace quire
