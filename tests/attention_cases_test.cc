// Attention where others went wrong: the cases of HARD-CASES that a kernel alone can show (R01,
// R03, R04, R06, D07, D09, K09) and section 7 of BACKGROUND (7.4, 7.5, 7.9, 7.14).
#include <gtest/gtest.h>

#include "tests/support/attention_rig.h"

namespace quire::kernels {
namespace {

constexpr double kTolerance = 2e-6;  // of the recorded cases

class Cases : public testing::TestWithParam<std::string> {
 protected:
  const AttentionBackend& backend() const { return **FindAttention(GetParam()); }
  ThreadPool pool_{2};
};
INSTANTIATE_TEST_SUITE_P(All, Cases, testing::ValuesIn(BackendNames()),
                         [](const auto& param) { return param.param; });

std::vector<float> Rows(const std::vector<float>& x, size_t row, size_t begin, size_t end) {
  return {x.begin() + static_cast<int64_t>(begin * row),
          x.begin() + static_cast<int64_t>(end * row)};
}

// R01: rows without a visible key give 0 and -inf; valid rows beside them keep their bits.
TEST_P(Cases, R01_RowsWithNoVisibleKey) {
  for (const bool sinks : {false, true}) {
    AttentionShape s = Shape(6, 2, 64);
    Extras x;
    if (sinks) x.sinks.assign(6, 0.5f);
    const std::vector<DenseSeq> seqs = {RandomSeq(s, 5, 1), RandomSeq(s, 1, 2),
                                        RandomSeq(s, 40, 3)};
    for (const int32_t window : {0, 1, 3}) {
      s.window = window;
      const AttentionRig rig(s, seqs, {.page_size = 8});
      // 9 queries against 5 keys: the first 4 see nothing. 7 queries against no key at all.
      const AttentionResult got = rig.Run(backend(), {{0, 9, 5}, {1, 7, 0}, {2, 40, 40}}, pool_, x);
      const size_t row = 6 * 64;
      for (size_t i = 0; i < 16; ++i) {
        const bool empty = i < 4 || i >= 9;
        for (size_t h = 0; h < 6; ++h) {
          EXPECT_EQ(std::isinf(got.lse[i * 6 + h]) && got.lse[i * 6 + h] < 0, empty) << i;
        }
        for (size_t d = 0; d < row && empty; ++d) ASSERT_EQ(got.out[i * row + d], 0.0f) << i;
      }
      const AttentionResult valid = rig.Run(backend(), {{0, 5, 5}}, pool_, x);
      EXPECT_TRUE(SameBits(Rows(got.out, row, 4, 9), valid.out));
      EXPECT_TRUE(SameBits(Rows(got.lse, 6, 4, 9), valid.lse));
      const AttentionResult other = rig.Run(backend(), {{2, 40, 40}}, pool_, x);
      EXPECT_TRUE(SameBits(Rows(got.out, row, 16, 56), other.out));
      EXPECT_LE(MaxError(valid, {Dense(s, seqs[0], 5, 5, x)}), kTolerance);
    }
  }
}

// R03: pages whose addresses lie beyond 2^31 and 2^32 elements read the same as low ones.
TEST_P(Cases, R03_HighPageIds) {
  const AttentionShape s = Shape(4, 2, 32);
  const std::vector<DenseSeq> seqs = {RandomSeq(s, 77, 1)};
  const AttentionRig low(s, seqs, {.page_size = 16});
  const AttentionRig high(s, seqs,
                          {.page_size = 16, .first_page = 1000000, .min_page_stride = 32768});
  ASSERT_GT(high.stride() * high.table(0)[0], (int64_t{1} << 32) * 4);
  // Sequences whose pages lie on both sides of a limit of 32-bit offsets, in bytes and in elements,
  // for each element type.
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8}) {
    AttentionShape t = s;
    t.kv_dtype = type;
    const std::vector<DenseSeq> seq = {RandomSeq(t, 77, 2)};
    for (const int64_t limit : {int64_t{1} << 31, int64_t{1} << 32, int64_t{1} << 34}) {
      constexpr int64_t kStride = 1 << 20;
      const AttentionRig rig(t, seq,
                             {.page_size = 16,
                              .first_page = static_cast<int32_t>(limit / kStride) - 2,
                              .min_page_stride = kStride});
      const auto [least, most] = std::minmax_element(rig.table(0).begin(), rig.table(0).end());
      ASSERT_LT(*least * rig.stride(), limit);
      ASSERT_GT(*most * rig.stride(), limit);
      EXPECT_LE(MaxError(rig.Run(backend(), {{0, 5, 77}}, pool_), {Dense(t, seq[0], 5, 77)}),
                kTolerance)
          << NameOf(type) << " " << limit;
    }
  }
  for (const int32_t num_q : {1, 30}) {
    const AttentionResult a = low.Run(backend(), {{0, num_q, 77}}, pool_);
    const AttentionResult b = high.Run(backend(), {{0, num_q, 77}}, pool_);
    EXPECT_TRUE(SameBits(a.out, b.out));
    EXPECT_LE(MaxError(b, {Dense(s, seqs[0], num_q, 77)}), kTolerance);
  }
}

