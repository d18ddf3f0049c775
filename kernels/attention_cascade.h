// kernels/attention_cascade.h -- which sequences of a step begin with the same pages, so that a
// backend can read those once for all of them.
//
// Called by plan(), engine thread. Only whole splits of kKeySplit keys are shared: a row's partial
// results are then the same ones, merged in the same order, as if it had read the pages alone.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace quire::kernels {

struct AttentionMetadata;

// Sequences members[first] .. members[first + count - 1], in batch order, share the pages of their
// first num_keys keys, and each of their queries comes behind those.
struct PrefixGroup {
  int32_t first, count;
  int32_t num_keys;  // a positive multiple of kKeySplit
};

struct PrefixGroups {
  std::vector<PrefixGroup> groups;
  std::vector<int32_t> members;

  // Scratch, here so that its capacity lasts.
  std::vector<std::pair<int32_t, int32_t>> order;   // page at the end of the first split, sequence
  std::vector<std::pair<int32_t, int32_t>> common;  // splits in common with the first, sequence
};

// Groups of two or more, each sequence in one at most. Sequences with more than `max_queries`
// queries stay out: they multiply enough with what they read. Of a group's prefixes of different
// lengths the one is taken that saves the most reads. Costs one sort of the sequences and a look at
// the shared parts of their tables.
void FindPrefixGroups(const AttentionMetadata& m, int32_t max_queries, PrefixGroups& out);

}  // namespace quire::kernels
