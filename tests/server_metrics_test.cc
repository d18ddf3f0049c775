// Metrics of the daemon over a scripted executor: what requests do is what the page says, also when
// they are cancelled, preempted or refused. HARD-CASES P01, P02, P05.
#include <gtest/gtest.h>

#include <random>

#include "server/metrics/metrics.h"
#include "tests/support/exposition.h"
#include "tests/support/server_rig.h"

namespace quire::server_test {
namespace {

using metrics_test::Page;

constexpr TokenId kEos = 50256;
const char* const kBase = "{model_name=\"scripted\",engine=\"0\"}";

Page PageOf(Rig& rig) {
  Page page = Page::Parse(rig.daemon().metrics().Text());
  page.ExpectSound();
  return page;
}

double Ended(const Page& page, const std::string& reason) {
  return page.at(
      "vllm:request_success_total{model_name=\"scripted\",engine=\"0\",finished_reason=\"" +
      reason + "\"}");
}

double Refused(const Page& page, const std::string& reason) {
  return page.at("quire:rejections_total{model_name=\"scripted\",engine=\"0\",reason=\"" + reason +
                 "\"}");
}

bool AllEnded(Rig& rig) {
  const RequestCounts c = rig.daemon().edge().counts();
  return c.started == c.ok + c.cancelled + c.deadline + c.failed;
}

TEST(ServerMetrics, P01_EachEndIsCountedOnce) {
  RigOptions options;
  options.eos_token_ids = {kEos};
  Rig rig(options);
  rig.executor.Say([](const Request& request, int32_t, int32_t num_output) {
    return num_output >= 2 && request.stop.max_tokens == 20 ? kEos : TokenId{100};
  });
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(rig.Generate(Rig::TextRequest("some text", 20)).status.ok());
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(rig.GenerateUnary(Rig::TextRequest("some text", 3)).first.ok());
  }
  for (int i = 0; i < 3; ++i) {
    pb::GenerateRequest request = Rig::TextRequest("some text", 3);
    request.mutable_sampling()->set_temperature(-1);
    EXPECT_EQ(rig.Generate(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  // Five that run and two that the engine has yet to look at.
  std::vector<std::unique_ptr<Call>> calls;
  rig.executor.Pause(milliseconds(1));
  for (int i = 0; i < 5; ++i) {
    calls.push_back(std::make_unique<Call>(rig.stub(), Rig::TextRequest("some text", 400)));
    while (calls.back()->answer.num_deltas == 0) ASSERT_TRUE(calls.back()->Read());
  }
  rig.executor.SetOpen(false);
  rig.executor.WaitForStep();
  for (int i = 0; i < 2; ++i) {
    calls.push_back(std::make_unique<Call>(rig.stub(), Rig::TextRequest("some text", 400)));
  }
  ASSERT_TRUE(rig.Eventually([&] { return rig.daemon().edge().counts().started == 22; }));
  for (const auto& call : calls) call->context.TryCancel();
  for (const auto& call : calls) {
    EXPECT_EQ(call->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  for (int i = 0; i < 2; ++i) {
    Call late(rig.stub(), Rig::TextRequest("some text", 400), milliseconds(100));
    EXPECT_EQ(late.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  rig.executor.SetOpen(true);
  ASSERT_TRUE(rig.Eventually([&] { return AllEnded(rig); }));
  const Page page = PageOf(rig);
  EXPECT_EQ(Ended(page, "stop"), 10);
  EXPECT_EQ(Ended(page, "length"), 5);
  EXPECT_EQ(Ended(page, "abort"), 7);
  EXPECT_EQ(Ended(page, "deadline"), 2);
  EXPECT_EQ(Ended(page, "error"), 0);
  EXPECT_EQ(Refused(page, "invalid"), 3);
  EXPECT_EQ(page.SumOf("vllm:request_success_total"), page.at("quire:requests_started_total"));
  EXPECT_EQ(page.at(std::string("vllm:e2e_request_latency_seconds_count") + kBase), 24);
}

TEST(ServerMetrics, P02_GaugesFallWithoutAnotherStep) {
  RigOptions options;
  options.num_blocks = 1024;
  Rig rig(options);
  rig.executor.Pause(milliseconds(1));
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 31; ++i) {
    calls.push_back(std::make_unique<Call>(rig.stub(), Rig::TextRequest("some text", 400)));
  }
  ASSERT_TRUE(rig.Eventually([&] {
    const Page page = PageOf(rig);
    return page.at(std::string("vllm:num_requests_running") + kBase) == 16 &&
           page.at(std::string("vllm:num_requests_waiting") + kBase) == 15;
  }));
  EXPECT_GT(PageOf(rig).at(std::string("vllm:kv_cache_usage_perc") + kBase), 0);
  for (const auto& call : calls) call->context.TryCancel();
  EXPECT_TRUE(rig.Eventually([&] {
    const Page page = PageOf(rig);
    return page.at(std::string("vllm:num_requests_running") + kBase) == 0 &&
           page.at(std::string("vllm:num_requests_waiting") + kBase) == 0 &&
           page.at(std::string("vllm:kv_cache_usage_perc") + kBase) == 0;
  }));
  for (const auto& call : calls) call->Finish();
}

// The pool holds one of them at its full length, so they preempt each other.
TEST(ServerMetrics, P05_TimesOfPreemptedRequests) {
  RigOptions options;
  options.num_blocks = 20;
  options.server.max_model_len = 144;
  Rig rig(options);
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(std::make_unique<Call>(
        rig.stub(), Rig::TextRequest("text number " + std::to_string(i), 120)));
  }
  double completion = 0;
  double prompt = 0;
  for (const auto& call : calls) {
    ASSERT_TRUE(call->Finish().ok()) << call->answer.status.error_message();
    completion += call->answer.usage.completion_tokens();
    prompt += call->answer.usage.prompt_tokens();
  }
  ASSERT_TRUE(rig.Eventually([&] { return AllEnded(rig); }));
  const Page page = PageOf(rig);
  const auto at = [&](const std::string& name) { return page.at("vllm:" + name + kBase); };
  EXPECT_GT(at("num_preemptions_total"), 0);
  EXPECT_EQ(completion, 480);
  EXPECT_EQ(at("time_to_first_token_seconds_count"), 4);
  EXPECT_EQ(at("inter_token_latency_seconds_count"), completion - 4);
  EXPECT_EQ(at("generation_tokens_total"), completion);
  EXPECT_EQ(at("prompt_tokens_total"), prompt);
  EXPECT_EQ(at("request_generation_tokens_sum"), completion);
  EXPECT_EQ(at("request_prompt_tokens_sum"), prompt);
  EXPECT_EQ(at("request_num_preemptions_sum"), at("num_preemptions_total"));
  EXPECT_LE(at("request_queue_time_seconds_sum") + at("request_inference_time_seconds_sum"),
            at("e2e_request_latency_seconds_sum"));
  EXPECT_LE(at("time_to_first_token_seconds_sum"), at("e2e_request_latency_seconds_sum"));
}

TEST(ServerMetrics, SumsAgreeAtIdle) {
  Rig rig;
  std::mt19937 random(3);
  const auto draw = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<int> fates;
  for (int i = 0; i < 120; ++i) {
    pb::GenerateRequest request =
        Rig::TextRequest(std::string(draw(60) + 1, 'a' + draw(3)), 1 + draw(40));
    request.mutable_sampling()->set_n(1 + draw(3));
    if (draw(8) == 0) request.mutable_stopping()->add_stop("aa");
    calls.push_back(std::make_unique<Call>(rig.stub(), request));
    fates.push_back(draw(5));
    if (fates.back() == 0) calls.back()->context.TryCancel();
  }
  double ok_completion = 0;
  for (const auto& call : calls) {
    if (call->Finish().ok()) ok_completion += call->answer.usage.completion_tokens();
  }
  ASSERT_TRUE(rig.Eventually([&] { return AllEnded(rig); }));
  rig.ExpectIdle();
  const Page page = PageOf(rig);
  const auto at = [&](const std::string& name) { return page.at("vllm:" + name + kBase); };
  const double started = page.at("quire:requests_started_total");
  EXPECT_GT(started, 0);
  EXPECT_EQ(page.SumOf("vllm:request_success_total"), started);
  EXPECT_EQ(page.SumOf("quire:requests_total"), started + page.SumOf("quire:rejections_total"));
  EXPECT_EQ(at("e2e_request_latency_seconds_count"), started);
  EXPECT_EQ(page.SumOf("vllm:prompt_tokens_by_source_total"), at("prompt_tokens_total"));
  EXPECT_EQ(at("prompt_tokens_total"), at("request_prompt_tokens_sum"));
  EXPECT_EQ(at("prompt_tokens_total"),
            at("request_prefill_kv_computed_tokens_sum") + at("prompt_tokens_cached_total"));
  EXPECT_GE(at("generation_tokens_total"), ok_completion);
  EXPECT_EQ(at("num_requests_running") + at("num_requests_waiting"), 0);
  EXPECT_EQ(page.SumOf("quire:kv_blocks"), 256);
}

TEST(ServerMetrics, CallsAreCountedByMethodAndStatus) {
  Rig rig;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(rig.GenerateUnary(Rig::TextRequest("some text", 2)).first.ok());
  }
  pb::GenerateRequest wrong = Rig::TextRequest("some text", 2);
  wrong.set_model("other");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(rig.GenerateUnary(wrong).first.error_code(), grpc::StatusCode::NOT_FOUND);
  }
  EXPECT_TRUE(rig.Generate(Rig::TextRequest("some text", 2)).status.ok());
  const auto count = [&](const std::string& method, const std::string& code) {
    return "grpc_server_handled_total{grpc_service=\"quire.v1.Generation\",grpc_method=\"" +
           method + "\",grpc_code=\"" + code + "\"}";
  };
  ASSERT_TRUE(rig.Eventually([&] { return PageOf(rig).has(count("Generate", "OK")); }));
  const Page page = PageOf(rig);
  EXPECT_EQ(page.at(count("GenerateUnary", "OK")), 3);
  EXPECT_EQ(page.at(count("GenerateUnary", "NotFound")), 2);
  EXPECT_EQ(page.at(count("Generate", "OK")), 1);
  EXPECT_EQ(page.at("grpc_server_handling_seconds_count{grpc_service=\"quire.v1.Generation\","
                    "grpc_method=\"GenerateUnary\"}"),
            5);
}

// A full queue: the caller is told when to come again, and it is counted as what it was.
TEST(ServerMetrics, AFullQueueTellsWhenToComeAgain) {
  RigOptions options;
  options.server.max_queued_requests = 1;
  Rig rig(options);
  rig.executor.SetOpen(false);
  Call running(rig.stub(), Rig::TextRequest("some text", 2));
  rig.executor.WaitForStep();
  std::vector<std::unique_ptr<Call>> calls;
  calls.push_back(std::make_unique<Call>(rig.stub(), Rig::TextRequest("some text", 2)));
  calls.push_back(std::make_unique<Call>(rig.stub(), Rig::TextRequest("some text", 2)));
  ASSERT_TRUE(rig.Eventually([&] { return rig.daemon().edge().counts().refused >= 1; }));
  rig.executor.SetOpen(true);
  int refused = 0;
  for (const auto& call : calls) {
    if (call->Finish().ok()) continue;
    ++refused;
    EXPECT_EQ(call->answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    const auto& trailer = call->context.GetServerTrailingMetadata();
    const auto wait = trailer.find("grpc-retry-pushback-ms");
    ASSERT_NE(wait, trailer.end());
    EXPECT_EQ(std::string(wait->second.data(), wait->second.size()), "1000");
  }
  EXPECT_TRUE(running.Finish().ok());
  const Page page = PageOf(rig);
  EXPECT_EQ(Refused(page, "queue"), refused);
  EXPECT_EQ(page.SumOf("vllm:admission_rejections_total"), refused);
}

}  // namespace
}  // namespace quire::server_test
