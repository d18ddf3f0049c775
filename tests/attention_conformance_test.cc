// Every attention backend x shape x page size x element type x thread count against float64, and
// every recorded case of tests/reference/attention. Tolerances are the recording's: 2e-6, and 1e-5
// for large scores.
#include <gtest/gtest.h>

#include "tests/support/attention_rig.h"
#include "tests/support/golden_file.h"

namespace quire::kernels {
namespace {

constexpr double kTolerance = 2e-6;

struct Case {
  const char* name;
  std::vector<std::pair<int32_t, int32_t>> seqs;  // queries of this step, keys before them
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
AttentionShape Bidirectional(AttentionShape s) {
  s.bidirectional = true;
  return s;
}

// clang-format off
const Case kCases[] = {
    {"decode_mha",           {{1, 7}},                    Shape(2, 2, 16)},
    {"decode_gqa3_ragged",   {{1, 0}, {1, 130}, {1, 4}, {1, 63}, {1, 64}}, Shape(9, 3, 64)},
    {"decode_mqa_odd_dim",   {{1, 33}},                   Shape(7, 1, 40)},
    {"prefill_page_borders", {{16, 0}, {17, 0}, {15, 0}, {65, 0}}, Shape(4, 1, 16)},
    {"chunked_prefill",      {{37, 100}},                 Shape(6, 2, 80)},
    {"mixed",                {{70, 0}, {1, 170}, {9, 3}}, Shape(8, 2, 96)},
    {"window",               {{30, 40}, {1, 90}},         With(Shape(4, 2, 64), 17, 0)},
    {"chunk",                {{30, 40}, {1, 63}, {1, 64}},With(Shape(4, 2, 64), 0, 16)},
    {"softcap",              {{20, 6}},                   With(Shape(2, 2, 64), 0, 0, 5.0f)},
    {"softcap_window",       {{20, 60}},                  With(Shape(2, 1, 32), 9, 0, 50.0f)},
    {"mla",                  {{5, 29}, {1, 70}},          Shape(4, 4, 192, 128)},
    {"narrow_values",        {{5, 29}},                   Shape(4, 2, 48, 20)},
    {"sinks",                {{11, 29}, {1, 20}},         With(Shape(8, 2, 64), 12, 0), true},
    {"alibi",                {{11, 29}},                  Shape(4, 2, 32), false, true},
    {"bidirectional",        {{11, 29}, {40, 0}},         Bidirectional(Shape(4, 2, 32))},
    {"split_decode",         {{1, 1100}, {1, 511}, {1, 512}}, Shape(3, 1, 128)},
    {"split_prefill",        {{40, 500}},                 Shape(3, 1, 16)},
    {"wide_group",           {{3, 20}},                   Shape(64, 1, 32)},
};
// clang-format on

Extras ExtrasOf(const Case& c) {
  Extras x;
  for (int32_t h = 0; h < c.shape.num_heads; ++h) {
    if (c.sinks) x.sinks.push_back(0.7f * static_cast<float>(h) - 2.0f);
    if (c.alibi) x.slopes.push_back(std::exp2(-2.0f * static_cast<float>(h + 1)));
  }
  return x;
}

class Conformance : public testing::TestWithParam<std::tuple<std::string, Case>> {};

TEST_P(Conformance, MatchesDense) {
  const AttentionBackend& backend = **FindAttention(std::get<0>(GetParam()));
  Case c = std::get<1>(GetParam());
  const Extras extras = ExtrasOf(c);
  ThreadPool one(1);
  ThreadPool three(3);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8}) {
    c.shape.kv_dtype = type;
    std::vector<DenseSeq> seqs;
    std::vector<SeqRun> runs;
    std::vector<OracleResult> want;
    for (const auto& [queries, before] : c.seqs) {
      const auto i = static_cast<int32_t>(seqs.size());
      seqs.push_back(RandomSeq(c.shape, queries + before, static_cast<uint32_t>(100 + i)));
      runs.push_back({.seq = i, .num_q = queries, .num_k = queries + before});
      want.push_back(Dense(c.shape, seqs.back(), queries, queries + before, extras));
    }
    for (const int32_t page_size : {8, 16, 32, 64, 128}) {
      ASSERT_TRUE(backend.supports(c.shape, page_size).ok());
      const AttentionRig rig(c.shape, seqs, {.page_size = page_size});
      for (ThreadPool* pool : {&one, &three}) {
        EXPECT_LE(MaxError(rig.Run(backend, runs, *pool, extras), want), kTolerance)
            << backend.name << " " << c.name << " " << NameOf(type) << " page_size=" << page_size
            << " threads=" << pool->num_threads();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Conformance,
                         testing::Combine(testing::ValuesIn(BackendNames()),
                                          testing::ValuesIn(kCases)),
                         [](const auto& param) {
                           return std::get<0>(param.param) + "_" + std::get<1>(param.param).name;
                         });

// [heads, n, dim] as recorded -> [n, heads, dim].
std::vector<float> HeadsInside(const std::vector<float>& x, int64_t heads, int64_t n, int64_t dim) {
  std::vector<float> out(x.size());
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t d = 0; d < dim; ++d) {
        out[static_cast<size_t>((i * heads + h) * dim + d)] =
            x[static_cast<size_t>((h * n + i) * dim + d)];
      }
    }
  }
  return out;
}

class Recorded : public testing::TestWithParam<std::string> {};

TEST_P(Recorded, EveryCase) {
  const AttentionBackend& backend = **FindAttention(GetParam());
  const std::string folder = QUIRE_TEST_REFERENCE "/attention/";
  const Json cases = ReadGoldenJson(folder + "attention.json");
  const GoldenFile file(folder + "attention.safetensors");
  ASSERT_EQ(cases.size(), 46u);
  ThreadPool pool(2);
  for (size_t i = 0; i < cases.size(); ++i) {
    const Json c = cases.at(i);
    const std::string name(*c["name"].as_string());
    const auto number = [&](const char* key) {
      return static_cast<int32_t>(c[key].as_int().value_or(0));
    };
    AttentionShape s =
        Shape(number("q_heads"), number("kv_heads"), number("qk_dim"), number("v_dim"));
    s.softmax_scale = static_cast<float>(*c["scale"].as_double());
    s.window = number("window");
    s.chunk = number("chunk");
    s.logit_softcap = static_cast<float>(c["softcap"].as_double().value_or(0.0));
    s.bidirectional = !*c["causal"].as_bool();
    const int32_t num_q = number("q_len");
    const int32_t num_k = number("kv_len");

    DenseSeq seq;
    seq.len = num_k;
    seq.k = HeadsInside(file.Floats(name + ".k"), s.num_kv_heads, num_k, s.head_dim);
    seq.v = HeadsInside(file.Floats(name + ".v"), s.num_kv_heads, num_k, s.head_dim_v);
    const std::vector<float> q =
        HeadsInside(file.Floats(name + ".q"), s.num_heads, num_q, s.head_dim);
    seq.q.resize(static_cast<size_t>(DenseSeq::kBefore + num_k) * s.num_heads * s.head_dim);
    std::copy_backward(q.begin(), q.end(), seq.q.end());
    Extras extras;
    if (*c["sinks"].as_bool()) extras.sinks = file.Floats(name + ".sinks");
    if (*c["alibi"].as_bool()) extras.slopes = file.Floats(name + ".slopes");
    const std::vector<float> out =
        HeadsInside(file.Floats(name + ".out"), s.num_heads, num_q, s.head_dim_v);
    const std::vector<float> lse = HeadsInside(file.Floats(name + ".lse"), s.num_heads, num_q, 1);

    for (const int32_t page_size : {8, 16, 64}) {
      const AttentionRig rig(s, {seq}, {.page_size = page_size});
      const AttentionResult got =
          rig.Run(backend, {{.seq = 0, .num_q = num_q, .num_k = num_k}}, pool, extras);
      const OracleResult want{.out = {out.begin(), out.end()}, .lse = {lse.begin(), lse.end()}};
      EXPECT_LE(MaxError(got, {want}), name == "large_scores" ? 1e-5 : kTolerance)
          << backend.name << " " << name << " page_size=" << page_size;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Recorded, testing::ValuesIn(BackendNames()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace quire::kernels
