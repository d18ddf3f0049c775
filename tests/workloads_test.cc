// The bench's request mixes and its latency figures, on sequences whose answers are known.
#include "bench/workloads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace quire {
namespace {

constexpr int32_t kVocab = 49152;

Workload Make(std::string_view name, int repeat = 0, uint64_t seed = 1234, int32_t vocab = kVocab) {
  absl::StatusOr<Workload> workload = MakeWorkload(name, repeat, vocab, seed);
  EXPECT_TRUE(workload.ok()) << workload.status();
  return *std::move(workload);
}

TEST(MakeWorkload, Shapes) {
  struct Row {
    const char* name;
    size_t requests, prompt_len;
    int32_t max_tokens, concurrency;
  };
  for (const Row& row : {Row{"W1", 1, 32, 128, 1}, Row{"W2", 1, 1024, 1, 1},
                         Row{"W3", 64, 128, 128, 64}, Row{"W4", 64, 544, 64, 64}}) {
    const Workload w = Make(row.name);
    EXPECT_EQ(w.name, row.name);
    EXPECT_EQ(w.prompts.size(), row.requests);
    for (const auto& prompt : w.prompts) EXPECT_EQ(prompt.size(), row.prompt_len);
    EXPECT_EQ(w.max_tokens, row.max_tokens);
    EXPECT_EQ(w.concurrency, row.concurrency);
  }
}

TEST(MakeWorkload, OnlyW4SharesAPrefixAndItIsFreshInEachRepeat) {
  const Workload w4 = Make("W4");
  std::set<std::vector<TokenId>> own;
  for (const auto& prompt : w4.prompts) {
    EXPECT_TRUE(std::equal(prompt.begin(), prompt.begin() + 512, w4.prompts[0].begin()));
    own.insert({prompt.begin() + 512, prompt.end()});
  }
  EXPECT_EQ(own.size(), 64u);
  // Otherwise no two prompts of any repeat, workload or seed share even a page of 16 tokens.
  std::set<std::vector<TokenId>> pages;
  size_t expected = 0;
  for (const char* name : {"W1", "W2", "W3", "W4"}) {
    for (int repeat : {0, 1, 2, 7}) {
      for (uint64_t seed : {0, 1, 1234}) {
        const Workload w = Make(name, repeat, seed);
        const size_t distinct = std::string(name) == "W4" ? 1 : w.prompts.size();
        for (size_t i = 0; i < distinct; ++i, ++expected) {
          pages.insert({w.prompts[i].begin(), w.prompts[i].begin() + 16});
        }
      }
    }
  }
  EXPECT_EQ(pages.size(), expected);
}

TEST(MakeWorkload, RepeatableAndUniform) {
  EXPECT_EQ(Make("W3", 3, 9).prompts, Make("W3", 3, 9).prompts);
  // 512 bins of ids, 8192 draws: chi-square within 6 standard deviations of its mean.
  const int32_t first = 300, count = kVocab - kVocab / 5 - first;
  std::vector<double> bins(512);
  const Workload w3 = Make("W3");
  for (const auto& prompt : w3.prompts) {
    for (TokenId id : prompt) {
      ASSERT_GE(id, first);
      ASSERT_LT(id, first + count);
      ++bins[static_cast<int64_t>(id - first) * 512 / count];
    }
  }
  double chi2 = 0;
  for (double n : bins) chi2 += (n - 16) * (n - 16) / 16;
  EXPECT_NEAR(chi2, 511, 6 * std::sqrt(2 * 511.0));
  for (int32_t vocab : {16, 100, 512, 262144}) {
    const Workload w2 = Make("W2", 0, 5, vocab);
    for (TokenId id : w2.prompts[0]) {
      ASSERT_GE(id, 0);
      ASSERT_LT(id, vocab);
    }
  }
}

TEST(MakeWorkload, Errors) {
  const auto message = [](const absl::StatusOr<Workload>& w) {
    EXPECT_EQ(w.status().code(), absl::StatusCode::kInvalidArgument);
    return Message(w.status());
  };
  EXPECT_EQ(message(MakeWorkload("W9", 0, kVocab, 1)),
            "workload=W9 is unknown; choose W1, W2, W3 or W4");
  EXPECT_EQ(message(MakeWorkload("W1", -1, kVocab, 1)), "repeat=-1 must be at least 0");
  EXPECT_EQ(message(MakeWorkload("W1", 0, 15, 1)), "vocab_size=15 must be at least 16");
}

TEST(Summarize, NearestRank) {
  std::vector<double> values(100);
  std::iota(values.begin(), values.end(), 1.0);
  std::reverse(values.begin(), values.end());
  const Percentiles p = Summarize(values);
  EXPECT_EQ(p.p50, 50);
  EXPECT_EQ(p.p90, 90);
  EXPECT_EQ(p.p99, 99);
  EXPECT_EQ(p.mean, 50.5);
  EXPECT_EQ(p.max, 100);
  const Percentiles ten = Summarize(std::vector<double>{10, 1, 9, 2, 8, 3, 7, 4, 6, 5});
  EXPECT_EQ(ten.p50, 5);
  EXPECT_EQ(ten.p90, 9);
  EXPECT_EQ(ten.p99, 10);
  const Percentiles one = Summarize(std::vector<double>{7});
  EXPECT_EQ(one.p50, 7);
  EXPECT_EQ(one.p99, 7);
  EXPECT_EQ(Summarize(std::vector<double>{}).p99, 0);
}

TEST(Summarize, Traces) {
  // a: 10 ms to the first token, then 20 and 30 ms. b: one token. c: refused.
  const std::vector<RequestTrace> traces = {
      {.sent_us = 1000, .token_us = {11000, 31000, 61000}, .prompt_tokens = 5},
      {.sent_us = 2000, .token_us = {101000}, .prompt_tokens = 7},
      {.sent_us = 0, .token_us = {}, .prompt_tokens = 100},
  };
  const LatencySummary s = Summarize(traces);
  EXPECT_EQ(s.requests, 2);
  EXPECT_EQ(s.empty, 1);
  EXPECT_EQ(s.prompt_tokens, 12);
  EXPECT_EQ(s.output_tokens, 4);
  EXPECT_DOUBLE_EQ(s.duration_s, 0.1);
  EXPECT_DOUBLE_EQ(s.output_tokens_per_s, 40);
  EXPECT_DOUBLE_EQ(s.total_tokens_per_s, 160);
  EXPECT_DOUBLE_EQ(s.decode_tokens_per_s, 2 / 0.05);
  EXPECT_EQ(s.ttft_ms.p50, 10);
  EXPECT_EQ(s.ttft_ms.max, 99);
  EXPECT_EQ(s.itl_ms.p50, 20);
  EXPECT_EQ(s.itl_ms.p99, 30);
  EXPECT_EQ(s.e2e_ms.p50, 60);
  EXPECT_EQ(s.e2e_ms.p90, 99);
  const LatencySummary none = Summarize(std::span<const RequestTrace>());
  EXPECT_EQ(none.requests, 0);
  EXPECT_EQ(none.output_tokens_per_s, 0);
}

}  // namespace
}  // namespace quire
