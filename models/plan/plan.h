// models/plan/plan.h -- `quire plan`: what a model's cache and weights take, and how much of it a
// memory holds, from sizes alone (contract C4). Pure arithmetic; server/cli/plan.cc is the command.
//
// Two counts of a sequence are kept apart. `published` is how papers count: windows at full length,
// and neither states nor indexer keys nor the windows beside compressed entries. `held` is what is
// really kept: windows capped at their last W - 1 tokens, and everything else counted in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "models/plan/cache_shape.h"
#include "models/plan/transformers_rule.h"

namespace quire {

// How elements are stored. Cache formats may have one scale for every head's key or value.
struct KvFormat {
  std::string_view name;
  int64_t element_bytes = 2;
  int64_t scale_bytes = 0;
};
// ERRORS: kInvalidArgument listing the names.
absl::StatusOr<KvFormat> FindKvFormat(std::string_view name);

// Bytes per 32 weights: block formats have their scales in it.
struct WeightFormat {
  std::string_view name;
  int64_t bytes_per_32 = 64;
};
absl::StatusOr<WeightFormat> FindWeightFormat(std::string_view name);

enum class PlanRule : uint8_t { kQuire, kTransformers, kNone };

struct PlanOptions {
  int64_t memory = 0;       // bytes; 0: only what does not depend on it
  int64_t context = 0;      // tokens of one sequence; 0: 4096, or the model's limit if that is less
  int64_t concurrency = 0;  // sequences of that length; 0: as many as fit
  std::string kv_dtype = "bf16";
  std::string weight_dtype;  // empty: as the config says, else bf16
  int64_t block_size = 0;    // 0: the rule's default, 16 here and 256 in transformers
  int64_t max_num_batched_tokens = 512;
  int64_t max_num_seqs = 64;
  int64_t num_threads = 8;
  double memory_utilization = 0.9;  // a card of one's own; the daemon's default for a host is 0.8
  PlanRule rule = PlanRule::kQuire;
};

// Layers with equal parts, and what they take.
struct PartPlan {
  CachePart part;
  int64_t num_layers = 0;
  int64_t entry_bytes = 0;     // one entry in all of these layers; 0 for states
  int64_t fixed_bytes = 0;     // per sequence: states, buffers when they are full
  double bytes_per_token = 0;  // entry_bytes / tokens_per_entry
  double plain_per_token = 0;  // without the compression
  bool published = true;       // counted by papers
  int64_t held = 0;            // at `context`, windows capped
  int64_t uncapped = 0;        // at `context`
  std::string formula;         // "32 layers x 2 (k, v) x 32 heads x 128 x 2 B"
};

// What is left for pages, and what that holds.
struct RoomPlan {
  int64_t budget = 0;
  int64_t weights = 0;
  struct Named {
    std::string_view what;
    int64_t bytes = 0;
  };
  std::vector<Named> activation_parts;  // of the peak, which they sum to
  int64_t activations = 0;
  int64_t reserve = 0;
  int64_t pool = 0;  // >= 0
  struct Pool {
    int64_t num_blocks = 0;
    int64_t block_bytes = 0;
    int64_t per_sequence = 0;  // blocks that one of `context` tokens holds at most
  };
  std::vector<Pool> pools;  // the main one first; blocks of one size in bytes each
  int64_t sequences = 0;    // of `context` tokens
  int64_t tokens = 0;       // that as many sequences of that length hold
};

struct ModelPlan {
  ModelShape shape;
  PlanOptions options;
  KvFormat kv;
  std::string weight_formula;
  int64_t weights = 0;
  int64_t context = 0;
  int64_t block_size = 16;
  std::vector<PartPlan> parts;
  double published_per_token = 0;
  double plain_per_token = 0;
  double growth_per_token = 0;  // of a long sequence: windows are full, states don't grow
  int64_t published_at_context = 0;
  int64_t held_at_context = 0;
  int64_t paged_at_context = 0;  // held, in whole pages and with snapshots of states
  // Tokens, over all sequences, at which the growing caches are as large as the weights; 0: never.
  int64_t outgrown_at = 0;
  std::optional<RoomPlan> nothing_reserved;  // if a memory is given
  std::optional<RoomPlan> by_quire;          // rule kQuire
  // rule kTransformers
  std::optional<absl::StatusOr<TransformersPlan>> by_transformers;
  TransformersInputs transformers_inputs;
};

// ERRORS: kInvalidArgument naming option, value and limit.
absl::StatusOr<ModelPlan> PlanModel(const ModelShape& shape, const PlanOptions& options);

// The arena of a worst-case step as the decoder takes it, by purpose, in float32.
std::vector<RoomPlan::Named> ActivationParts(const ModelShape& shape, int64_t num_tokens,
                                             int64_t num_rows, int64_t num_threads);

}  // namespace quire
