// Contract C1 for attention, bit for bit: a row's output and lse do not depend on the batch around
// it, on how its prompt was cut, on threads, page size, instruction set, or on bytes that it may
// not see.
#include <gtest/gtest.h>

#include "kernels/cpu_isa.h"
#include "tests/support/attention_rig.h"

namespace quire::kernels {
namespace {

struct Model {
  const char* name;
  AttentionShape shape;
  bool sinks = false;
  bool alibi = false;
};

AttentionShape With(AttentionShape s, int32_t window, int32_t chunk, float softcap = 0.0f) {
  s.window = window;
  s.chunk = chunk;
  s.logit_softcap = softcap;
  return s;
}

// Products in bf16.
AttentionShape Bf16(AttentionShape s) {
  s.kv_dtype = s.dot = DType::kBF16;
  return s;
}

const Model kModels[] = {
    {"gqa3", Shape(9, 3, 64)},
    {"window_sinks", With(Shape(4, 2, 80), 100, 0), true},
    {"chunk_softcap", With(Shape(4, 4, 40), 0, 96, 20.0f)},
    {"mqa_alibi_narrow", Shape(7, 1, 48, 20), false, true},
    {"bf16_gqa3", Bf16(Shape(9, 3, 64))},
    {"bf16_window_sinks", Bf16(With(Shape(4, 2, 80), 100, 0)), true},
    {"bf16_chunk_softcap", Bf16(With(Shape(4, 4, 41, 72), 0, 96, 20.0f))},
    {"bf16_mqa_alibi_narrow", Bf16(Shape(7, 1, 33, 20)), false, true},
};

Extras ExtrasOf(const Model& m) {
  Extras x;
  for (int32_t h = 0; h < m.shape.num_heads; ++h) {
    if (m.sinks) x.sinks.push_back(0.5f * static_cast<float>(h) - 1.0f);
    if (m.alibi) x.slopes.push_back(std::exp2(-static_cast<float>(h + 1)));
  }
  return x;
}

class Exact : public testing::TestWithParam<std::tuple<std::string, Model>> {
 protected:
  const AttentionBackend& backend() const { return **FindAttention(std::get<0>(GetParam())); }
  const Model& model() const { return std::get<1>(GetParam()); }
  void TearDown() override { ASSERT_TRUE(SelectIsa("auto").ok()); }

