// tests/cache_harness.h -- a BlockManager over one pool of one full group, and the shortest way to
// run a sequence on it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <utility>
#include <vector>

#include "paged_cache/block_manager.h"

namespace quire {

inline CacheLayout FullLayout(int32_t block_size) {
  return MakeCacheLayout(1, block_size,
                         {{.layer = 0, .key_bytes_per_page = 64, .value_bytes_per_page = 64}})
      .value();
}

inline std::vector<TokenId> Text(int32_t n, TokenId first = 100) {
  std::vector<TokenId> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}
inline std::vector<TokenId> Join(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Cache {
  CacheLayout layout;
  std::vector<PagePool> pools;
  std::vector<PagePool> host;
  BlockManager manager;
  RootId root;

  // num_host: slots of a host tier; 0 = none.
  Cache(int32_t num_pages, int32_t block_size, const BlockManagerOptions& options = {},
        int32_t num_host = 0)
      : layout(FullLayout(block_size)),
        pools(MakePools(num_pages, block_size)),
        host(MakePools(num_host, block_size)),
        manager(layout, pools, options, host),
        root(manager.InternRoot("")) {}

  static std::vector<PagePool> MakePools(int32_t num_pages, int32_t block_size) {
    std::vector<PagePool> pools;
    if (num_pages > 0) pools.emplace_back(num_pages, block_size);
    return pools;
  }
  PagePool& pool() { return pools[0]; }

  struct Seq {
    std::vector<TokenId> tokens;
    std::vector<PrefixHash> chain;
    SequenceTables tables;
    int32_t hit = 0;
    int32_t computed = 0;
    std::span<const PageId> ids() const { return tables.groups[0].ids(); }
    std::vector<PageId> pages() const { return {ids().begin(), ids().end()}; }
  };

  Seq Match(const std::vector<TokenId>& tokens) { return Match(tokens, root); }
  Seq Match(const std::vector<TokenId>& tokens, RootId in) {
    Seq s{.tokens = tokens};
    ExtendChain(tokens, layout.block_size, s.chain);
    PrefixHit hit = manager.MatchPrefix(in, tokens, s.chain);
    s.tables = std::move(hit.tables);
    s.hit = s.computed = hit.num_tokens;
    return s;
  }
  bool Grow(Seq& s) {
    return manager.Grow(s.tables, s.computed, static_cast<int32_t>(s.tokens.size()), copies);
  }
  void Commit(Seq& s) {
    s.computed = static_cast<int32_t>(s.tokens.size());
    manager.Commit(s.tables, s.tokens, s.computed, s.chain);
  }
  Seq Run(const std::vector<TokenId>& tokens) { return Run(tokens, root); }
  Seq Run(const std::vector<TokenId>& tokens, RootId in) {
    Seq s = Match(tokens, in);
    EXPECT_TRUE(Grow(s));
    Commit(s);
    return s;
  }
  bool Decode(Seq& s, TokenId token) {
    s.tokens.push_back(token);
    if (!Grow(s)) {
      s.tokens.pop_back();
      return false;
    }
    Commit(s);
    return true;
  }
  Seq Fork(const Seq& s) { return {s.tokens, s.chain, manager.Fork(s.tables), s.hit, s.computed}; }
  void Audit(std::initializer_list<const Seq*> live,
             std::initializer_list<const SwappedTables*> swapped = {}) {
    std::vector<const SequenceTables*> tables;
    for (const Seq* s : live) tables.push_back(&s->tables);
    const absl::Status status =
        manager.Audit(tables, std::vector<const SwappedTables*>(swapped.begin(), swapped.end()));
    EXPECT_TRUE(status.ok()) << status;
  }
  std::vector<PageCopy> copies;
};

}  // namespace quire
