// tests/attention_flex_test.cc -- composed masks: what they say of keys, rows and blocks against
// plain loops; `flex` under them and under score mods against float64. Pages that no query sees are
// absent (page 0 traps), so a tile that should have been skipped ends the test.
#include <gtest/gtest.h>

#include "tests/support/attention_rig.h"

namespace quire::kernels {
namespace {

constexpr double kTolerance = 2e-6;
constexpr int32_t kLen = 200;

using Sees = std::function<bool(int32_t pos, int32_t key)>;

bool EveryThird(const void*, int32_t, int32_t pos, int32_t key) { return (pos - key) % 3 == 0; }

// Documents of 70, 58 and 72 tokens.
std::vector<int32_t> DocumentIds() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kLen; ++i) ids.push_back(i < 70 ? 5 : i < 128 ? 9 : 2);
  return ids;
}
// The same of three sequences, which differ.
const std::vector<int32_t>& Ids() {
  static const std::vector<int32_t> ids = [] {
    std::vector<int32_t> all = DocumentIds();
    for (int32_t i = 0; i < kLen; ++i) all.push_back(1);
    for (int32_t i = 0; i < kLen; ++i) all.push_back(i / 16);
    return all;
  }();
  return ids;
}
constexpr int32_t kPrefixes[] = {37, 0, 150};

struct Composed {
  std::string name;
  AttentionMask mask;
  Sees sees;  // of sequence 0
};

std::vector<Composed> Masks() {
  const auto document = [](int32_t i) { return Ids()[static_cast<size_t>(i)]; };
  return {
      {"everything", AttentionMask::Everything(), [](int32_t, int32_t) { return true; }},
      {"causal", AttentionMask::Causal(), [](int32_t p, int32_t k) { return k <= p; }},
      {"window", AttentionMask::Causal() & AttentionMask::Window(9),
       [](int32_t p, int32_t k) { return k <= p && k > p - 9; }},
      {"chunk", AttentionMask::Causal() & AttentionMask::Chunk(48),
       [](int32_t p, int32_t k) { return k <= p && k / 48 == p / 48; }},
      {"prefix_lm", AttentionMask::Causal() | AttentionMask::Prefix(kPrefixes),
       [](int32_t p, int32_t k) { return k <= p || k < 37; }},
      {"documents", AttentionMask::Causal() & AttentionMask::Documents(Ids(), kLen),
       [=](int32_t p, int32_t k) { return k <= p && document(k) == document(p); }},
      {"first_and_last",
       AttentionMask::Causal() & (AttentionMask::Window(20) | AttentionMask::Prefix(kPrefixes)),
       [](int32_t p, int32_t k) { return k <= p && (k > p - 20 || k < 37); }},
      {"not_the_latest", AttentionMask::Causal() & ~AttentionMask::Window(33),
       [](int32_t p, int32_t k) { return k <= p - 33; }},
      {"dilated",
       AttentionMask::Causal() & AttentionMask::Window(90) &
           AttentionMask::Where(EveryThird, nullptr),
       [](int32_t p, int32_t k) { return k <= p && k > p - 90 && (p - k) % 3 == 0; }},
      {"or_of_ands",
       (AttentionMask::Chunk(64) & AttentionMask::Causal()) |
           (AttentionMask::Documents(Ids(), kLen) & ~AttentionMask::Causal()),
       [=](int32_t p, int32_t k) {
         return (k / 64 == p / 64 && k <= p) || (document(k) == document(p) && k > p);
       }},
  };
}

TEST(AttentionMask, KeysAndRows) {
  for (const Composed& m : Masks()) {
    for (int32_t pos = 0; pos < kLen; ++pos) {
      for (int32_t first = 0; first < kLen; first += 17) {
        const uint64_t row = m.mask.Row(0, pos, first);
        for (int32_t i = 0; i < 64 && first + i < kLen; ++i) {
          ASSERT_EQ((row >> i & 1) != 0, m.sees(pos, first + i)) << m.name << pos << first + i;
        }
        ASSERT_EQ(m.mask.Sees(0, pos, first), m.sees(pos, first)) << m.name;
      }
    }
  }
}

TEST(AttentionMask, SequencesHaveTheirOwnData) {
  const AttentionMask prefix = AttentionMask::Prefix(kPrefixes);
  EXPECT_TRUE(prefix.Sees(0, 0, 36));
  EXPECT_FALSE(prefix.Sees(0, 0, 37));
  EXPECT_FALSE(prefix.Sees(1, 0, 0));
  EXPECT_TRUE(prefix.Sees(2, 0, 149));
  const AttentionMask documents = AttentionMask::Documents(Ids(), kLen);
  EXPECT_TRUE(documents.Sees(0, 69, 0));
  EXPECT_FALSE(documents.Sees(0, 70, 69));
  EXPECT_TRUE(documents.Sees(1, 70, 69));
  EXPECT_FALSE(documents.Sees(2, 16, 15));
  EXPECT_FALSE(documents.Sees(0, -1, 0));
}

