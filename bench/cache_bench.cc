// bench/cache_bench.cc -- what the books of the paged cache cost: one thread, by its own CPU time.
//
//   cache_bench [repeats]
//
// Each row does one operation on many pages and prints nanoseconds per page: median and best of
// the repeats, the target, and how often `new` was called in all of them. The small pool's books
// (10,000 pages) fit in a core's cache. The large one's (1,000,000) do not, and its pages are
// touched in random order, so that its rows count cache misses. Memory is counted by what `new`
// has handed out for the pool and the index, not by adding up sizes.
//
// Exit status 1 if a target is missed or something on the hot path allocates.
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cpu_isa.h"
#include "paged_cache/block_manager.h"

namespace {
// Counted by operator new and delete, which have no other place for it.
int64_t g_allocations = 0;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
int64_t g_live_bytes = 0;   // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  void* p = std::malloc(size != 0 ? size : 1);
  if (p == nullptr) std::abort();
  ++g_allocations;
  g_live_bytes += static_cast<int64_t>(malloc_usable_size(p));
  return p;
}
[[gnu::noinline]] void* operator new[](std::size_t size) { return ::operator new(size); }
[[gnu::noinline]] void operator delete(void* p) noexcept {
  if (p != nullptr) g_live_bytes -= static_cast<int64_t>(malloc_usable_size(p));
  std::free(p);
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t align) {
  void* p = std::aligned_alloc(static_cast<std::size_t>(align), size);
  if (p == nullptr) std::abort();
  ++g_allocations;
  g_live_bytes += static_cast<int64_t>(malloc_usable_size(p));
  return p;
}
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  ::operator delete(p);
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { ::operator delete(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { ::operator delete(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { ::operator delete(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept { ::operator delete(p); }

namespace quire {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int32_t kChain = 128;  // blocks of one prompt

int64_t ThreadNs() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

class Bench {
 public:
  Bench(int32_t num_pages, int repeats) : num_pages_(num_pages), repeats_(repeats), rng_(1) {
    layout_ = MakeCacheLayout(1, kBlockSize,
                              {{.layer = 0, .key_bytes_per_page = 64, .value_bytes_per_page = 64}})
                  .value();
    layout_bytes_ = g_live_bytes;
    pools_.emplace_back(num_pages, kBlockSize);
    manager_.emplace(layout_, pools_);
  }

  bool Run() {
    Fill();
    Memory();
    Lookups();
    Admissions();
    Tables();
    Pages();
    return good_;
  }

 private:
  struct Block {  // somewhere in the tree
    NodeId parent;
    PrefixHash parent_hash;
    TokenId tokens[kBlockSize];
  };
  struct Prompt {
    std::vector<TokenId> tokens;
    std::vector<PrefixHash> chain;
    SequenceTables tables;
  };

  bool large() const { return num_pages_ >= 1'000'000; }
  PagePool& pool() { return pools_[0]; }
  PrefixIndex& index() { return const_cast<PrefixIndex&>(manager_->index()); }

  // `prepare` is not counted, `work` is: it touches `pages` pages.
  void Row(const char* what, double target, int64_t pages, const std::function<void()>& prepare,
           const std::function<void()>& work) {
    std::vector<double> ns;
    int64_t allocations = 0;
    for (int i = -1; i < repeats_; ++i) {  // the first warms up
      prepare();
      const int64_t before = g_allocations;
      const int64_t start = ThreadNs();
      work();
      const int64_t spent = ThreadNs() - start;
      if (i < 0) continue;
      allocations += g_allocations - before;
      ns.push_back(static_cast<double>(spent) / static_cast<double>(pages));
    }
    std::sort(ns.begin(), ns.end());
    const double median = ns[ns.size() / 2];
    const bool good = (target <= 0 || median < target) && allocations == 0;
    good_ = good_ && good;
    std::printf("%9d  %-44s %7.1f %7.1f %7.0f %6ld  %s\n", num_pages_, what, median, ns[0], target,
                static_cast<long>(allocations),
                target <= 0 ? ""
                : good      ? "ok"
                            : "MISSED");
    std::fflush(stdout);
  }

  // Every page sealed: prompts of 128 blocks, in chunks that take turns, so that the blocks of one
  // chain lie scattered, as they do after hours of serving.
  void Fill() {
    const int32_t num_prompts = num_pages_ / kChain;
    const RootId root = manager_->InternRoot("");
    for (int32_t i = 0; i < num_prompts; ++i) {
      Prompt p;
      for (int32_t n = 0; n < kChain * kBlockSize; ++n) {
        p.tokens.push_back(static_cast<TokenId>(rng_() % 50'000));
      }
      p.tables = manager_->NewTables(root);
      ExtendChain(p.tokens, kBlockSize, p.chain);
      prompts_.push_back(std::move(p));
    }
    std::vector<int32_t> turns;
    for (int32_t i = 0; i < num_prompts; ++i) turns.insert(turns.end(), kChain, i);
    std::shuffle(turns.begin(), turns.end(), rng_);
    std::vector<int32_t> computed(prompts_.size());
    std::vector<PageCopy> copies;
    for (const int32_t i : turns) {
      Prompt& p = prompts_[static_cast<size_t>(i)];
      int32_t& done = computed[static_cast<size_t>(i)];
      if (!manager_->Grow(p.tables, done, done + kBlockSize, copies)) std::abort();
      done += kBlockSize;
      manager_->Commit(p.tables, p.tokens, done, p.chain);
    }
  }

  // Books only: pools, index and manager, beside the prompts and tables of their users.
  void Memory() {
    Bench* const self = this;
    int64_t users = 0;
    for (const Prompt& p : self->prompts_) {
      users += static_cast<int64_t>(
          malloc_usable_size(const_cast<TokenId*>(p.tokens.data())) +
          malloc_usable_size(const_cast<PrefixHash*>(p.chain.data())) +
          malloc_usable_size(const_cast<PageId*>(p.tables.groups[0].ids().data())));
    }
    users += static_cast<int64_t>(malloc_usable_size(self->prompts_.data()));
    const double bytes = static_cast<double>(g_live_bytes - layout_bytes_ - users) / num_pages_;
    constexpr double kTarget = 224;
    const bool good = bytes < kTarget;
    good_ = good_ && good;
    std::printf("%9d  %-44s %7.1f %7s %7.0f %6s  %s\n", num_pages_, "bytes of books per page",
                bytes, "", kTarget, "", good ? "ok" : "MISSED");
  }

  void Lookups() {
    constexpr size_t kQueries = 20'000;
    std::vector<Block> queries(kQueries);
    for (Block& q : queries) {
      const Prompt& p = prompts_[rng_() % prompts_.size()];
      const size_t at = rng_() % kChain;
      q.parent = index().Ancestor(p.tables.cursor.node(), static_cast<int32_t>(at));
      q.parent_hash = at == 0 ? PrefixHash{} : p.chain[at - 1];
      std::copy_n(p.tokens.begin() + static_cast<int64_t>(at * kBlockSize), kBlockSize, q.tokens);
    }
    const auto nothing = [] {};
    Row("lookup of a block: hash, parent, tokens", large() ? 600 : 150, kQueries, nothing, [&] {
      for (const Block& q : queries) {
        const PrefixHash hash = HashPage(q.parent_hash, q.tokens);
        if (index().Find(q.parent, hash, q.tokens) == kNoNode) std::abort();
      }
    });
    // Prompts far from each other; each is looked up once per repeat.
    const size_t num_chains = std::min<size_t>(prompts_.size(), 400);
    std::vector<const Prompt*> order;
    for (const Prompt& p : prompts_) order.push_back(&p);
    std::vector<NodeId> path;
    path.reserve(kChain + 1);
    std::vector<PrefixHash> chain;
    chain.reserve(kChain);
    const NodeId root = index().RootNode(prompts_[0].tables.root);
    const auto shuffle = [&] { std::shuffle(order.begin(), order.end(), rng_); };
    const auto pages = static_cast<int64_t>(num_chains) * kChain;
    Row("chain of 128 blocks, FindPath", 250, pages, shuffle, [&] {
      for (size_t i = 0; i < num_chains; ++i) {
        index().FindPath(root, order[i]->chain, order[i]->tokens, kChain, path);
        if (path.size() != kChain + 1) std::abort();
      }
    });
    Row("chain of 128 blocks, hashes and FindPath", 250, pages, shuffle, [&] {
      for (size_t i = 0; i < num_chains; ++i) {
        chain.clear();
        ExtendChain(order[i]->tokens, kBlockSize, chain);
        index().FindPath(root, chain, order[i]->tokens, kChain, path);
        if (path.size() != kChain + 1) std::abort();
      }
    });
  }

  // Through the manager: what a request with a cached prompt costs at its admission.
  void Admissions() {
    const size_t n = std::min<size_t>(prompts_.size(), 400);
    std::vector<const Prompt*> order;
    for (const Prompt& p : prompts_) order.push_back(&p);
    std::vector<SequenceTables> hits;
    hits.reserve(n);
    Row(
        "prompt of 128 blocks, MatchPrefix", 0, static_cast<int64_t>(n) * (kChain - 1),
        [&] {
          hits.clear();
          std::shuffle(order.begin(), order.end(), rng_);
        },
        [&] {
          for (size_t i = 0; i < n; ++i) {
            const RootId root = manager_->InternRoot("");
            PrefixHit hit = manager_->MatchPrefix(root, order[i]->tokens, order[i]->chain);
            if (hit.num_tokens != (kChain - 1) * kBlockSize) std::abort();
            hits.push_back(std::move(hit.tables));
          }
        });
  }

  // Through the manager: whole tables, whose pages lie anywhere in the pool.
  void Tables() {
    const double target = large() ? 200 : 50;
    const size_t n = std::min<size_t>(prompts_.size(), 400);
    std::vector<size_t> order(prompts_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto shuffle = [&] { std::shuffle(order.begin(), order.end(), rng_); };
    std::vector<SequenceTables> forks;
    forks.reserve(n);
    const auto pages = static_cast<int64_t>(n) * kChain;
    const auto fork = [&] {
      for (size_t i = 0; i < n; ++i) {
        forks.push_back(manager_->Fork(prompts_[order[i]].tables));
      }
    };
    Row(
        "fork of a table, per page", target, pages,
        [&] {
          forks.clear();
          shuffle();
        },
        fork);
    Row(
        "a fork's end, per page", target, pages,
        [&] {
          forks.clear();
          shuffle();
          fork();
          std::shuffle(forks.begin(), forks.end(), rng_);
        },
        [&] { forks.clear(); });
  }

  void Pages() {
    const double target = large() ? 200 : 50;
    std::vector<PageId> all;
    for (const Prompt& p : prompts_) {
      for (const PageId page : p.tables.groups[0].ids()) all.push_back(page);
    }
    const auto shuffle = [&] { std::shuffle(all.begin(), all.end(), rng_); };
    const auto n = static_cast<int64_t>(all.size());
    Row("retain of a page in use", target, n, shuffle, [&] {
      for (const PageId page : all) pool().Retain(page);
    });
    // The rows above have retained each page once per repeat and once to warm up.
    for (int i = 0; i < repeats_ + 1; ++i) {
      for (const PageId page : all) pool().Release(page);
    }
    Row(
        "release of a shared page", target, n,
        [&] {
          shuffle();
          for (const PageId page : all) pool().Retain(page);
        },
        [&] {
          for (const PageId page : all) pool().Release(page);
        });
    // Nobody uses them any more: all are cached, in random order.
    std::shuffle(prompts_.begin(), prompts_.end(), rng_);
    for (Prompt& p : prompts_) p.tables = SequenceTables{};
    const auto retain_all = [&] {
      shuffle();
      for (const PageId page : all) pool().Retain(page);
      shuffle();
    };
    retain_all();
    Row(
        "release of a last reference: cached", target, n,
        [&, first = true]() mutable {
          if (!std::exchange(first, false)) retain_all();
        },
        [&] {
          for (const PageId page : all) pool().Release(page);
        });
    Row(
        "retain of a cached page", target, n,
        [&, first = true]() mutable {
          if (!std::exchange(first, false)) {
            shuffle();
            for (const PageId page : all) pool().Release(page);
          }
          shuffle();
        },
        [&] {
          for (const PageId page : all) pool().Retain(page);
        });
    for (const PageId page : all) pool().Release(page);
    // Half of them are evicted from the index, which drops what has become orphaned with them.
    std::vector<PageId> taken(all.size() / 2);
    const int64_t before = g_allocations;
    const int64_t start = ThreadNs();
    for (PageId& page : taken) {
      if (!pool().Take({&page, 1})) std::abort();
    }
    const int64_t spent = ThreadNs() - start;
    std::printf("%9d  %-44s %7.1f %7s %7s %6ld\n", num_pages_, "take with eviction, once",
                static_cast<double>(spent) / static_cast<double>(taken.size()), "", "",
                static_cast<long>(g_allocations - before));
    for (const PageId page : taken) pool().Release(page);
    manager_->Flush();
    // Blank pages, in random order.
    std::vector<PageId> pages(static_cast<size_t>(num_pages_));
    if (!pool().Take(pages)) std::abort();
    const auto release_all = [&] {
      std::shuffle(pages.begin(), pages.end(), rng_);
      for (const PageId page : pages) pool().Release(page);
    };
    Row("take of a page", target, num_pages_, release_all, [&] {
      for (PageId& page : pages) {
        if (!pool().Take({&page, 1})) std::abort();
      }
    });
    Row(
        "release of a last reference: blank", target, num_pages_,
        [&, first = true]() mutable {
          if (!std::exchange(first, false) && !pool().Take(pages)) std::abort();
          std::shuffle(pages.begin(), pages.end(), rng_);
        },
        [&] {
          for (const PageId page : pages) pool().Release(page);
        });
  }

  const int32_t num_pages_;
  const int repeats_;
  std::mt19937 rng_;
  CacheLayout layout_;
  int64_t layout_bytes_ = 0;
  std::vector<PagePool> pools_;
  std::optional<BlockManager> manager_;
  std::vector<Prompt> prompts_;
  bool good_ = true;
};

// One step of 64 sequences, as the engine does it: a token each.
bool DecodeSteps(int repeats) {
  constexpr int32_t kSeqs = 64;
  constexpr int32_t kSteps = 256;
  const CacheLayout layout =
      MakeCacheLayout(1, kBlockSize,
                      {{.layer = 0, .key_bytes_per_page = 64, .value_bytes_per_page = 64}})
          .value();
  std::vector<PagePool> pools;
  pools.emplace_back(20'000, kBlockSize);
  BlockManager manager(layout, pools);
  const RootId root = manager.InternRoot("");
  std::mt19937 rng(2);
  std::vector<double> ns;
  int64_t allocations = 0;
  for (int r = -1; r < repeats; ++r) {
    std::vector<std::vector<TokenId>> tokens(kSeqs);
    std::vector<std::vector<PrefixHash>> chains(kSeqs);
    std::vector<SequenceTables> tables;
    std::vector<int64_t> slots(1);
    std::vector<PageCopy> copies;
    copies.reserve(kSeqs);
    for (int32_t i = 0; i < kSeqs; ++i) {
      const auto s = static_cast<size_t>(i);
      tokens[s].reserve(2048);
      chains[s].reserve(256);
      for (int32_t n = 0; n < 1000 + kSteps; ++n) {
        tokens[s].push_back(static_cast<TokenId>(rng() % 50'000));
      }
      tables.push_back(manager.NewTables(root));
      if (!manager.Grow(tables[s], 0, 1000 + kSteps, copies)) std::abort();  // rows get their size
      manager.Truncate(tables[s], 0);
      if (!manager.Grow(tables[s], 0, 1000, copies)) std::abort();
      manager.Commit(tables[s], tokens[s], 1000, chains[s]);
    }
    const int64_t before = g_allocations;
    const int64_t start = ThreadNs();
    for (int32_t n = 1000; n < 1000 + kSteps; ++n) {
      for (size_t s = 0; s < kSeqs; ++s) {
        if (!manager.Grow(tables[s], n, n + 1, copies)) std::abort();
        manager.Announce(tables[s], tokens[s], n + 1, chains[s]);
      }
      for (size_t s = 0; s < kSeqs; ++s) manager.FillWriteSlots(tables[s], 0, n, slots);
      manager.Publish();
      for (size_t s = 0; s < kSeqs; ++s) manager.Commit(tables[s], tokens[s], n + 1, chains[s]);
    }
    const int64_t spent = ThreadNs() - start;
    if (r < 0) continue;
    allocations += g_allocations - before;
    ns.push_back(static_cast<double>(spent) / (kSteps * kSeqs));
  }
  std::sort(ns.begin(), ns.end());
  std::printf("%9d  %-44s %7.1f %7.1f %7s %6ld\n", 20'000,
              "decode: a sequence's step, 64 at a time", ns[ns.size() / 2], ns[0], "",
              static_cast<long>(allocations));
  return allocations == 0;
}

int Main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 7;
  std::printf("%s\nblock_size %d, one full group, %d repeats, CPU time of one thread\n\n",
              kernels::DescribeCpu().c_str(), kBlockSize, repeats);
  std::printf(
      "    pages  what                                          median    best  target    new\n");
  bool good = true;
  for (const int32_t num_pages : {10'000, 1'000'000}) {
    good = Bench(num_pages, repeats).Run() && good;
  }
  good = DecodeSteps(repeats) && good;
  return good ? 0 : 1;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) { return quire::Main(argc, argv); }