  // Rows [begin, end) of a result, bits compared with `part`'s rows.
  void ExpectRows(const AttentionResult& whole, int32_t begin, const AttentionResult& part,
                  const std::string& what) {
    const AttentionShape& s = model().shape;
    const size_t row = static_cast<size_t>(s.num_heads) * s.head_dim_v;
    const auto out = whole.out.begin() + static_cast<int64_t>(static_cast<size_t>(begin) * row);
    const auto lse = whole.lse.begin() + int64_t{begin} * s.num_heads;
    EXPECT_TRUE(SameBits(part.out, {out, out + static_cast<int64_t>(part.out.size())})) << what;
    EXPECT_TRUE(SameBits(part.lse, {lse, lse + static_cast<int64_t>(part.lse.size())})) << what;
  }
};

constexpr int32_t kLong = 1100;  // three splits of keys

TEST_P(Exact, ChunksThreadsAndPageSizes) {
  const Extras x = ExtrasOf(model());
  const std::vector<DenseSeq> seqs = {RandomSeq(model().shape, kLong, 7)};
  ThreadPool one(1);
  const AttentionResult want = AttentionRig(model().shape, seqs, {.page_size = 16})
                                   .Run(backend(), {{0, kLong, kLong}}, one, x);
  for (const int32_t page_size : {8, 16, 32, 64, 128}) {
    const AttentionRig rig(model().shape, seqs,
                           {.page_size = page_size, .seed = static_cast<uint32_t>(page_size)});
    for (const int32_t threads : {1, 2, 3, 4}) {
      ThreadPool pool(threads);
      size_t merges = 0;
      // Chunks of 1 and 7 over the last part, where all three splits are in play.
      for (const auto& [chunk, from] :
           {std::pair{1, kLong - 5}, {7, kLong - 21}, {64, kLong - 64}, {kLong, 0}}) {
        if (chunk == kLong && page_size != 8 * threads) continue;  // the slow one, a few times
        for (int32_t begin = from; begin < kLong; begin += chunk) {
          const int32_t end = std::min(kLong, begin + chunk);
          const AttentionResult got = rig.Run(backend(), {{0, end - begin, end}}, pool, x);
          merges += got.num_merges;
          ExpectRows(want, begin, got,
                     fmt::format("page_size={} threads={} chunk={} at {}", page_size, threads,
                                 chunk, begin));
        }
      }
      const bool sees_all = model().shape.window == 0 && model().shape.chunk == 0;
      if (backend().name == "flash" && sees_all && threads > 1) {
        EXPECT_GT(merges, 0u) << "keys were never split";
      }
    }
  }
}

TEST_P(Exact, EveryChunkBorderOfAShortPrompt) {
  const Extras x = ExtrasOf(model());
  constexpr int32_t kLen = 150;
  const AttentionRig rig(model().shape, {RandomSeq(model().shape, kLen, 8)}, {.page_size = 16});
  ThreadPool pool(2);
  const AttentionResult want = rig.Run(backend(), {{0, kLen, kLen}}, pool, x);
  for (const int32_t chunk : {1, 7, 16, 64}) {
    for (int32_t begin = 0; begin < kLen; begin += chunk) {
      const int32_t end = std::min(kLen, begin + chunk);
      ExpectRows(want, begin, rig.Run(backend(), {{0, end - begin, end}}, pool, x),
                 fmt::format("chunk={} at {}", chunk, begin));
    }
  }
}

TEST_P(Exact, AloneOrInABatch) {
  const Extras x = ExtrasOf(model());
  const int32_t lens[] = {1, 30, 700, 64, 130, 17};
  std::vector<DenseSeq> seqs;
  std::vector<SeqRun> runs;
  for (const int32_t len : lens) {
    const auto i = static_cast<int32_t>(seqs.size());
    seqs.push_back(RandomSeq(model().shape, len, static_cast<uint32_t>(20 + i)));
    runs.push_back({.seq = i, .num_q = i % 2 == 0 ? 1 : len - len / 3, .num_k = len});
  }
  const AttentionRig rig(model().shape, seqs, {.page_size = 16});
  for (const int32_t threads : {1, 3}) {
    ThreadPool pool(threads);
    const AttentionResult batch = rig.Run(backend(), runs, pool, x);
    int32_t row = 0;
    for (const SeqRun& run : runs) {
      ThreadPool one(1);
      ExpectRows(batch, row, rig.Run(backend(), {run}, one, x), fmt::format("seq {}", run.seq));
      row += run.num_q;
    }
  }
}

TEST_P(Exact, InstructionSets) {
  const Extras x = ExtrasOf(model());
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    AttentionShape shape = model().shape;
    shape.kv_dtype = type;
    if (!backend().supports(shape, 16).ok()) continue;  // bf16 products of another cache
    const std::vector<DenseSeq> seqs = {RandomSeq(shape, 600, 9), RandomSeq(shape, 90, 10)};
    ThreadPool pool(1);
    for (const int32_t page_size : {8, 16, 64}) {
      const AttentionRig rig(shape, seqs, {.page_size = page_size});
      ASSERT_TRUE(SelectIsa("portable").ok());
      const AttentionResult want = rig.Run(backend(), {{0, 9, 600}, {1, 40, 90}}, pool, x);
      for (const char* isa : {"avx2", "avx512", "amx"}) {
        if (!SelectIsa(isa).ok()) {
          std::printf("[ not run here ] %s\n", isa);
          continue;
        }
        const AttentionResult got = rig.Run(backend(), {{0, 9, 600}, {1, 40, 90}}, pool, x);
        EXPECT_TRUE(SameBits(got.out, want.out)) << isa << " " << NameOf(type);
        EXPECT_TRUE(SameBits(got.lse, want.lse)) << isa << " " << NameOf(type);
      }
    }
  }
}

// HARD-CASES R07: what an earlier request left in the tail of a page, and in pages of others.
TEST_P(Exact, UnusedSlots) {
  const Extras x = ExtrasOf(model());
  for (const DType type : {DType::kF32, DType::kBF16}) {
    AttentionShape shape = model().shape;
    shape.kv_dtype = type;
    if (!backend().supports(shape, 16).ok()) continue;  // bf16 products of another cache
    const std::vector<DenseSeq> seqs = {RandomSeq(shape, 131, 11), RandomSeq(shape, 5, 12)};
    const std::vector<SeqRun> runs = {{0, 131, 131}, {1, 1, 5}};
    ThreadPool pool(2);
    for (const int32_t page_size : {8, 64, 128}) {
      const auto run = [&](float fill) {
        return AttentionRig(shape, seqs, {.page_size = page_size, .fill = fill})
            .Run(backend(), runs, pool, x);
      };
      const AttentionResult want = run(0.0f);
      for (const float fill : {NAN, 1e38f, -INFINITY}) {
        const AttentionResult got = run(fill);
        EXPECT_TRUE(SameBits(got.out, want.out)) << fill;
        EXPECT_TRUE(SameBits(got.lse, want.lse)) << fill;
      }
    }
  }
}

// A later token's key and value are not seen, be they NaN: its own row breaks, no other.
TEST_P(Exact, ABadTokenReachesNoEarlierRow) {
  const Extras x = ExtrasOf(model());
  constexpr int32_t kLen = 90;
  constexpr int32_t kBad = 70;
  DenseSeq seq = RandomSeq(model().shape, kLen, 13);
  ThreadPool pool(2);
  const AttentionResult want =
      AttentionRig(model().shape, {seq}, {}).Run(backend(), {{0, kLen, kLen}}, pool, x);
  const size_t k_row = static_cast<size_t>(model().shape.num_kv_heads) * model().shape.head_dim;
  const size_t v_row = static_cast<size_t>(model().shape.num_kv_heads) * model().shape.head_dim_v;
  std::fill_n(&seq.k[kBad * k_row], k_row, NAN);
  std::fill_n(&seq.v[kBad * v_row], v_row, NAN);
  const AttentionResult got =
      AttentionRig(model().shape, {seq}, {}).Run(backend(), {{0, kLen, kLen}}, pool, x);
  const size_t row = static_cast<size_t>(model().shape.num_heads) * model().shape.head_dim_v;
  const std::vector<float> before(got.out.begin(), got.out.begin() + kBad * static_cast<int>(row));
  EXPECT_TRUE(
      SameBits(before, {want.out.begin(), want.out.begin() + kBad * static_cast<int>(row)}));
  EXPECT_TRUE(std::isnan(got.out[kBad * row])) << "the bad token itself was not seen";
}

std::vector<std::tuple<std::string, Model>> Supported() {
  std::vector<std::tuple<std::string, Model>> pairs;
  for (const std::string& name : BackendNames()) {
    for (const Model& m : kModels) {
      if ((*FindAttention(name))->supports(m.shape, 16).ok()) pairs.emplace_back(name, m);
    }
  }
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(All, Exact, testing::ValuesIn(Supported()), [](const auto& param) {
  return std::get<0>(param.param) + "_" + std::get<1>(param.param).name;
});

}  // namespace
}  // namespace quire::kernels