// R04: head counts that do not divide are refused by name; odd ratios work.
TEST_P(Cases, R04_HeadCounts) {
  for (const auto& [heads, kv] : {std::pair{3, 2}, {33, 2}, {5, 3}, {4, 0}}) {
    const absl::Status status = backend().supports(Shape(heads, kv, 16), 16);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << heads << "," << kv;
    EXPECT_NE(Message(status).find(fmt::format("num_heads={}", heads)), std::string::npos);
    EXPECT_NE(Message(status).find(fmt::format("num_kv_heads={}", kv)), std::string::npos);
  }
  for (const auto& [heads, kv] :
       {std::pair{6, 2}, {7, 7}, {7, 1}, {12, 4}, {14, 2}, {48, 16}, {64, 1}, {100, 2}}) {
    const AttentionShape s = Shape(heads, kv, 16);
    ASSERT_TRUE(backend().supports(s, 16).ok());
    const DenseSeq seq = RandomSeq(s, 21, 5);
    const AttentionRig rig(s, {seq}, {});
    EXPECT_LE(MaxError(rig.Run(backend(), {{0, 6, 21}}, pool_), {Dense(s, seq, 6, 21)}), kTolerance)
        << heads << "," << kv;
  }
}

TEST_P(Cases, OtherShapesAreRefused) {
  const auto code = [&](const AttentionShape& s, int32_t page_size) {
    return backend().supports(s, page_size).code();
  };
  EXPECT_EQ(code(Shape(2, 2, 16), 12), absl::StatusCode::kInvalidArgument);
  AttentionShape s = Shape(2, 2, 16);
  s.window = 4;
  s.chunk = 4;
  EXPECT_EQ(code(s, 16), absl::StatusCode::kInvalidArgument);
  s = Shape(2, 2, 16);
  s.kv_dtype = DType::kQ4_0;
  EXPECT_EQ(code(s, 16), absl::StatusCode::kUnimplemented);
}

// R06: every sequence of the batch at its maximum, tables exactly as long as needed.
TEST_P(Cases, R06_FullTables) {
  const AttentionShape s = Shape(3, 1, 16);
  std::vector<DenseSeq> seqs;
  std::vector<SeqRun> runs;
  for (int32_t i = 0; i < 32; ++i) {
    seqs.push_back(RandomSeq(s, 256, static_cast<uint32_t>(i)));
    runs.push_back({i, 1, 256});
  }
  const AttentionResult want = AttentionRig(s, seqs, {.page_size = 8}).Run(backend(), runs, pool_);
  for (const int32_t page_size : {16, 64, 128}) {
    const AttentionResult got =
        AttentionRig(s, seqs, {.page_size = page_size}).Run(backend(), runs, pool_);
    EXPECT_TRUE(SameBits(got.out, want.out)) << page_size;
  }
}

