// server/metrics: what is on a page, whatever the sources say. HARD-CASES P04 and P07.
#include "server/metrics/metrics.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <sstream>
#include <thread>

#include "tests/support/exposition.h"

namespace quire {
namespace {

using metrics_test::Page;

std::unique_ptr<Metrics> Make(Metrics::Options options = {}) {
  options.model_name = "m";
  options.max_model_len = 1000;
  auto metrics = Metrics::Make(std::move(options));
  CHECK(metrics.ok(), "{}", Message(metrics.status()));
  return *std::move(metrics);
}

EngineSnapshot Snapshot(int64_t scale) {
  EngineSnapshot s;
  s.pools.resize(1);
  s.pools[0].num_used = 3;
  s.pools[0].num_cached = 1;
  s.pools[0].num_free = 12;
  s.scheduler.running_seqs = 2;
  s.scheduler.waiting_seqs = 5;
  s.scheduler.preemptions = scale;
  s.scheduler.prefix_query_tokens = 10 * scale;
  s.steps.tokens[3] = scale;
  s.steps.sum_tokens = 7 * scale;
  s.steps.run.counts[4] = scale;
  s.steps.run.sum_us = 12 * scale;
  return s;
}

TEST(Metrics, RowsOfTheEngine) {
  const auto metrics = Make();
  metrics->UseEngine([] { return Snapshot(4); }, [] { return 2; });
  const Page page = Page::Parse(metrics->Text());
  const std::string base = "{model_name=\"m\",engine=\"0\"}";
  EXPECT_EQ(page.at("vllm:num_requests_running" + base), 2);
  EXPECT_EQ(page.at("vllm:num_requests_waiting" + base), 7);
  EXPECT_EQ(page.at("vllm:kv_cache_usage_perc" + base), 3.0 / 16);
  EXPECT_EQ(page.at("vllm:num_preemptions_total" + base), 4);
  EXPECT_EQ(page.at("vllm:prefix_cache_queries_total" + base), 40);
  // 4 steps of 5 to 8 tokens.
  EXPECT_EQ(page.at("vllm:iteration_tokens_total_bucket{model_name=\"m\",engine=\"0\",le=\"4\"}"),
            0);
  EXPECT_EQ(page.at("vllm:iteration_tokens_total_bucket{model_name=\"m\",engine=\"0\",le=\"8\"}"),
            4);
  EXPECT_EQ(page.at("vllm:iteration_tokens_total_sum" + base), 28);
  EXPECT_EQ(page.type_of("vllm:iteration_tokens_total"), "histogram");
  page.ExpectSound();
}

TEST(Metrics, NamesByOption) {
  auto plain = Make({.prefix = "quire:", .legacy_names = true});
  plain->UseEngine([] { return Snapshot(1); }, [] { return 0; });
  const std::string text = plain->Text();
  EXPECT_EQ(text.find("vllm:"), std::string::npos);
  EXPECT_NE(text.find("quire:gpu_cache_usage_perc{"), std::string::npos);
  Page::Parse(text).ExpectSound();
  const auto usual = Make();
  usual->UseEngine([] { return Snapshot(1); }, [] { return 0; });
  EXPECT_EQ(usual->Text().find("gpu_cache_usage_perc"), std::string::npos);
}

// A statistics source that goes back, with scrapers all the while.
TEST(Metrics, P04_NothingFallsAndNothingIsNegative) {
  const auto metrics = Make();
  std::atomic<int64_t> scale{100};
  metrics->UseEngine([&] { return Snapshot(scale); }, [] { return -3; });
  metrics->AddSource([&](Families& out) {
    out.Counter("test_total", "A counter.", static_cast<double>(scale.load()) - 150);
    out.Gauge("test_gauge", "A gauge.",
              scale % 2 == 0 ? std::numeric_limits<double>::quiet_NaN() : -1.0);
  });
  metrics->Text();  // of 100
  std::vector<std::thread> scrapers;
  std::atomic<int> falls{0};
  for (int i = 0; i < 4; ++i) {
    scrapers.emplace_back([&] {
      Page before;
      for (int round = 0; round < 50; ++round) {
        const Page now = Page::Parse(metrics->Text());
        now.ExpectSound();
        if (!now.NothingFellSince(before)) ++falls;
        before = now;
      }
    });
  }
  std::thread changes([&] {
    for (int i = 0; i < 2000; ++i) scale = (i * 7919) % 311;
  });
  for (std::thread& t : scrapers) t.join();
  changes.join();
  EXPECT_EQ(falls, 0);
  scale = 0;
  const Page page = Page::Parse(metrics->Text());
  EXPECT_GE(page.at("vllm:num_preemptions_total{model_name=\"m\",engine=\"0\"}"), 100);
  EXPECT_EQ(page.at("test_gauge"), 0);
}

TEST(Metrics, P07_LongRequestsHaveABucket) {
  const auto metrics = Make();
  Generation generation;
  generation.request = std::make_shared<Request>();
  const RequestStats stats{.prompt_tokens = 3,
                           .completion_tokens = 5,
                           .queue_us = 20'000'000,
                           .prefill_us = 1'000'000,
                           .decode_us = 130'000'000};
  const absl::Status ok;
  metrics->requests().OnStarted(stats);
  metrics->requests().OnToken({.first_s = 21.0});
  metrics->requests().OnEnd({generation, stats, ok, FinishReason::kLength, true, 151.0});
  const Page page = Page::Parse(metrics->Text());
  const auto bucket = [&](const char* name, const char* le) {
    return page.at(std::string("vllm:") + name + "_bucket{model_name=\"m\",engine=\"0\",le=\"" +
                   le + "\"}");
  };
  EXPECT_EQ(bucket("e2e_request_latency_seconds", "120"), 0);
  EXPECT_EQ(bucket("e2e_request_latency_seconds", "240"), 1);
  EXPECT_EQ(bucket("e2e_request_latency_seconds", "7680"), 1);
  EXPECT_EQ(bucket("time_to_first_token_seconds", "20"), 0);  // the queue is in it
  EXPECT_EQ(bucket("time_to_first_token_seconds", "40"), 1);
  EXPECT_EQ(bucket("request_queue_time_seconds", "20"), 1);
  EXPECT_EQ(bucket("request_prompt_tokens", "2"), 0);
  EXPECT_EQ(bucket("request_prompt_tokens", "5"), 1);
  page.ExpectSound();
}

TEST(Metrics, BucketsByOption) {
  const auto metrics = Make({.histogram_buckets = "time_to_first_token_seconds=0.0005,0.002;"
                                                  "request_params_n=3"});
  metrics->requests().OnToken({.first_s = 0.001});
  const Page page = Page::Parse(metrics->Text());
  const std::string name = "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",engine=\"0\",";
  EXPECT_EQ(page.at(name + "le=\"0.0005\"}"), 0);
  EXPECT_EQ(page.at(name + "le=\"0.002\"}"), 1);
  EXPECT_FALSE(page.has(name + "le=\"0.005\"}"));
  for (const auto& [spec, part] : std::vector<std::pair<std::string, std::string>>{
           {"time_to_first_tokens=1", "did you mean time_to_first_token_seconds?"},
           {"request_params_n=1,x", "the bound x"},
           {"request_params_n=2,1", "1 after 2; bounds must ascend"},
           {"request_params_n=1,1", "bounds must ascend"},
           {"request_params_n=nan", "not a number"},
           {"request_params_n=", "has 0 bounds"},
           {"request_params_n", "has 0 bounds"},
           {"request_params_n=1;request_params_n=2", "given twice"}}) {
    const auto refused = Metrics::Make({.histogram_buckets = spec, .max_model_len = 10});
    ASSERT_FALSE(refused.ok()) << spec;
    EXPECT_NE(Message(refused.status()).find(part), std::string::npos) << refused.status();
  }
}

TEST(Metrics, LabelsOfCallsAreBounded) {
  const auto metrics = Make();
  for (int i = 0; i < 3000; ++i) {
    metrics->calls().GrpcHandled("/a.B/M" + std::to_string(i), i % 20, 0.1);
    metrics->calls().HttpHandled("GET", "/h" + std::to_string(i), 200, 0.1);
  }
  const Page page = Page::Parse(metrics->Text());
  EXPECT_LE(page.CountOf("grpc_server_handled_total"), 1000 + 17u);
  EXPECT_LE(page.CountOf("http_requests_total"), 1001u);
  EXPECT_EQ(page.SumOf("grpc_server_handled_total"), 3000);
  EXPECT_EQ(page.SumOf("http_requests_total"), 3000);
  page.ExpectSound();
}

// As vLLM writes them (vllm/entrypoints/.../orca_metrics.py).
TEST(Metrics, Orca) {
  const auto metrics = Make();
  EXPECT_EQ(metrics->Orca("TEXT"), "");
  metrics->UseEngine([] { return Snapshot(1); }, [] { return 0; });
  EXPECT_EQ(metrics->Orca("text"),
            "TEXT named_metrics.kv_cache_usage_perc=0.1875, "
            "named_metrics.num_requests_waiting=5");
  EXPECT_EQ(metrics->Orca("JSON"),
            R"(JSON {"named_metrics":{"kv_cache_usage_perc":0.1875,"num_requests_waiting":5}})");
  EXPECT_EQ(metrics->Orca("BIN"), "");
  EXPECT_EQ(metrics->Orca(""), "");
}

}  // namespace
}  // namespace quire
