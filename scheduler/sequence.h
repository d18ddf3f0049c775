// scheduler/sequence.h -- one token stream: the one long-lived struct of the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "paged_cache/block_manager.h"
#include "scheduler/request.h"

namespace quire {

using SequenceId = uint64_t;

class GrammarMatcher;  // sampling/grammar.h

enum class SequenceStatus : uint8_t { kWaiting, kRunning };

// Owned by the scheduler; destroying it is the only way its pages are freed (contract C6).
struct Sequence {
  // Fixed at creation.
  SequenceId id = 0;
  std::shared_ptr<const Request> request;
  int32_t branch = 0;

  // Written by Scheduler::Commit. Between Schedule and Commit num_drafts guesses come after the
  // known tokens.
  std::vector<TokenId> tokens;  // prompt, then generated
  int32_t num_drafts = 0;
  int32_t num_computed_tokens = 0;  // tokens whose keys and values are in the cache
  SequenceStatus status = SequenceStatus::kWaiting;
  std::vector<PrefixHash> page_hashes;  // chain over full pages; survives preemption

  // What may come next; null = anything. Knows exactly the output's known tokens.
  std::shared_ptr<GrammarMatcher> grammar;

  // Owned pages; while it waits after a preemption by swap, what was saved of them.
  SequenceTables tables;
  std::optional<SwappedTables> swapped;

  int32_t num_prompt_tokens() const { return static_cast<int32_t>(request->prompt.size()); }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()) - num_drafts; }  // known
  int32_t num_output_tokens() const { return num_tokens() - num_prompt_tokens(); }
};

}  // namespace quire
