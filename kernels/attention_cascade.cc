#include "kernels/attention_cascade.h"

#include <algorithm>
#include <functional>

#include "kernels/attention_common.h"

namespace quire::kernels {
namespace {

const int32_t* TableOf(const AttentionMetadata& m, int32_t seq) {
  return &m.read_table[static_cast<size_t>(seq) * static_cast<size_t>(m.max_pages_per_seq)];
}

// Whole splits at the beginning that lie in the same pages, `limit` at most.
int32_t SplitsInCommon(const int32_t* a, const int32_t* b, int32_t pages_per_split, int32_t limit) {
  const int32_t pages = limit * pages_per_split;
  return static_cast<int32_t>(std::mismatch(a, a + pages, b).first - a) / pages_per_split;
}

}  // namespace

void FindPrefixGroups(const AttentionMetadata& m, int32_t max_queries, PrefixGroups& out) {
  out.groups.clear();
  out.members.clear();
  out.order.clear();
  // A dry run has no tables, and needs none: the workspace does not depend on them.
  if (m.num_seqs < 2 || m.read_table.empty()) return;
  const int32_t pages_per_split = kKeySplit / m.page_size;
  for (int32_t seq = 0; seq < m.num_seqs; ++seq) {
    const int32_t n = NumQueries(m, seq);
    if (n == 0 || n > max_queries || FirstPosition(m, seq) < kKeySplit) continue;
    const int32_t page = TableOf(m, seq)[pages_per_split - 1];
    if (page != 0) out.order.emplace_back(page, seq);
  }
  std::sort(out.order.begin(), out.order.end());
  for (size_t i = 0; i < out.order.size();) {
    size_t end = i + 1;
    int32_t first = out.order[i].second;  // the one that has most keys
    for (; end < out.order.size() && out.order[end].first == out.order[i].first; ++end) {
      const int32_t seq = out.order[end].second;
      if (FirstPosition(m, seq) > FirstPosition(m, first)) first = seq;
    }
    out.common.clear();
    for (size_t j = i; j < end && end - i > 1; ++j) {
      const int32_t seq = out.order[j].second;
      const int32_t limit = std::min(FirstPosition(m, first), FirstPosition(m, seq)) / kKeySplit;
      const int32_t common =
          SplitsInCommon(TableOf(m, first), TableOf(m, seq), pages_per_split, limit);
      if (common > 0) out.common.emplace_back(common, seq);
    }
    i = end;
    if (out.common.size() < 2) continue;
    // Longest first: the first n of them share what the n-th has.
    std::sort(out.common.begin(), out.common.end(), std::greater<>());
    size_t best = 0;
    int64_t saved = 0;
    for (size_t n = 2; n <= out.common.size(); ++n) {
      const int64_t now = static_cast<int64_t>(n - 1) * out.common[n - 1].first;
      if (now < saved) continue;
      best = n;
      saved = now;
    }
    const auto at = static_cast<int32_t>(out.members.size());
    for (size_t n = 0; n < best; ++n) out.members.push_back(out.common[n].second);
    std::sort(out.members.begin() + at, out.members.end());
    out.groups.push_back({.first = at,
                          .count = static_cast<int32_t>(best),
                          .num_keys = out.common[best - 1].first * kKeySplit});
  }
}

}  // namespace quire::kernels