// A block is all or none only if it is; masks of one kind, and a shape's, say so whenever it is.
TEST(AttentionMask, Blocks) {
  std::mt19937 rng(3);
  for (const Composed& m : Masks()) {
    int32_t settled = 0;
    int32_t unsure = 0;
    for (int32_t i = 0; i < 3000; ++i) {
      MaskBlock b;
      b.first_pos = static_cast<int32_t>(rng() % kLen);
      b.end_pos = std::min<int32_t>(kLen, b.first_pos + 1 + static_cast<int32_t>(rng() % 32));
      b.first_key = static_cast<int32_t>(rng() % kLen);
      b.end_key = std::min<int32_t>(kLen, b.first_key + 1 + static_cast<int32_t>(rng() % 64));
      bool all = true;
      bool none = true;
      for (int32_t p = b.first_pos; p < b.end_pos; ++p) {
        for (int32_t k = b.first_key; k < b.end_key; ++k) (m.sees(p, k) ? none : all) = false;
      }
      const MaskCoverage said = m.mask.Block(b);
      ASSERT_TRUE(said != MaskCoverage::kAll || all) << m.name;
      ASSERT_TRUE(said != MaskCoverage::kNone || none) << m.name;
      const bool exact = m.name == "causal" || m.name == "window" || m.name == "chunk";
      if (exact) {
        ASSERT_EQ(said == MaskCoverage::kAll, all) << m.name;
        ASSERT_EQ(said == MaskCoverage::kNone, none) << m.name;
      }
      settled += said != MaskCoverage::kSome ? 1 : 0;
      unsure += said == MaskCoverage::kSome && (all || none) ? 1 : 0;
    }
    EXPECT_GT(settled, 600) << m.name;
    EXPECT_LT(unsure, 900) << m.name;
  }
}

class Flex : public testing::Test {
 protected:
  Flex() : shape_(Shape(6, 2, 40, 24)) { shape_.composed = true; }
  const AttentionBackend& flex_ = **FindAttention("flex");
  AttentionShape shape_;
  ThreadPool pool_{2};
};

TEST_F(Flex, ComposedMasksAgainstFloat64) {
  for (const DType type : {DType::kF32, DType::kI8}) {
    shape_.kv_dtype = type;
    const DenseSeq seq = RandomSeq(shape_, kLen, 1);
    for (const Composed& m : Masks()) {
      const Extras x{.mask = &m.mask, .sees = m.sees};
      for (const int32_t page_size : {8, 16, 64}) {
        const AttentionRig rig(shape_, {seq}, {.page_size = page_size});
        for (const int32_t num_q : {1, 5, 77, kLen}) {
          EXPECT_LE(MaxError(rig.Run(flex_, {{0, num_q, kLen}}, pool_, x),
                             {Dense(shape_, seq, num_q, kLen, x)}),
                    kTolerance)
              << m.name << " " << num_q << " page_size=" << page_size;
        }
      }
    }
  }
}

// C1 under composed masks: chunks, threads, neighbours. A prefix-LM's rows see keys behind them, so
// chunks end where the prefix does.
TEST_F(Flex, ComposedMasksAreExact) {
  const DenseSeq seq = RandomSeq(shape_, kLen, 1);
  const DenseSeq other = RandomSeq(shape_, 90, 2);
  const size_t row = 6 * 24;
  for (const Composed& m : Masks()) {
    const Extras x{.mask = &m.mask, .sees = m.sees};
    const AttentionRig rig(shape_, {seq, other}, {.page_size = 16});
    const AttentionResult whole = rig.Run(flex_, {{0, kLen, kLen}}, pool_, x);
    const bool looks_ahead = m.name == "everything" || m.name == "or_of_ands";
    for (const int32_t chunk : {1, 7, 64}) {
      if (looks_ahead) break;  // what is seen is not there yet
      const int32_t start = m.name == "prefix_lm" ? 37 : 0;
      for (int32_t begin = start; begin < kLen; begin += chunk) {
        const int32_t end = std::min(kLen, begin + chunk);
        ThreadPool threads(1 + begin % 4);
        const AttentionResult got = rig.Run(flex_, {{0, end - begin, end}}, threads, x);
        ASSERT_EQ(std::memcmp(got.out.data(), &whole.out[static_cast<size_t>(begin) * row],
                              got.out.size() * sizeof(float)),
                  0)
            << m.name << " chunk=" << chunk << " at " << begin;
      }
    }
    Extras all = x;
    all.sees = nullptr;  // of several sequences: all pages are there
    const AttentionResult batch =
        rig.Run(flex_, {{0, kLen, kLen}, {1, 30, 90}, {1, 1, 50}}, pool_, all);
    EXPECT_EQ(std::memcmp(batch.out.data(), whole.out.data(), whole.out.size() * sizeof(float)), 0)
        << m.name;
  }
}

