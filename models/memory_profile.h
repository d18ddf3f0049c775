// models/memory_profile.h -- how big the page pool may be, and why (contract C4).
//
// A dry run of one worst-case step (max_num_batched_tokens tokens, max_num_seqs logit rows) takes
// its activations from a counting arena; budget - weights - peak - reserve is the pool's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/memory_info.h"
#include "base/status.h"

namespace quire {

struct MemoryOptions {
  double memory_utilization = 0.8;    // share of the limit that the daemon may use
  int64_t kv_cache_memory_bytes = 0;  // > 0: the pool's size, instead of the rule
  int32_t num_blocks = 0;             // > 0: usable blocks of the main pool, instead of both
};

// What no formula knows (connections, tables, tokenizer, allocator slack), and the samplers' copies
// of a row of logits, one for each kernel thread.
int64_t ReserveBytes(int64_t num_threads, int64_t vocab_size);

// Pages of one size in bytes.
struct PoolProfile {
  int32_t num_blocks = 0;
  int64_t block_bytes = 0;
};

// What one purpose takes of the worst-case step: "qkv", "mlp", "attention" ...
struct ActivationPart {
  std::string what;
  int64_t bytes = 0;
};

// All in bytes unless named otherwise.
struct MemoryProfile {
  int64_t limit = 0;             // what this process may use at most
  std::string limit_source;      // "cgroup v2 memory.max", "MemTotal" ...
  int64_t others = 0;            // of the limit, what other processes and kernels used at start
  int64_t available = 0;         // limit less that, and less what this process uses beside weights
  std::string available_source;  // what made it so
  int64_t budget = 0;            // min(limit * memory_utilization, available)
  int64_t weights = 0;           // packed weights
  int64_t activation_peak = 0;   // arena of the worst-case step
  std::vector<ActivationPart> activation_parts;  // what that peak is made of; they sum to it
  int64_t reserve = 0;                           // logits, sampling, tables, connections
  int64_t host_cache = 0;                        // host tier; of the same memory unless a device's
  int64_t draft_model = 0;                       // its weights, its cache, its activations
  int64_t kv_pool = 0;                           // all pools
  int64_t prefault = 0;                          // of the pools, made ready ahead of use
  bool can_prefault = true;                      // the kernel can do it
  int64_t block_bytes = 0;                       // of the main pool
  int64_t bytes_per_token = 0;
  int32_t num_blocks = 0;  // of the main pool
  int32_t block_size = 0;  // tokens
  std::vector<PoolProfile> pools;
  int32_t max_num_blocks = 0;  // that the main pool can grow to while serving
  std::string rule;            // "num_blocks=", "kv_cache_memory_bytes=" or "memory_utilization="

  // The breakdown, one line each, in MiB: for the start-up log.
  std::string ToString() const;
};

// Two readings of a memory, before anything was loaded and with `weights` bytes of weights in it.
// Others may have come or gone in between: the more careful reading rules, and nothing is ever
// negative. Fills limit, limit_source, others, available, available_source, weights and budget.
void ApplyMemory(const MemoryInfo& before, const MemoryInfo& after, int64_t weights,
                 double memory_utilization, MemoryProfile& profile);

// Fills activation_peak and activation_parts from the dry arena of the worst-case step.
void ApplyActivations(const Arena& dry, MemoryProfile& profile);

}  // namespace quire
