// Prefixes that sequences share are read once: the same bits as if each had read its own copy, and
// the plan says that it happened. Groups against a brute-force reading of their definition.
#include <gtest/gtest.h>

#include <set>

#include "tests/support/attention_rig.h"

namespace quire::kernels {
namespace {

struct Model {
  const char* name;
  AttentionShape shape;
  bool sinks = false;
  bool alibi = false;
};

AttentionShape Bf16(AttentionShape s) {
  s.kv_dtype = s.dot = DType::kBF16;
  return s;
}
AttentionShape Softcap(AttentionShape s) {
  s.logit_softcap = 20.0f;
  return s;
}

const Model kModels[] = {
    {"gqa3", Shape(9, 3, 64)},
    {"sinks_softcap", Softcap(Shape(4, 2, 40)), true},
    {"mqa_alibi", Shape(7, 1, 48, 20), false, true},
    {"bf16_gqa3", Bf16(Shape(9, 3, 64))},
    {"bf16_alibi_sinks", Bf16(Shape(8, 2, 41, 24)), true, true},
};

class Cascade : public testing::TestWithParam<Model> {
 protected:
  const AttentionShape& shape() const { return GetParam().shape; }
  Extras extras() const {
    Extras x;
    for (int32_t h = 0; h < shape().num_heads; ++h) {
      if (GetParam().sinks) x.sinks.push_back(0.5f * static_cast<float>(h) - 1.0f);
      if (GetParam().alibi) x.slopes.push_back(std::exp2(-static_cast<float>(h + 1)));
    }
    return x;
  }
  // A sequence that begins with the first `n` tokens of `root`.
  DenseSeq Child(const DenseSeq& root, int32_t n, int32_t len, uint32_t seed) const {
    DenseSeq seq = RandomSeq(shape(), len, seed);
    std::copy_n(root.k.begin(), n * shape().num_kv_heads * shape().head_dim, seq.k.begin());
    std::copy_n(root.v.begin(), n * shape().num_kv_heads * shape().head_dim_v, seq.v.begin());
    return seq;
  }
};
INSTANTIATE_TEST_SUITE_P(All, Cascade, testing::ValuesIn(kModels),
                         [](const auto& param) { return param.param.name; });

TEST_P(Cascade, SameBitsAsCopies) {
  constexpr int32_t kShared = 640;  // two splits and a half
  const DenseSeq a = RandomSeq(shape(), 1400, 1);
  const DenseSeq b = RandomSeq(shape(), 700, 2);
  // Two families, mixed; one sequence with a family's tokens in pages of its own, a long prompt of
  // the first family, and strangers.
  const std::vector<DenseSeq> seqs = {
      a,
      b,
      Child(a, kShared, 641, 3),
      RandomSeq(shape(), 900, 4),
      Child(b, kShared, 700, 5),
      Child(a, kShared, 1300, 6),
      Child(a, kShared, 690, 7),
      Child(a, kShared, 900, 8),
      RandomSeq(shape(), 3, 9),
  };
  const std::vector<SeqRun> runs = {{0, 1, 1400}, {1, 3, 700},   {2, 1, 641},
                                    {3, 1, 900},  {4, 1, 700},   {5, 2, 1300},
                                    {6, 1, 690},  {7, 200, 900}, {8, 2, 3}};
  for (const int32_t page_size : {8, 16, 64, 128}) {
    const AttentionRig::Options options{.page_size = page_size};
    const AttentionRig copies(shape(), seqs, options);
    AttentionRig shared(shape(), seqs, options);
    const auto pages = static_cast<size_t>(kShared / page_size);
    for (const size_t seq : {2, 5, 7}) shared.SharePages(seq, 0, pages);
    shared.SharePages(4, 1, pages);
    for (const int32_t threads : {1, 2, 4}) {
      ThreadPool pool(threads);
      const AttentionBackend& flash = **FindAttention("flash");
      const AttentionResult want = copies.Run(flash, runs, pool, extras());
      const AttentionResult got = shared.Run(flash, runs, pool, extras());
      EXPECT_EQ(want.num_shared, 0u);
      // Rows of 0, 2 and 5, and of 1 and 4; the prompt of 200 reads for itself.
      EXPECT_EQ(got.num_shared, 4u + 4u);
      EXPECT_TRUE(SameBits(got.out, want.out)) << page_size << " threads=" << threads;
      EXPECT_TRUE(SameBits(got.lse, want.lse)) << page_size << " threads=" << threads;
      // A row of a group has the bits that it has alone.
      const AttentionResult alone = shared.Run(flash, {runs[5]}, pool, extras());
      const size_t row = static_cast<size_t>(shape().num_heads) * shape().head_dim_v;
      const auto at = got.out.begin() + static_cast<int64_t>(7 * row);
      EXPECT_EQ(alone.num_shared, 0u);
      EXPECT_TRUE(SameBits(alone.out, {at, at + static_cast<int64_t>(2 * row)}));
    }
  }
}

// 64 sequences behind one prompt of 512 tokens: all rows are served by shared reads.
TEST_P(Cascade, AFullHouseBehindOnePrompt) {
  std::vector<DenseSeq> seqs = {RandomSeq(shape(), 530, 1)};
  std::vector<SeqRun> runs = {{0, 1, 530}};
  for (int32_t i = 1; i < 64; ++i) {
    seqs.push_back(Child(seqs[0], 512, 513 + i % 40, static_cast<uint32_t>(10 + i)));
    runs.push_back({i, 1, 513 + i % 40});
  }
  const AttentionRig copies(shape(), seqs, {});
  AttentionRig shared(shape(), seqs, {});
  for (size_t seq = 1; seq < 64; ++seq) shared.SharePages(seq, 0, 32);
  ThreadPool pool(2);
  const AttentionBackend& flash = **FindAttention("flash");
  const AttentionResult want = copies.Run(flash, runs, pool, extras());
  const AttentionResult got = shared.Run(flash, runs, pool, extras());
  EXPECT_EQ(got.num_shared, 64u);
  EXPECT_TRUE(SameBits(got.out, want.out));
  EXPECT_TRUE(SameBits(got.lse, want.lse));
}

TEST(CascadePlan, WindowsShareNothing) {
  for (const bool chunk : {false, true}) {
    AttentionShape s = Shape(4, 2, 32);
    (chunk ? s.chunk : s.window) = 300;
    const DenseSeq seq = RandomSeq(s, 700, 1);
    AttentionRig rig(s, {seq, seq}, {});
    const AttentionBackend& flash = **FindAttention("flash");
    ThreadPool pool(1);
    const std::vector<SeqRun> runs = {{0, 1, 700}, {1, 1, 700}};
    const AttentionResult want = rig.Run(flash, runs, pool);
    rig.SharePages(1, 0, 40);
    const AttentionResult got = rig.Run(flash, runs, pool);
    EXPECT_EQ(got.num_shared, 0u);
    EXPECT_TRUE(SameBits(got.out, want.out));
  }
}

// The workspace is planned before anybody knows which sequences will share.
TEST(CascadePlan, WorkspaceDependsOnTheShapeAlone) {
  const AttentionBackend& flash = **FindAttention("flash");
  for (const int32_t num_seqs : {1, 2, 2000}) {
    const std::vector<int32_t> seqlens(static_cast<size_t>(num_seqs), 600);
    std::vector<int32_t> cu(1, 0);
    std::vector<int32_t> table;
    for (int32_t i = 0; i < num_seqs; ++i) {
      cu.push_back(i + 1);
      for (int32_t p = 0; p < 38; ++p) table.push_back(p < 32 ? p + 1 : 100 + i * 6 + p);
    }
    const AttentionMetadata m{.num_seqs = num_seqs,
                              .num_tokens = num_seqs,
                              .page_size = 16,
                              .max_pages_per_seq = 38,
                              .cu_seqlens_q = cu,
                              .seqlens_k = seqlens,
                              .read_table = table};
    for (const AttentionShape& s : {Shape(9, 3, 64), Bf16(Shape(32, 8, 128))}) {
      AttentionPlan one, plan;
      AttentionMetadata first = m;
      first.num_seqs = first.num_tokens = 1;
      flash.plan(first, s, 2, one);
      flash.plan(m, s, 2, plan);
      EXPECT_EQ(plan.workspace_bytes, one.workspace_bytes);
      for (const SharedRow& row : plan.shared_rows) {
        EXPECT_LT(static_cast<size_t>(row.prefix) * 4, plan.workspace_bytes);
      }
    }
  }
}

// Random forests of prefixes: groups are disjoint, lie on equal pages, leave every query behind
// them, and save as much as the best prefix of their bucket does.
TEST(PrefixGroups, AreWhatTheyClaim) {
  std::mt19937 rng(5);
  int found = 0;
  for (int round = 0; round < 300; ++round) {
    const int32_t page_size = 16 << rng() % 4;
    const int32_t per_split = kKeySplit / page_size;
    const int32_t num_seqs = 1 + static_cast<int32_t>(rng() % 20);
    const int32_t max_pages = 4 * per_split;
    std::vector<int32_t> table, seqlens, cu{0};
    int32_t next = 1000;
    for (int32_t i = 0; i < num_seqs; ++i) {
      const int32_t root = 1 + static_cast<int32_t>(rng() % 3) * 200;
      const auto shared = static_cast<int32_t>(rng() % static_cast<uint32_t>(max_pages + 1));
      for (int32_t p = 0; p < max_pages; ++p) table.push_back(p < shared ? root + p : next++);
      const int32_t queries = 1 + static_cast<int32_t>(rng() % 3);
      cu.push_back(cu.back() + queries);
      seqlens.push_back(queries + static_cast<int32_t>(rng() % (4 * kKeySplit - 3)));
    }
    const AttentionMetadata m{.num_seqs = num_seqs,
                              .num_tokens = cu.back(),
                              .page_size = page_size,
                              .max_pages_per_seq = max_pages,
                              .cu_seqlens_q = cu,
                              .seqlens_k = seqlens,
                              .read_table = table};
    PrefixGroups groups;
    FindPrefixGroups(m, 2, groups);
    std::set<int32_t> seen;
    const auto page = [&](int32_t seq, int32_t p) {
      return table[static_cast<size_t>(seq * max_pages + p)];
    };
    for (const PrefixGroup& g : groups.groups) {
      ASSERT_GE(g.count, 2);
      ASSERT_GT(g.num_keys, 0);
      ASSERT_EQ(g.num_keys % kKeySplit, 0);
      for (int32_t i = 0; i < g.count; ++i) {
        const int32_t seq = groups.members[static_cast<size_t>(g.first + i)];
        EXPECT_TRUE(seen.insert(seq).second) << "in two groups";
        const int32_t queries = cu[static_cast<size_t>(seq) + 1] - cu[static_cast<size_t>(seq)];
        EXPECT_LE(queries, 2);
        EXPECT_LE(g.num_keys, seqlens[static_cast<size_t>(seq)] - queries);
        const int32_t first = groups.members[static_cast<size_t>(g.first)];
        for (int32_t p = 0; p < g.num_keys / page_size; ++p) {
          ASSERT_EQ(page(seq, p), page(first, p));
        }
      }
      ++found;
      // No other number of splits would have saved more, among those that share the first one.
      const int32_t root = groups.members[static_cast<size_t>(g.first)];
      for (int32_t splits = 1; splits <= 4; ++splits) {
        int64_t best = 0;
        for (int32_t like = 0; like < num_seqs; ++like) {
          int64_t members = 0;
          for (int32_t seq = 0; seq < num_seqs; ++seq) {
            const int32_t queries = cu[static_cast<size_t>(seq) + 1] - cu[static_cast<size_t>(seq)];
            bool in = queries <= 2 && page(seq, 0) == page(root, 0) &&
                      seqlens[static_cast<size_t>(seq)] - queries >= splits * kKeySplit;
            for (int32_t p = 0; p < splits * per_split && in; ++p) {
              in = page(seq, p) == page(like, p);
            }
            members += in ? 1 : 0;
          }
          best = std::max(best, (members - 1) * splits);
        }
        EXPECT_GE(int64_t{g.count - 1} * g.num_keys / kKeySplit, best);
      }
    }
  }
  EXPECT_GT(found, 100);
}

}  // namespace
}  // namespace quire::kernels
