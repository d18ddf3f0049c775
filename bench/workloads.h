// bench/workloads.h -- the four request mixes that `quire bench` sends, and how their latencies are
// summed up.
//
// Called by the bench client; pure; thread: any. Depends on base/ only. Tokens come from a
// generator of our own, so that figures can be repeated on any machine without a data file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace quire {

struct Workload {
  std::string name;
  std::vector<std::vector<TokenId>> prompts;  // one per request, sent in this order
  int32_t max_tokens = 0;                     // new tokens per request; end of sequence is ignored
  int32_t concurrency = 0;                    // requests in flight at once
};

// name: "W1" single stream (32 + 128 tokens), "W2" prefill (1024 + 1), "W3" batch (64 requests of
// 128 + 128 at once), "W4" shared prefix (64 requests of 512 shared + 32 own + 64 at once).
// Every repeat has fresh tokens, W4's prefix included, so that nothing is cached from the last one.
// Ids are uniform over the vocabulary less its start (300 ids, or a quarter of a small one) and its
// last fifth, where special tokens sit.
// ERRORS: kInvalidArgument naming an unknown workload, a negative repeat or a vocabulary below 16.
absl::StatusOr<Workload> MakeWorkload(std::string_view name, int repeat, int32_t vocab_size,
                                      uint64_t seed);

// What a client saw of one request. All times are microseconds since the run's start.
struct RequestTrace {
  int64_t sent_us = 0;
  std::vector<int64_t> token_us;  // arrival of each new token
  int32_t prompt_tokens = 0;
};

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0, mean = 0, max = 0;
};

// Nearest rank: p of n values is the ceil(p * n)-th smallest. All 0 if there are none.
Percentiles Summarize(std::vector<double> values);

struct LatencySummary {
  int32_t requests = 0;       // with at least one token
  int32_t empty = 0;          // without any
  int64_t prompt_tokens = 0;  // of the former
  int64_t output_tokens = 0;
  double duration_s = 0;  // first sent to last token
  double output_tokens_per_s = 0;
  double total_tokens_per_s = 0;   // prompt and output
  double decode_tokens_per_s = 0;  // of one stream: tokens after its first over their time, median
  Percentiles ttft_ms;             // sent to first token
  Percentiles itl_ms;              // between neighbouring tokens, over all requests
  Percentiles e2e_ms;              // sent to last token
};

LatencySummary Summarize(std::span<const RequestTrace> traces);

}  // namespace quire
