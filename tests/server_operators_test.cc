// What operators change while requests run: limits, policy, pause; that answers stay the same bits;
// that what is refused changes nothing; that the options are what the scheduler has.
#include <google/protobuf/descriptor.h>

#include "server/admin/inspect.h"
#include "server/cli/admin_text.h"
#include "server/config_sources.h"
#include "server/scheduling.h"
#include "tests/scheduler_harness.h"
#include "tests/support/solo_runs.h"

namespace quire::server_test {
namespace {

using grpc::StatusCode;

std::pair<grpc::Status, pb::Config> Update(pb::Admin::Stub& admin,
                                           const pb::UpdateConfigRequest& request) {
  pb::Config config;
  const grpc::Status status = Ask(&pb::Admin::Stub::UpdateConfig, admin, request, config);
  return {status, config};
}

pb::Config ConfigOf(pb::Admin::Stub& admin) {
  pb::Config config;
  const grpc::Status status =
      Ask(&pb::Admin::Stub::GetConfig, admin, pb::GetConfigRequest(), config);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return config;
}

pb::ServerInfo InfoOf(pb::Admin::Stub& admin) {
  pb::ServerInfo info;
  EXPECT_TRUE(Ask(&pb::Admin::Stub::GetServerInfo, admin, pb::GetServerInfoRequest(), info).ok());
  return info;
}

// Answers whether it was paused before.
bool Pause(pb::Admin::Stub& admin) {
  pb::PauseResponse reply;
  const grpc::Status status = Ask(&pb::Admin::Stub::Pause, admin, pb::PauseRequest(), reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return reply.was_paused();
}
bool Resume(pb::Admin::Stub& admin) {
  pb::ResumeResponse reply;
  EXPECT_TRUE(Ask(&pb::Admin::Stub::Resume, admin, pb::ResumeRequest(), reply).ok());
  return reply.was_paused();
}

// ---- options ----

struct OptionCase {
  const char* option;
  const char* value;
  double initial;  // what the scheduler has by default
  double set;      // and with the option
  std::function<double(const SchedulerOptions&)> read;
};

TEST(SchedulingOptions, EachReachesTheScheduler) {
  using O = const SchedulerOptions&;
  const auto policy = [](O o) { return static_cast<double>(o.policy); };
  const auto preemption = [](O o) { return static_cast<double>(o.preemption); };
  const std::vector<OptionCase> cases = {
      {"max_num_seqs", "7", 64, 7, [](O o) { return o.max_num_seqs; }},
      {"max_num_batched_tokens", "99", 512, 99, [](O o) { return o.max_num_batched_tokens; }},
      {"max_queued_requests", "3", 1024, 3, [](O o) { return o.max_queued_requests; }},
      {"enable_prefix_caching", "false", 1, 0, [](O o) { return o.enable_prefix_caching; }},
      {"watermark", "0.25", 0.01, 0.25, [](O o) { return o.watermark; }},
      {"priority_aging_ms", "17", 10'000, 17, [](O o) { return o.priority_aging_ms; }},
      {"shortest_aging_us_per_token", "18", 10'000, 18,
       [](O o) { return o.shortest_aging_us_per_token; }},
      {"fair_prompt_weight", "0.125", 0.5, 0.125, [](O o) { return o.fair_prompt_weight; }},
      {"long_prefill_token_threshold", "19", 0, 19,
       [](O o) { return o.long_prefill_token_threshold; }},
      {"target_itl_ms", "2.5", 0, 2.5, [](O o) { return o.target_step_ms; }},
      {"num_speculative_tokens", "5", 16, 5, [](O o) { return o.num_speculative_tokens; }},
      {"scheduling_policy", "fcfs", 0, 0, policy},
      {"scheduling_policy", "priority", 0, 1, policy},
      {"scheduling_policy", "shortest_first", 0, 2, policy},
      {"scheduling_policy", "fair", 0, 3, policy},
      {"scheduling_policy", "prefix_aware", 0, 4, policy},
      {"preemption_mode", "recompute", 0, 0, preemption},
      {"preemption_mode", "swap", 0, 1, preemption},
      {"preemption_mode", "auto", 0, 2, preemption},
  };
  for (const OptionCase& c : cases) {
    ServerOptions options;
    EXPECT_EQ(c.read(ToSchedulerOptions(options)), c.initial) << c.option;
    ASSERT_TRUE(ApplySetting({c.option, c.value, "test"}, options).ok()) << c.option;
    EXPECT_EQ(c.read(ToSchedulerOptions(options)), c.set) << c.option << "=" << c.value;
  }
  const std::vector<std::pair<const char*, SpeculationMethod>> methods = {
      {"none", SpeculationMethod::kNone},
      {"ngram", SpeculationMethod::kNgram},
      {"suffix", SpeculationMethod::kSuffix},
      {"draft", SpeculationMethod::kDraft}};
  for (const auto& [name, method] : methods) {
    ServerOptions options;
    EXPECT_EQ(DefaultSpeculation(options), SpeculationMethod::kNone);
    ASSERT_TRUE(ApplySetting({"speculation", name, "test"}, options).ok());
    EXPECT_EQ(DefaultSpeculation(options), method);
  }
}

// What may be changed is called as the option is, and the daemon shows what it was started with.
TEST(SchedulingOptions, AreShownAsTheyAre) {
  const std::vector<std::string> names = OptionNames();
  const google::protobuf::Descriptor& update = *pb::UpdateConfigRequest::descriptor();
  for (int i = 0; i < update.field_count(); ++i) {
    EXPECT_NE(std::find(names.begin(), names.end(), update.field(i)->name()), names.end())
        << update.field(i)->name();
    EXPECT_NE(pb::Config::descriptor()->FindFieldByName(update.field(i)->name()), nullptr);
  }
  ServerOptions server;
  server.max_queued_requests = 77;
  server.watermark = 0.125;
  server.scheduling_policy = "fair";
  server.long_prefill_token_threshold = 11;
  server.target_itl_ms = 40;
  server.num_speculative_tokens = 9;
  server.speculation = "suffix";
  ModelRig rig("llama", Small(40), server);
  const pb::Config config = ConfigOf(rig.admin());
  EXPECT_EQ(config.num_blocks(0), 40u);
  EXPECT_EQ(config.max_num_seqs(), 8);
  EXPECT_EQ(config.max_num_batched_tokens(), 64);
  EXPECT_EQ(config.max_queued_requests(), 77);
  EXPECT_EQ(config.watermark(), 0.125);
  EXPECT_EQ(config.scheduling_policy(), "fair");
  EXPECT_EQ(config.long_prefill_token_threshold(), 11);
  EXPECT_EQ(config.target_itl_ms(), 40);
  EXPECT_EQ(config.num_speculative_tokens(), 9);
  const pb::ServerInfo info = InfoOf(rig.admin());
  EXPECT_EQ(info.speculation(), "suffix");
  EXPECT_EQ(info.num_speculative_tokens(), 9u);
  EXPECT_EQ(info.scheduling_policy(), "fair");
  EXPECT_FALSE(info.has_draft_model());
  EXPECT_FALSE(info.paused());
  EXPECT_EQ(rig.Stats().scheduler().policy(), "fair");
  const std::string text = ConfigText(config);
  for (int i = 0; i < update.field_count(); ++i) {
    EXPECT_NE(text.find(update.field(i)->name()), std::string::npos) << text;
  }
}

// ---- changes while requests run ----

class OperatorsOn : public ::testing::TestWithParam<const char*> {};

// Every policy and limit in turn, as long as requests run, with guesses on and off.
TEST_P(OperatorsOn, LiveChangesChangeNoBit) {
  const Solo solo = RunAlone(GetParam(), 8);
  ServerOptions server;
  server.speculation = "ngram";
  ModelRig rig(GetParam(), Small(800), server);
  rig.executor().pause_ms = 2;
  const char* const policies[] = {"priority", "shortest_first", "fair", "prefix_aware", "fcfs"};
  std::set<std::string> seen;
  int64_t changes = 0;
  RunTogether(rig, solo, [&](int i) {
    pb::UpdateConfigRequest request;
    request.set_scheduling_policy(policies[i % 5]);
    request.set_max_num_seqs(2 + i % 7);  // two outputs of one request need two places
    request.set_max_num_batched_tokens(16 + 16 * (i % 4));
    request.set_long_prefill_token_threshold(i % 3 * 5);
    request.set_target_itl_ms(i % 4);
    request.set_num_speculative_tokens(i % 2 * 8);
    const auto [status, config] = Update(rig.admin(), request);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(config.scheduling_policy(), policies[i % 5]);
    EXPECT_EQ(config.max_num_seqs(), 2 + i % 7);
    EXPECT_EQ(config.num_speculative_tokens(), i % 2 * 8);
    seen.insert(rig.Stats(/*fresh=*/true).scheduler().policy());
    ++changes;
  });
  EXPECT_EQ(seen.size(), 5u) << "every policy had its turn";
  const pb::BlockStats s = rig.Stats();
  EXPECT_GE(s.scheduler().policy_changes() + 1, static_cast<uint64_t>(changes));
  EXPECT_GT(s.scheduler().draft_tokens(), 0u);
  EXPECT_LE(s.scheduler().accepted_draft_tokens(), s.scheduler().draft_tokens());
  EXPECT_GT(s.scheduler().step_fixed_us() + s.scheduler().step_us_per_token(), 0);
  EXPECT_EQ(s.used_blocks(), 0u);
  const std::string text = StatsText(s);
  EXPECT_NE(text.find(fmt::format("{} of {} right", s.scheduler().accepted_draft_tokens(),
                                  s.scheduler().draft_tokens())),
            std::string::npos)
      << text;
}

// A draft model that is the served one itself: what it guesses greedily is always right.
TEST_P(OperatorsOn, DraftModelGuessesAndCountsAsMemory) {
  Solo solo = RunAlone(GetParam(), 1);
  RuntimeOptions options = Small(800);
  options.draft_model = ReferencePath(std::string("models/") + GetParam());
  options.draft_num_blocks = 100;
  ServerOptions server;
  server.speculation = "draft";
  server.draft_model = options.draft_model;
  ModelRig rig(GetParam(), options, server);
  EXPECT_TRUE(InfoOf(rig.admin()).has_draft_model());
  ExpectEqual(rig.Generate(solo.requests[0]), solo.answers[0]);
  const pb::SchedulerStats s = rig.Stats().scheduler();
  EXPECT_GT(s.draft_tokens(), 10u);
  EXPECT_EQ(s.accepted_draft_tokens(), s.draft_tokens());

  // All of it, the pool of 100 blocks included.
  pb::MemoryProfile profile;
  ASSERT_TRUE(
      Ask(&pb::Admin::Stub::GetMemoryProfile, rig.admin(), pb::GetMemoryProfileRequest(), profile)
          .ok());
  EXPECT_GE(profile.draft_model(), profile.weights() + 100 * profile.block_bytes());
  EXPECT_NE(MemoryText(profile).find("draft model"), std::string::npos);
  EXPECT_NE(rig.runtime().memory().ToString().find("draft model"), std::string::npos);
  RuntimeOptions by_share = Small(0);
  by_share.model = options.draft_model;
  by_share.draft_model = options.draft_model;
  by_share.num_threads = 1;
  const auto loaded = ModelRuntime::Load(by_share);
  ASSERT_TRUE(loaded.ok()) << Message(loaded.status());
  const MemoryProfile& p = (*loaded)->memory();
  EXPECT_LE(p.weights + p.activation_peak + p.reserve + p.draft_model + p.kv_pool, p.budget);
  by_share.draft_num_blocks = 1'000'000'000;
  const absl::Status refused = ModelRuntime::Load(by_share).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(Message(refused).find("draft_num_blocks=1000000000"), std::string::npos);
  by_share.draft_num_blocks = 8;
  by_share.draft_model = ReferencePath("models/nothing-here");
  const absl::Status missing = ModelRuntime::Load(by_share).status();
  EXPECT_NE(Message(missing).find("draft_model="), std::string::npos) << Message(missing);
}
INSTANTIATE_TEST_SUITE_P(Models, OperatorsOn, ::testing::Values("llama", "gemma3"));

TEST(Operators, RefusedUpdatesNameFieldValueAndLimitAndChangeNothing) {
  RuntimeOptions options = Small(60);
  options.max_num_blocks = 80;
  ModelRig rig("llama", options);
  const pb::Config before = ConfigOf(rig.admin());
  struct Case {
    std::function<void(pb::UpdateConfigRequest&)> set;
    std::vector<const char*> parts;
  };
  using R = pb::UpdateConfigRequest&;
  const std::vector<Case> cases = {
      {[](R r) { r.set_max_num_seqs(0); }, {"max_num_seqs=0", "[1, 4096]"}},
      {[](R r) { r.set_max_num_seqs(-1); }, {"max_num_seqs=-1", "[1, 4096]"}},
      {[](R r) { r.set_max_num_seqs(9); }, {"max_num_seqs=9", "8", "restart"}},
      {[](R r) { r.set_max_num_batched_tokens(65); }, {"max_num_batched_tokens=65", "64"}},
      {[](R r) { r.set_max_num_batched_tokens(7); },
       {"max_num_batched_tokens=7", "max_num_seqs=8"}},
      {[](R r) { r.set_max_queued_requests(0); }, {"max_queued_requests=0", "[1, 1048576]"}},
      {[](R r) { r.set_watermark(1); }, {"watermark=1", "[0, 0.99]"}},
      {[](R r) { r.set_watermark(-0.1); }, {"watermark=-0.1", "[0, 0.99]"}},
      {[](R r) { r.set_watermark(std::nan("")); }, {"watermark=nan", "[0, 0.99]"}},
      {[](R r) { r.set_scheduling_policy("lifo"); },
       {"scheduling_policy=lifo", "fcfs", "prefix_aware"}},
      {[](R r) { r.set_scheduling_policy(""); }, {"scheduling_policy=", "fcfs"}},
      {[](R r) { r.set_long_prefill_token_threshold(-1); },
       {"long_prefill_token_threshold=-1", "[0, 1048576]"}},
      {[](R r) { r.set_target_itl_ms(-1); }, {"target_itl_ms=-1", "[0, 1000000]"}},
      {[](R r) { r.set_target_itl_ms(std::nan("")); }, {"target_itl_ms=nan", "[0, 1000000]"}},
      {[](R r) { r.set_num_speculative_tokens(65); }, {"num_speculative_tokens=65", "[0, 64]"}},
      {[](R r) { r.set_num_blocks(0); }, {"num_blocks=0", "[1, "}},
      // One that can't be, in the company of some that could.
      {[](R r) {
         r.set_num_blocks(81);
         r.set_scheduling_policy("fair");
         r.set_max_num_seqs(4);
         r.set_max_queued_requests(5);
         r.set_watermark(0.5);
         r.set_target_itl_ms(10);
       },
       {"num_blocks=81", "[1, 80]"}},
      {[](R r) {
         r.set_num_blocks(30);
         r.set_scheduling_policy("priority");
         r.set_max_num_seqs(9);
       },
       {"max_num_seqs=9", "8"}},
  };
  for (const Case& c : cases) {
    pb::UpdateConfigRequest request;
    c.set(request);
    const grpc::Status status = Update(rig.admin(), request).first;
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << request.ShortDebugString();
    for (const char* part : c.parts) {
      EXPECT_NE(status.error_message().find(part), std::string::npos) << status.error_message();
    }
    EXPECT_EQ(ConfigOf(rig.admin()).DebugString(), before.DebugString());
  }
  EXPECT_EQ(rig.Stats().scheduler().policy_changes(), 0u);

  // All of these together are possible, and told by each view.
  pb::UpdateConfigRequest request;
  request.set_num_blocks(70);
  request.set_scheduling_policy("fair");
  request.set_max_num_seqs(4);
  request.set_max_num_batched_tokens(32);
  request.set_max_queued_requests(5);
  const auto [status, config] = Update(rig.admin(), request);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(config.DebugString(), ConfigOf(rig.admin()).DebugString());
  EXPECT_EQ(config.num_blocks(0), 70u);
  EXPECT_EQ(config.max_queued_requests(), 5);
  EXPECT_EQ(config.watermark(), before.watermark());
  const pb::ServerInfo info = InfoOf(rig.admin());
  EXPECT_EQ(info.max_num_seqs(), 4u);
  EXPECT_EQ(info.max_num_batched_tokens(), 32u);
  EXPECT_EQ(info.max_queued_requests(), 5u);
  EXPECT_EQ(info.scheduling_policy(), "fair");
  EXPECT_EQ(rig.Stats().scheduler().policy_changes(), 1u);
}

// Fewer places than are taken: nobody is put out, nobody is let in.
TEST(Operators, ALowerQueueBoundIsTheNextRequestsLimit) {
  RigOptions options;
  options.server.max_queued_requests = 8;
  Rig rig(options);
  const auto admin = pb::Admin::NewStub(rig.admin_channel());
  ASSERT_FALSE(Pause(*admin));
  std::vector<std::unique_ptr<Call>> calls;
  const auto call = [&] {
    calls.push_back(std::make_unique<Call>(rig.stub(), Rig::TextRequest("some text", 2)));
  };
  for (int i = 0; i < 4; ++i) call();
  ASSERT_TRUE(rig.Eventually([&] {
    ConfigOf(*admin);  // wakes the engine, so that its gauges are of now
    return rig.Blocks().queued_requests() == 4;
  }));
  pb::UpdateConfigRequest request;
  request.set_max_queued_requests(4);
  ASSERT_TRUE(Update(*admin, request).first.ok());
  ConfigOf(*admin);
  const Answer refused = rig.Generate(Rig::TextRequest("one more", 2));
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  request.set_max_queued_requests(5);
  ASSERT_TRUE(Update(*admin, request).first.ok());
  ConfigOf(*admin);
  call();
  EXPECT_TRUE(Resume(*admin));
  for (auto& c : calls) EXPECT_TRUE(c->Finish().ok()) << c->answer.status.error_message();
  rig.ExpectIdle();
}

// ---- pause ----

TEST(Operators, APauseComputesNothingAndDeadlinesHold) {
  const Solo solo = RunAlone("llama", 2);
  ModelRig rig("llama", Small(100));
  rig.executor().pause_ms = 2;
  Call running(rig.stub(), solo.requests[0]);
  while (running.answer.num_deltas == 0) ASSERT_TRUE(running.Read());
  EXPECT_FALSE(Pause(rig.admin()));
  EXPECT_TRUE(Pause(rig.admin()));
  const uint64_t steps = rig.Stats().steps();
  EXPECT_TRUE(InfoOf(rig.admin()).paused());
  EXPECT_TRUE(rig.Stats().scheduler().paused());
  EXPECT_NE(StatsText(rig.Stats()).find("(paused)"), std::string::npos);

  // Taken in, and both kinds of deadline end it.
  pb::GenerateRequest late = ModelRig::Request(TestTokens(20, 3), 10);
  late.mutable_scheduling()->set_total_timeout_ms(50);
  Call total(rig.stub(), late);
  EXPECT_EQ(total.Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  late.mutable_scheduling()->clear_total_timeout_ms();
  late.mutable_scheduling()->set_queue_timeout_ms(50);
  Call queue(rig.stub(), late);
  EXPECT_EQ(queue.Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  Call waiting(rig.stub(), solo.requests[1]);
  EXPECT_TRUE(rig.Eventually([&] { return rig.Stats().queued_requests() == 1; }));
  EXPECT_EQ(rig.Requests().requests_size(), 2);
  EXPECT_EQ(rig.Stats().steps(), steps);

  EXPECT_TRUE(Resume(rig.admin()));
  EXPECT_FALSE(Resume(rig.admin()));
  EXPECT_TRUE(running.Finish().ok());
  EXPECT_TRUE(waiting.Finish().ok());
  ExpectEqual(running.answer, solo.answers[0]);
  ExpectEqual(waiting.answer, solo.answers[1]);
  EXPECT_FALSE(InfoOf(rig.admin()).paused());
  EXPECT_EQ(rig.Stats().used_blocks(), 0u);
}

TEST(Operators, ADrainEndsAPause) {
  Rig rig;
  const auto admin = pb::Admin::NewStub(rig.admin_channel());
  EXPECT_FALSE(Pause(*admin));
  Call call(rig.stub(), Rig::TextRequest("some text", 5));
  ASSERT_TRUE(rig.Eventually([&] {
    ConfigOf(*admin);
    return rig.Blocks().queued_requests() == 1;
  }));
  rig.daemon().Drain(std::chrono::minutes(1));
  EXPECT_TRUE(call.Finish().ok()) << call.answer.status.error_message();
  EXPECT_FALSE(InfoOf(*admin).paused());
  pb::PauseResponse reply;
  const grpc::Status refused = Ask(&pb::Admin::Stub::Pause, *admin, pb::PauseRequest(), reply);
  EXPECT_EQ(refused.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(refused.error_message().find("draining"), std::string::npos);
}

// ---- what is shown of a request ----

// A beam that is done with its step while a sibling has been put back is parked; here with as few
// pages as make that happen.
TEST(Operators, ParkedBeamsAndWhoAsksAreShown) {
  using sched_test::Harness;
  int32_t num_parked = 0;
  for (int32_t pages = 10; pages <= 14 && num_parked == 0; ++pages) {
    sched_test::HarnessOptions options;
    options.num_pages = pages;
    options.scheduler.watermark = 0;
    options.scheduler.policy = SchedulingPolicy::kPriority;
    Harness h(options);
    for (int32_t i = 0; i < 3; ++i) {
      Request r = h.Make(sched_test::Iota(10 * i, 6), 14);
      r.client_id = fmt::format("beams {}", i);
      r.tenant = fmt::format("tenant {}", i);
      r.priority = 7 - i;
      r.beam.beam_width = 3;
      h.Submit(std::move(r));
    }
    while (h.Step()) {
      const RequestList list = CopyRequests(h.scheduler(), "", true, 10);
      for (size_t i = 1; i < list.requests.size(); ++i) {
        EXPECT_GT(list.requests[i - 1].priority, list.requests[i].priority) << "order of service";
      }
      for (const RequestView& view : list.requests) {
        const std::string number = view.request_id.substr(6);
        EXPECT_EQ(view.tenant, "tenant " + number);
        EXPECT_EQ(view.priority, 7 - std::stoi(number));
        EXPECT_EQ(view.beam_width, 3);
        for (const BranchView& branch : view.branches) {
          if (branch.state != BranchState::kParked) continue;
          ++num_parked;
          EXPECT_EQ(branch.computed_tokens, branch.total_tokens);
        }
      }
    }
    h.ExpectIdleAndClean();
  }
  EXPECT_GT(num_parked, 0);
}

}  // namespace
}  // namespace quire::server_test
