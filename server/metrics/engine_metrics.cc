// server/metrics/engine_metrics.cc -- see engine_metrics.h.
#include "server/metrics/engine_metrics.h"

#include <algorithm>
#include <array>

namespace quire {
namespace {

constexpr std::array<const char*, kNumDropReasons> kDropNames = {
    "evicted", "flushed", "orphaned", "rewritten", "private", "shrunk", "failed", "merged"};

void WriteQueues(const EngineSnapshot& s, int32_t num_deferred, const std::string& prefix,
                 Families& out) {
  const SchedulerStats& stats = s.scheduler;
  out.Gauge(prefix + "num_requests_running", "Sequences in the running batch.", stats.running_seqs);
  out.Gauge(prefix + "num_requests_waiting",
            "Requests that wait for their first step, and preempted sequences.",
            stats.waiting_seqs + num_deferred);
  constexpr const char* kReason = "num_requests_waiting_by_reason";
  constexpr const char* kReasonHelp =
      "The same, by what they wait for: room in the batch and the pool, or a grammar.";
  out.Gauge(prefix + kReason, kReasonHelp, stats.waiting_seqs, {{"reason", "capacity"}});
  out.Gauge(prefix + kReason, kReasonHelp, num_deferred, {{"reason", "deferred"}});
  out.Gauge("quire:live_requests", "Requests in the engine.", stats.live_requests);
  out.Gauge("quire:batch_size", "Sequences in the running batch.", stats.running_seqs);
}

void WriteCache(const EngineSnapshot& s, const std::string& prefix, bool legacy, Families& out) {
  const SchedulerStats& stats = s.scheduler;
  const auto queries = static_cast<double>(stats.prefix_query_tokens);
  const auto hits = static_cast<double>(stats.prefix_hit_tokens);
  constexpr const char* kUsageHelp =
      "Share of the pool in use, 0 to 1; cached blocks count as free.";
  constexpr const char* kQueriesHelp = "Tokens of prompts that were looked up in the prefix cache.";
  constexpr const char* kHitsHelp = "Of these, found.";
  out.Gauge(prefix + "kv_cache_usage_perc", kUsageHelp, CacheUsage(s));
  out.Counter(prefix + "prefix_cache_queries_total", kQueriesHelp, queries);
  out.Counter(prefix + "prefix_cache_hits_total", kHitsHelp, hits);
  if (legacy) {
    out.Gauge(prefix + "gpu_cache_usage_perc", kUsageHelp, CacheUsage(s));
    out.Counter(prefix + "gpu_prefix_cache_queries_total", kQueriesHelp, queries);
    out.Counter(prefix + "gpu_prefix_cache_hits_total", kHitsHelp, hits);
  }
  for (size_t i = 0; i < s.pools.size(); ++i) {
    const PoolSnapshot& pool = s.pools[i];
    const std::string number = std::to_string(i);
    const auto blocks = [&](const char* state, int32_t count) {
      out.Gauge("quire:kv_blocks", "Blocks of a pool, by state; they add up to the pool.", count,
                {{"pool", number}, {"state", state}});
    };
    blocks("used", pool.num_used);
    blocks("cached_free", pool.num_cached);
    blocks("empty_free", pool.num_free);
    out.Gauge("quire:kv_blocks_pinned", "Of the used blocks, held by pins.", pool.num_pinned,
              {{"pool", number}});
    out.Gauge("quire:kv_blocks_shared", "Of the used blocks, in more than one table.",
              pool.num_shared, {{"pool", number}});
    out.Gauge("quire:kv_sharing_ratio", "Blocks that tables name per block in use.",
              pool.num_used > 0 ? static_cast<double>(pool.num_refs) / pool.num_used : 1,
              {{"pool", number}});
    for (size_t reason = 0; reason < kDropNames.size(); ++reason) {
      out.Counter("quire:kv_evictions_total", "Cached blocks whose content was dropped, by why.",
                  static_cast<double>(pool.stats.dropped[reason]),
                  {{"pool", number}, {"reason", kDropNames[reason]}});
    }
    if (pool.num_host == 0) continue;
    const auto host = [&](const char* state, int32_t count) {
      out.Gauge("quire:host_blocks", "Slots of the host tier, by state.", count,
                {{"pool", number}, {"state", state}});
    };
    host("swapped", pool.num_swapped);
    host("cached", pool.num_host_cached);
    host("free", std::max(0, pool.num_host - pool.num_swapped - pool.num_host_cached));
  }
  const CacheStats& cache = s.cache;
  const auto counter = [&](const char* name, const char* help, int64_t value) {
    out.Counter(std::string("quire:") + name, help, static_cast<double>(value));
  };
  counter("kv_cow_copies_total", "Blocks that were copied at their first write.", cache.copies);
  counter("kv_dedupe_hits_total", "Completed blocks replaced by an equal one.", cache.dedupe_hits);
  counter("kv_in_step_hit_tokens_total", "Tokens found in blocks that the same step was writing.",
          cache.in_step_tokens);
  counter("kv_host_saved_total", "Blocks kept in the host tier.", cache.saved);
  counter("kv_host_loaded_total", "Blocks found there again.", cache.loaded);
  counter("kv_file_saved_total", "Blocks kept in files.", cache.file_saved);
  counter("kv_file_loaded_total", "Blocks found there again.", cache.file_loaded);
}

void WriteWork(const EngineSnapshot& s, const std::string& prefix, Families& out) {
  const SchedulerStats& stats = s.scheduler;
  out.Counter(prefix + "num_preemptions_total", "Sequences that were preempted.",
              static_cast<double>(stats.preemptions));
  constexpr const char* kKind = "quire:preemptions_total";
  constexpr const char* kKindHelp = "Sequences that were preempted, by how they come back.";
  out.Counter(
      kKind, kKindHelp,
      static_cast<double>(std::max<int64_t>(0, stats.preemptions - stats.swapped_preemptions)),
      {{"kind", "recompute"}});
  out.Counter(kKind, kKindHelp, static_cast<double>(stats.swapped_preemptions), {{"kind", "swap"}});
  constexpr const char* kForks = "quire:kv_forks_total";
  constexpr const char* kForksHelp = "Sequences that began as a fork of another, by what for.";
  out.Counter(kForks, kForksHelp, static_cast<double>(stats.forks), {{"kind", "n"}});
  out.Counter(kForks, kForksHelp, static_cast<double>(stats.beam_forks), {{"kind", "beam"}});

  out.Counter(prefix + "spec_decode_num_drafts_total", "Steps of sequences that had guesses.",
              static_cast<double>(s.drafts.steps));
  out.Counter(prefix + "spec_decode_num_draft_tokens_total", "Guesses that were computed.",
              static_cast<double>(stats.draft_tokens));
  out.Counter(prefix + "spec_decode_num_accepted_tokens_total", "Of these, kept.",
              static_cast<double>(stats.accepted_draft_tokens));
  for (size_t i = 0; i < s.drafts.accepted_at.size(); ++i) {
    out.Counter(prefix + "spec_decode_num_accepted_tokens_per_pos_total",
                "Guesses that were kept, by their position; the last one stands for all behind it.",
                static_cast<double>(s.drafts.accepted_at[i]), {{"position", std::to_string(i)}});
  }
}

void WriteSteps(const StepStats& steps, const std::string& prefix, Families& out) {
  std::vector<double> bounds;
  for (size_t i = 0; i < StepStats::kNumTokenBuckets; ++i) {
    bounds.push_back(static_cast<double>(int64_t{1} << i));
  }
  out.Histogram(prefix + "iteration_tokens_total", "Tokens that a step computed.", bounds,
                {steps.tokens.begin(), steps.tokens.end()}, static_cast<double>(steps.sum_tokens));
  bounds.clear();
  for (size_t i = 0; i < kNumStepTimeBuckets; ++i) {
    bounds.push_back(static_cast<double>(int64_t{1} << i) * 1e-6);
  }
  const auto phase = [&](const char* name, const StepTimes& times) {
    out.Histogram("quire:scheduler_step_seconds",
                  "Time of a step's parts: who runs, the model with sampling, taking the results.",
                  bounds, {times.counts.begin(), times.counts.end()},
                  static_cast<double>(times.sum_us) * 1e-6, {{"phase", name}});
  };
  phase("schedule", steps.schedule);
  phase("run", steps.run);
  phase("commit", steps.commit);
}

}  // namespace

double CacheUsage(const EngineSnapshot& snapshot) {
  double usage = 0;
  for (const PoolSnapshot& pool : snapshot.pools) {
    const int32_t total = pool.num_used + pool.num_cached + pool.num_free;
    if (total > 0) usage = std::max(usage, static_cast<double>(pool.num_used) / total);
  }
  return usage;
}

void WriteEngine(const EngineSnapshot& snapshot, int32_t num_deferred, const std::string& prefix,
                 bool legacy, Families& out) {
  WriteQueues(snapshot, num_deferred, prefix, out);
  WriteCache(snapshot, prefix, legacy, out);
  WriteWork(snapshot, prefix, out);
  WriteSteps(snapshot.steps, prefix, out);
}

}  // namespace quire