// D07 and 7.5: the window is a row's own, whatever chunk it came in.
TEST_P(Cases, D07_WindowPerRow) {
  AttentionShape s = Shape(4, 2, 32);
  s.window = 8;
  const DenseSeq seq = RandomSeq(s, 40, 1);
  const AttentionRig rig(s, {seq}, {.page_size = 8});
  const AttentionResult whole = rig.Run(backend(), {{0, 40, 40}}, pool_);
  EXPECT_LE(MaxError(whole, {Dense(s, seq, 40, 40)}), kTolerance);
  for (const int32_t chunk : {1, 4, 8, 13, 40}) {
    for (int32_t begin = 0; begin < 40; begin += chunk) {
      const int32_t end = std::min(40, begin + chunk);
      const AttentionResult got = rig.Run(backend(), {{0, end - begin, end}}, pool_);
      EXPECT_TRUE(SameBits(
          got.out, Rows(whole.out, 4 * 32, static_cast<size_t>(begin), static_cast<size_t>(end))))
          << chunk << " at " << begin;
    }
  }
  // A window shifted by one is told apart.
  for (const int32_t wrong : {7, 9}) {
    s.window = wrong;
    EXPECT_GT(MaxError(whole, {Dense(s, seq, 40, 40)}), 1e-2) << wrong;
  }
}

// D09 and 7.9: prompts around the window's length.
TEST_P(Cases, D09_PromptsAroundTheWindow) {
  AttentionShape s = Shape(2, 1, 64);
  s.window = 32;
  for (const int32_t len : {31, 32, 33, 34, 63, 64, 65, 200}) {
    const DenseSeq seq = RandomSeq(s, len, static_cast<uint32_t>(len));
    const AttentionRig rig(s, {seq}, {.page_size = 16});
    EXPECT_LE(MaxError(rig.Run(backend(), {{0, len, len}}, pool_), {Dense(s, seq, len, len)}),
              kTolerance)
        << len;
    EXPECT_LE(MaxError(rig.Run(backend(), {{0, 1, len}}, pool_), {Dense(s, seq, 1, len)}),
              kTolerance)
        << len;
  }
}

// K09 and 7.14: a sink enters the denominator once, however the keys are split.
TEST_P(Cases, K09_Sinks) {
  AttentionShape s = Shape(4, 1, 32);
  for (const auto& [window, type] :
       {std::pair{0, DType::kF32}, {12, DType::kF32}, {0, DType::kI8}, {12, DType::kI8}}) {
    s.window = window;
    s.kv_dtype = type;
    for (const int32_t len : {1, 15, 16, 17, 500, 5000}) {
      const DenseSeq seq = RandomSeq(s, len, static_cast<uint32_t>(len));
      const AttentionRig rig(s, {seq}, {.page_size = 16});
      const SeqRun run{0, std::min(3, len), len};
      const Extras sinks{.sinks = {0.0f, 2.0f, 10.0f, -10.0f}};
      const AttentionResult got = rig.Run(backend(), {run}, pool_, sinks);
      EXPECT_LE(MaxError(got, {Dense(s, seq, run.num_q, len, sinks)}), kTolerance) << len;
      if (backend().name == "flash" && window == 0 && len == 5000) {
        EXPECT_GT(got.num_merges, 0u) << "keys were not split";
      }
      const AttentionResult none = rig.Run(backend(), {run}, pool_);
      for (const float never : {-1e9f, -INFINITY}) {
        const AttentionResult same =
            rig.Run(backend(), {run}, pool_, {.sinks = std::vector<float>(4, never)});
        EXPECT_TRUE(SameBits(same.out, none.out)) << never;
      }
      const AttentionResult drained =
          rig.Run(backend(), {run}, pool_, {.sinks = std::vector<float>(4, 1e4f)});
      for (const float x : drained.out) EXPECT_EQ(x, 0.0f);
      EXPECT_TRUE(SameBits(drained.lse, none.lse));
    }
  }
}

