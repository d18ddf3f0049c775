// bench/simulation/trace.h -- requests over time, as a stream: what a simulation is fed with.
//
// Called by the simulator and the check against real runs, one thread. A prompt is a list of
// segments, each the start of an endless made-up text; the answer is the start of another. So equal
// beginnings of prompts have equal tokens, and a chat's next prompt can hold the answer before.
// Sources make or read one request at a time: a trace of any length takes no memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "bench/simulation/random.h"

namespace quire {

struct PromptSegment {
  uint64_t text = 0;
  int32_t num_tokens = 0;
  friend bool operator==(const PromptSegment&, const PromptSegment&) = default;
};

struct TraceRequest {
  int64_t arrival_us = 0;
  std::vector<PromptSegment> prompt;
  std::vector<TokenId> token_ids;  // instead of segments, if not empty
  uint64_t answer = 0;             // the output is the start of this text
  int32_t output_tokens = 1;
  int32_t priority = 0;
  std::string tenant;
  friend bool operator==(const TraceRequest&, const TraceRequest&) = default;
};

inline constexpr int32_t kMaxTraceTokens = 1 << 22;  // of a prompt, and of an output

class TraceSource {
 public:
  virtual ~TraceSource() = default;
  // False at the end. Arrivals never go back. ERRORS: kInvalidArgument naming line and field.
  virtual absl::StatusOr<bool> Next(TraceRequest& request) = 0;
};

// In [first, first + count): ids of a text are spread evenly.
struct TokenRange {
  TokenId first = 0;
  int32_t count = 1 << 30;
};
inline TokenId TokenOf(uint64_t text, int32_t position, const TokenRange& range = {}) {
  const uint64_t bits = MixBits(text + static_cast<uint64_t>(position) * 0xD1B54A32D192ED03);
  return range.first +
         static_cast<TokenId>((bits >> 33) * static_cast<uint64_t>(range.count) >> 31);
}

int32_t NumPromptTokens(const TraceRequest& request);
std::vector<TokenId> PromptTokens(const TraceRequest& request, const TokenRange& range = {});

}  // namespace quire