// The masks of shapes: the same bits whether the shape or the mask says them, and eager's numbers.
TEST_F(Flex, StandardMasksAreEagers) {
  const AttentionBackend& eager = **FindAttention("eager");
  for (const auto& [window, chunk, bidirectional] : {std::tuple{0, 0, false},
                                                     {17, 0, false},
                                                     {0, 32, false},
                                                     {0, 0, true},
                                                     {17, 0, true},
                                                     {0, 32, true}}) {
    AttentionShape s = Shape(6, 2, 40, 24);
    s.window = window;
    s.chunk = chunk;
    s.bidirectional = bidirectional;
    const DenseSeq seq = RandomSeq(s, kLen, 4);
    const AttentionRig rig(s, {seq}, {});
    const AttentionResult by_shape = rig.Run(flex_, {{0, 90, kLen}}, pool_);
    const AttentionResult by_eager = rig.Run(eager, {{0, 90, kLen}}, pool_);
    const AttentionMask mask = AttentionMask::Of(s);
    s.composed = true;
    const AttentionResult by_mask =
        AttentionRig(s, {seq}, {}).Run(flex_, {{0, 90, kLen}}, pool_, {.mask = &mask});
    EXPECT_TRUE(SameBits(by_shape.out, by_mask.out));
    EXPECT_TRUE(SameBits(by_shape.lse, by_mask.lse));
    for (size_t i = 0; i < by_eager.out.size(); ++i) {
      ASSERT_NEAR(by_shape.out[i], by_eager.out[i], kTolerance);
    }
  }
}

// Score mods, applied in order: a learned bias by distance as T5's, one of each head, ALiBi, and a
// function that rules keys out by itself.
struct Table {
  float by_distance[8];
  float slope;
};
void AddTable(const void* context, const ScoreRow& row, int32_t first_key,
              std::span<float> scores) {
  const auto& table = *static_cast<const Table*>(context);
  for (size_t i = 0; i < scores.size(); ++i) {
    const int32_t distance = std::clamp(row.pos - first_key - static_cast<int32_t>(i), 0, 127);
    scores[i] += table.by_distance[distance / 16] * static_cast<float>(row.head + 1);
  }
}
void AddAlibi(const void* context, const ScoreRow& row, int32_t first_key,
              std::span<float> scores) {
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] += static_cast<const Table*>(context)->slope *
                 static_cast<float>(first_key + static_cast<int32_t>(i) - row.pos);
  }
}
void DropOdd(const void*, const ScoreRow& row, int32_t first_key, std::span<float> scores) {
  for (size_t i = 0; i < scores.size(); ++i) {
    if (row.head == 1 && (first_key + static_cast<int32_t>(i)) % 2 == 1) scores[i] = -INFINITY;
  }
}

TEST_F(Flex, ScoreMods) {
  const Table table{{0.5f, -0.25f, 1.0f, 0.0f, 0.125f, -1.0f, 0.75f, 2.0f}, 0.03f};
  shape_.additive_bias = true;
  shape_.logit_softcap = 4.0f;
  const DenseSeq seq = RandomSeq(shape_, kLen, 6);
  const AttentionRig rig(shape_, {seq}, {});
  Extras x{.sinks = std::vector<float>(6, 0.2f), .bias = Extras::Bias::kFull};
  x.mods = {{AddTable, &table}, {AddAlibi, &table}, {DropOdd, nullptr}};
  x.mod = [&](int32_t pos, int32_t head, int32_t key, double score) -> double {
    if (head == 1 && key % 2 == 1) return -INFINITY;
    const int32_t distance = std::clamp(pos - key, 0, 127);
    return score + double{table.by_distance[distance / 16]} * (head + 1) +
           double{table.slope} * (key - pos);
  };
  for (const int32_t num_q : {1, 60}) {
    EXPECT_LE(MaxError(rig.Run(flex_, {{0, num_q, kLen}}, pool_, x),
                       {Dense(shape_, seq, num_q, kLen, x)}),
              2 * kTolerance)
        << num_q;
  }
}

}  // namespace
}  // namespace quire::kernels