// 7.4: one query sees all keys: as if there were no mask, and the first token matters.
TEST_P(Cases, DecodeSeesEveryKey) {
  AttentionShape s = Shape(4, 2, 64);
  DenseSeq seq = RandomSeq(s, 70, 1);
  const AttentionResult causal = AttentionRig(s, {seq}, {}).Run(backend(), {{0, 1, 70}}, pool_);
  s.bidirectional = true;
  const AttentionResult unmasked = AttentionRig(s, {seq}, {}).Run(backend(), {{0, 1, 70}}, pool_);
  EXPECT_TRUE(SameBits(causal.out, unmasked.out));
  s.bidirectional = false;
  for (size_t i = 0; i < 2 * 64; ++i) seq.v[i] += 1.0f;
  const AttentionResult changed = AttentionRig(s, {seq}, {}).Run(backend(), {{0, 1, 70}}, pool_);
  for (size_t i = 0; i < changed.out.size(); ++i) EXPECT_GT(changed.out[i], causal.out[i]);
}

// A backend takes a bias, or refuses a shape that has one by that name; the same for functions.
TEST(Backends, WhatTheyLackIsRefusedByName) {
  const auto biased = [](AttentionShape& s) { s.additive_bias = true; };
  const auto composed = [](AttentionShape& s) { s.composed = true; };
  EXPECT_EQ(BackendsFor(biased), (std::vector<std::string>{"sdpa", "flex", "eager"}));
  EXPECT_EQ(BackendsFor(composed), std::vector<std::string>{"flex"});
  AttentionShape s = Shape(2, 1, 16);
  biased(s);
  const absl::Status no_bias = (*FindAttention("flash"))->supports(s, 16);
  EXPECT_EQ(no_bias.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(Message(no_bias).find("additive_bias=true"), std::string::npos);
  EXPECT_NE(Message(no_bias).find("sdpa"), std::string::npos);
  composed(s);
  const absl::Status no_functions = (*FindAttention("sdpa"))->supports(s, 16);
  EXPECT_EQ(no_functions.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(Message(no_functions).find("composed=true"), std::string::npos);
  EXPECT_NE(Message(no_functions).find("flex"), std::string::npos);
}

// C4: the workspace of no step exceeds the largest of the dry run's extreme steps
// (models/runtime.cc takes these), each at the longest context.
TEST(Backends, TheDryRunSeesTheLargestWorkspace) {
  constexpr int32_t kTokens = 64;
  constexpr int32_t kSeqs = 8;
  constexpr int32_t kContext = 40000;
  const auto bytes = [](const AttentionBackend& b, const AttentionShape& s,
                        const std::vector<int32_t>& queries, const std::vector<int32_t>& keys) {
    std::vector<int32_t> cu{0};
    for (const int32_t q : queries) cu.push_back(cu.back() + q);
    const AttentionMetadata m{.num_seqs = static_cast<int32_t>(keys.size()),
                              .num_tokens = cu.back(),
                              .page_size = 16,
                              .cu_seqlens_q = cu,
                              .seqlens_k = keys};
    AttentionPlan plan;
    b.plan(m, s, 2, plan);
    return plan.workspace_bytes;
  };
  for (const AttentionBackend* backend : AttentionBackends()) {
    for (const int32_t window : {0, 500}) {
      AttentionShape s = Shape(14, 2, 80);
      s.window = window;
      size_t peak = 0;
      for (const auto& [tokens, seqs] :
           {std::pair{kTokens, kSeqs}, {kTokens, 1}, {kSeqs, kSeqs}, {1, 1}, {2, 2}}) {
        std::vector<int32_t> queries(static_cast<size_t>(seqs), 1);
        queries[0] = tokens - seqs + 1;
        peak = std::max(
            peak, bytes(*backend, s, queries, std::vector<int32_t>(queries.size(), kContext)));
      }
      std::mt19937 rng(5);
      size_t most = 0;
      for (int32_t i = 0; i < 500; ++i) {
        std::vector<int32_t> queries;
        std::vector<int32_t> keys;
        int32_t left = kTokens;
        while (left > 0 && queries.size() < kSeqs) {
          queries.push_back(1 + static_cast<int32_t>(rng() % static_cast<uint32_t>(left)));
          left -= queries.back();
          keys.push_back(std::max(queries.back(), static_cast<int32_t>(rng() % kContext) + 1));
        }
        if (i % 10 == 0) keys[0] = kContext;
        most = std::max(most, bytes(*backend, s, queries, keys));
      }
      EXPECT_LE(most, peak) << backend->name << " window=" << window;
      EXPECT_GT(most, peak / 2) << backend->name << " window=" << window;
    }
  }
}

TEST(EagerAttention, WeightsEqualTheOracle) {
  const AttentionBackend& eager = **FindAttention("eager");
  AttentionShape s = Shape(6, 2, 32);
  s.window = 9;
  const Extras x{.sinks = std::vector<float>(6, 0.3f), .weights = true};
  const std::vector<DenseSeq> seqs = {RandomSeq(s, 30, 1), RandomSeq(s, 11, 2)};
  const AttentionRig rig(s, seqs, {});
  ThreadPool pool(2);
  const AttentionResult got = rig.Run(eager, {{0, 4, 30}, {1, 2, 11}}, pool, x);
  const OracleResult a = Dense(s, seqs[0], 4, 30, x);
  const OracleResult b = Dense(s, seqs[1], 2, 11, x);
  for (size_t r = 0; r < 6 * 6; ++r) {
    for (size_t j = 0; j < 30; ++j) {
      const double want = r < 24   ? a.weights[r * 30 + j]
                          : j < 11 ? b.weights[(r - 24) * 11 + j]
                                   : 0;
      EXPECT_NEAR(got.weights[r * 30 + j], want, 1e-6);
      if (want == 0) {
        EXPECT_EQ(got.weights[r * 30 + j], 0.0f);
      }
    }
  }
}

TEST(FindAttention, Names) {
  EXPECT_EQ((*FindAttention("flash"))->name, "flash");
  EXPECT_EQ((*FindAttention("paged|flash"))->name, "flash");
  EXPECT_EQ((*FindAttention("paged|eager"))->name, "eager");
  for (const char* bad : {"", "Flash", "paged|", "flash2", "paged|paged|flash"}) {
    const auto found = FindAttention(bad);
    ASSERT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(Message(found.status()).find("flash, sdpa, flex, eager"), std::string::npos);
  }
}

// The same of prompts: runs of tokens that begin and end anywhere in their pages, and wide heads.
TEST(WriteKv, LayoutOfRuns) {
  for (const int32_t dim : {64, 33, 160}) {
    for (const int32_t page_size : {8, 16, 64}) {
      AttentionShape s = Shape(4, 2, dim, dim);
      s.kv_dtype = DType::kBF16;
      const int64_t ps = page_size;
      const size_t stride = KeyPageBytes(s, page_size) + ValuePageBytes(s, page_size);
      std::vector<uint16_t> pages(12 * stride / 2, 0xffff);
      std::vector<int64_t> slots;  // a run over a page's end, an odd one, a lone one, whole pages
      for (int64_t i = 0; i < ps + 3; ++i) slots.push_back(ps + 5 + i);
      for (int64_t i = 0; i < 4; ++i) slots.push_back(5 * ps + 1 + i);
      slots.push_back(4 * ps + 3);
      for (int64_t i = 0; i < 2 * ps; ++i) slots.push_back((8 + i / ps) * ps + i % ps);
      const auto tokens = static_cast<int32_t>(slots.size());
      const DenseSeq seq = RandomSeq(s, tokens, 1);
      ThreadPool pool(2);
      auto* const base = reinterpret_cast<std::byte*>(pages.data());
      WriteKv({.num_tokens = tokens, .page_size = page_size, .write_table = slots}, s,
              {.k = seq.k.data(),
               .v = seq.v.data(),
               .k_base = base,
               .v_base = base + KeyPageBytes(s, page_size),
               .page_stride = static_cast<int64_t>(stride)},
              pool);
      const auto dims = static_cast<size_t>(dim);
      const size_t pairs = (dims + 1) / 2;
      const auto size = static_cast<size_t>(ps);
      size_t written = 0;
      for (size_t t = 0; t < slots.size(); ++t) {
        const size_t page = static_cast<size_t>(slots[t] / ps) * stride / 2;
        const size_t offset = static_cast<size_t>(slots[t] % ps);
        for (size_t h = 0; h < 2; ++h) {
          for (size_t d = 0; d < 2 * pairs; ++d, ++written) {
            const uint16_t got = pages[page + ((h * pairs + d / 2) * size + offset) * 2 + d % 2];
            const float want = d < dims ? seq.k[(t * 2 + h) * dims + d] : 0.0f;
            ASSERT_EQ(got, FloatToBF16(want)) << "key of token " << t << " dim " << d;
          }
          for (size_t d = 0; d < dims; ++d, ++written) {
            const size_t at = ((h * size / 2 + offset / 2) * dims + d) * 2 + offset % 2;
            const uint16_t got = pages[page + KeyPageBytes(s, page_size) / 2 + at];
            ASSERT_EQ(got, FloatToBF16(seq.v[(t * 2 + h) * dims + d])) << "value of token " << t;
          }
        }
      }
      const auto left = static_cast<size_t>(std::count(pages.begin(), pages.end(), 0xffff));
      EXPECT_EQ(left, pages.size() - written) << "something beside the slots was written";
    }
  }
}

// The layout that kv_layout.h states, element by element, and nothing written beside it.
TEST(WriteKv, Layout) {
  AttentionShape s = Shape(4, 2, 5, 3);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    s.kv_dtype = type;
    const size_t size = type == DType::kF32 ? 4 : 2;
    const bool pairs = type == DType::kBF16;
    const size_t key_dims = pairs ? 6 : 5;
    EXPECT_EQ(KeyPageBytes(s, 8), (2 * key_dims * 8 * size + 63) / 64 * 64);
    EXPECT_EQ(ValuePageBytes(s, 8), (2 * 3 * 8 * size + 63) / 64 * 64);
    const size_t stride = KeyPageBytes(s, 8) + ValuePageBytes(s, 8);
    std::vector<std::byte> pages(4 * stride, std::byte{0xff});
    const DenseSeq seq = RandomSeq(s, 3, 1);
    const std::vector<int64_t> slots = {3 * 8 + 7, 1 * 8 + 0, 3 * 8 + 2};
    ThreadPool pool(2);
    WriteKv({.num_tokens = 3, .page_size = 8, .write_table = slots}, s,
            {.k = seq.k.data(),
             .v = seq.v.data(),
             .k_base = pages.data(),
             .v_base = pages.data() + KeyPageBytes(s, 8),
             .page_stride = static_cast<int64_t>(stride)},
            pool);
    const auto value = [&](size_t byte) {
      if (type == DType::kF32) {
        float f;
        std::memcpy(&f, &pages[byte], 4);
        return f;
      }
      uint16_t h;
      std::memcpy(&h, &pages[byte], 2);
      return type == DType::kBF16 ? BF16ToFloat(h) : F16ToFloat(h);
    };
    size_t written = 0;
    for (size_t t = 0; t < 3; ++t) {
      const size_t page = static_cast<size_t>(slots[t] / 8) * stride;
      const size_t offset = static_cast<size_t>(slots[t] % 8);
      for (size_t h = 0; h < 2; ++h) {
        for (size_t d = 0; d < key_dims; ++d, ++written) {
          const size_t at =
              pairs ? ((h * 3 + d / 2) * 8 + offset) * 2 + d % 2 : (h * 5 + d) * 8 + offset;
          EXPECT_EQ(value(page + at * size), d < 5 ? seq.k[(t * 2 + h) * 5 + d] : 0.0f);
        }
        for (size_t d = 0; d < 3; ++d, ++written) {
          const size_t at =
              pairs ? ((h * 4 + offset / 2) * 3 + d) * 2 + offset % 2 : (h * 8 + offset) * 3 + d;
          EXPECT_EQ(value(page + KeyPageBytes(s, 8) + at * size), seq.v[(t * 2 + h) * 3 + d]);
        }
      }
    }
    size_t untouched = 0;
    for (const std::byte b : pages) untouched += b == std::byte{0xff} ? 1 : 0;
    EXPECT_GE(untouched, pages.size() - written * size);
  }
}

}  // namespace
}  // namespace quire::kernels
