// What operators do to the cache of a served model, and what requests ask to be kept: pins, flush,
// sizes, files, retention. HARD-CASES A10 by RPC.
#include "models/pool_sizes.h"
#include "server/cli/admin_text.h"
#include "tests/support/solo_runs.h"

namespace quire::server_test {
namespace {

using grpc::StatusCode;

pb::PinPrefixRequest PinOf(const std::vector<TokenId>& tokens) {
  pb::PinPrefixRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(tokens.begin(), tokens.end());
  return request;
}

std::pair<grpc::Status, pb::Pin> Pin(ModelRig& rig, const pb::PinPrefixRequest& request) {
  pb::Pin pin;
  const grpc::Status status = Ask(&pb::Admin::Stub::PinPrefix, rig.admin(), request, pin);
  return {status, pin};
}

pb::ListPinsResponse Pins(ModelRig& rig) {
  pb::ListPinsResponse pins;
  EXPECT_TRUE(Ask(&pb::Admin::Stub::ListPins, rig.admin(), pb::ListPinsRequest(), pins).ok());
  return pins;
}

pb::FlushPrefixCacheResponse Flush(ModelRig& rig, const std::string* salt) {
  pb::FlushPrefixCacheRequest request;
  if (salt == nullptr) {
    request.set_all(true);
  } else {
    request.set_cache_salt(*salt);
  }
  pb::FlushPrefixCacheResponse response;
  EXPECT_TRUE(Ask(&pb::Admin::Stub::FlushPrefixCache, rig.admin(), request, response).ok());
  return response;
}

// Texts that nobody asks for again, until the pool has been turned over.
void Press(ModelRig& rig, uint32_t seed) {
  const uint64_t before = rig.Stats().pools(0).drops().evicted();
  for (uint32_t i = 0; i < 4; ++i) {
    rig.Generate(ModelRig::Request(TestTokens(200, seed + i), 1));
  }
  EXPECT_GT(rig.Stats().pools(0).drops().evicted(), before);
}

TEST(AdminActions, APinSurvivesWhatEvictsEverythingElse) {
  ModelRig rig("llama", Small(40));
  const pb::GenerateRequest kept = ModelRig::Request(TestTokens(33, 1), 1);
  const pb::GenerateRequest other = ModelRig::Request(TestTokens(33, 2), 1);
  EXPECT_EQ(Pin(rig, PinOf(TestTokens(33, 1))).first.error_code(), StatusCode::NOT_FOUND);
  rig.Generate(kept);
  rig.Generate(other);
  const auto [status, pin] = Pin(rig, PinOf(TestTokens(33, 1)));
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(pin.num_tokens(), 32u);
  EXPECT_FALSE(pin.has_ttl_ms());
  pb::BlockStats s = rig.Stats();
  EXPECT_EQ(s.pinned_blocks(), 4u);
  EXPECT_EQ(s.used_blocks(), 4u);
  EXPECT_EQ(s.pins(), 1u);
  const pb::ListPinsResponse pins = Pins(rig);
  ASSERT_EQ(pins.pins_size(), 1);
  EXPECT_EQ(pins.pins(0).pin_id(), pin.pin_id());
  EXPECT_EQ(pins.pinned_blocks(), 4u);
  int num_pinned = 0;
  for (const pb::BlockInfo& b : rig.BlockList()) num_pinned += b.pinned();
  EXPECT_EQ(num_pinned, 4);

  Press(rig, 100);
  EXPECT_EQ(rig.Cached(kept), 32u);
  EXPECT_EQ(rig.Cached(other), 0u);

  // Half of the pool may be pinned: 20 blocks.
  rig.Generate(ModelRig::Request(TestTokens(160, 3), 1));
  const grpc::Status full = Pin(rig, PinOf(TestTokens(160, 3))).first;
  EXPECT_EQ(full.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  for (const char* part : {"24 blocks", "limit is 20", "max_pinned_share=0.5"}) {
    EXPECT_NE(full.error_message().find(part), std::string::npos) << full.error_message();
  }
  // What is pinned is not there for requests: 36 of 40 are.
  pb::GenerateRequest large = ModelRig::Request(TestTokens(100, 4), 100);  // 12 + 2 * 13 blocks
  large.mutable_sampling()->set_n(2);
  Call refused(rig.stub(), large);
  EXPECT_EQ(refused.Finish().error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(refused.answer.status.error_message().find("unpin"), std::string::npos);

  pb::UnpinPrefixRequest unpin;
  unpin.set_pin_id(pin.pin_id());
  pb::UnpinPrefixResponse ended;
  ASSERT_TRUE(Ask(&pb::Admin::Stub::UnpinPrefix, rig.admin(), unpin, ended).ok());
  EXPECT_EQ(ended.ended_pins(), 1u);
  EXPECT_EQ(Ask(&pb::Admin::Stub::UnpinPrefix, rig.admin(), unpin, ended).error_code(),
            StatusCode::NOT_FOUND);
  Press(rig, 200);
  EXPECT_EQ(rig.Cached(kept), 0u);
  EXPECT_EQ(rig.Stats().used_blocks(), 0u);
}

TEST(AdminActions, PinsEndWithTheirTimeAndAllAtOnce) {
  ModelRig rig("llama", Small(40));
  rig.Generate(ModelRig::Request(TestTokens(17, 1), 1));
  pb::PinPrefixRequest request = PinOf(TestTokens(17, 1));
  request.set_ttl_ms(3'600'000);
  const auto [status, pin] = Pin(rig, request);
  ASSERT_TRUE(status.ok());
  EXPECT_GT(pin.ttl_ms(), 3'500'000);
  request.set_ttl_ms(1);
  ASSERT_TRUE(Pin(rig, request).first.ok());
  EXPECT_TRUE(rig.Eventually([&] { return Pins(rig).pins_size() == 1; }));
  pb::UnpinPrefixRequest all;
  all.set_all(true);
  pb::UnpinPrefixResponse ended;
  ASSERT_TRUE(Ask(&pb::Admin::Stub::UnpinPrefix, rig.admin(), all, ended).ok());
  EXPECT_EQ(ended.ended_pins(), 1u);
  EXPECT_EQ(Pins(rig).pins_size(), 0);

  const auto refused = [&](const pb::PinPrefixRequest& r, const char* part) {
    const grpc::Status s = Pin(rig, r).first;
    EXPECT_EQ(s.error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(s.error_message().find(part), std::string::npos) << s.error_message();
  };
  refused({}, "prefix is not set");
  request.set_ttl_ms(0);
  refused(request, "ttl_ms=0");
  refused(PinOf({5, 200}), "token_ids.ids[1]=200 is outside [0, 199]");
  refused(PinOf(std::vector<TokenId>(257, 1)), "257 tokens, limit is 256");
  EXPECT_EQ(
      Ask(&pb::Admin::Stub::UnpinPrefix, rig.admin(), pb::UnpinPrefixRequest(), ended).error_code(),
      StatusCode::INVALID_ARGUMENT);
}

TEST(AdminActions, FlushOfOneSaltLeavesTheOthers) {
  ModelRig rig("llama", Small(60));
  const auto request = [](const std::string& salt) {
    pb::GenerateRequest r = ModelRig::Request(TestTokens(33, 1), 1);
    r.mutable_kv()->set_cache_salt(salt);
    return r;
  };
  // The last two would be taken for each other if keys were joined carelessly.
  const std::vector<std::string> salts = {"", "a", "ab", "1:a", "a0:"};
  for (const std::string& salt : salts) rig.Generate(request(salt));
  ASSERT_TRUE(Pin(rig, PinOf(TestTokens(33, 1))).first.ok());  // of salt ""
  const std::string a = "a";
  const pb::FlushPrefixCacheResponse flushed = Flush(rig, &a);
  EXPECT_EQ(flushed.flushed_nodes(), 4u);
  EXPECT_EQ(flushed.emptied_blocks(), 4u);
  EXPECT_EQ(flushed.ended_pins(), 0u);
  for (const std::string& salt : salts) {
    EXPECT_EQ(rig.Cached(request(salt)), salt == "a" ? 0u : 32u) << salt;
  }
  const std::string none;
  EXPECT_EQ(Flush(rig, &none).ended_pins(), 1u);
  EXPECT_EQ(rig.Stats().used_blocks(), 0u);
  EXPECT_EQ(rig.Cached(request("")), 0u);
  EXPECT_EQ(rig.Cached(request("ab")), 32u);
  EXPECT_EQ(Flush(rig, nullptr).flushed_nodes(), 5u * 4u);
  EXPECT_EQ(rig.Tree().nodes_size(), 0);
  EXPECT_EQ(rig.Stats().cached_blocks(), 0u);
  EXPECT_EQ(rig.Stats().pools(0).drops().flushed(), 4u + 4u + 20u);
  for (const std::string& salt : salts) EXPECT_EQ(rig.Cached(request(salt)), 0u);
  pb::FlushPrefixCacheResponse response;
  const grpc::Status status =
      Ask(&pb::Admin::Stub::FlushPrefixCache, rig.admin(), pb::FlushPrefixCacheRequest(), response);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
}

// Blocks of the main pool with which each of them can run.
int32_t LargestNeed(const std::string& model, const Solo& solo) {
  ModelRig rig(model, Small(800));
  BlockManager& blocks = rig.runtime().block_manager();
  const auto main = static_cast<size_t>(MainPool(blocks.layout()));
  int32_t most = 0;
  for (const pb::GenerateRequest& r : solo.requests) {
    most = std::max(most, blocks.WorstCasePages(r.token_ids().ids_size(), r.stopping().max_tokens(),
                                                std::max(1, r.sampling().n()))[main]);
  }
  return most;
}

class AdminActionsOn : public ::testing::TestWithParam<const char*> {};

// A10: forgetting in the middle of it all frees nothing that is in use.
TEST_P(AdminActionsOn, A10_FlushWhileRequestsRunChangesNoBit) {
  const Solo solo = RunAlone(GetParam(), 8);
  ModelRig rig(GetParam(), Small(800));
  rig.executor().pause_ms = 1;
  uint64_t flushed = 0;
  RunTogether(rig, solo, [&](int) { flushed += Flush(rig, nullptr).flushed_nodes(); });
  EXPECT_GT(flushed, 20u);
  Flush(rig, nullptr);
  const pb::BlockStats s = rig.Stats();
  EXPECT_EQ(s.used_blocks(), 0u);
  EXPECT_EQ(s.empty_blocks(), s.total_blocks());
}

// Down to what the largest admitted request needs, and up again, as long as requests run.
TEST_P(AdminActionsOn, ResizingWhileRequestsRunChangesNoBit) {
  const Solo solo = RunAlone(GetParam(), 8);
  const auto low = static_cast<uint32_t>(LargestNeed(GetParam(), solo));
  const uint32_t high = low * 3;
  RuntimeOptions options = Small(static_cast<int32_t>(low * 2));
  options.max_num_blocks = static_cast<int32_t>(high);
  ModelRig rig(GetParam(), options);
  rig.executor().pause_ms = 5;  // long enough to be asked several times on a busy machine
  int num_down = 0;
  int num_up = 0;
  uint32_t most_used = 0;
  RunTogether(rig, solo, [&](int i) {
    const uint32_t wanted = i % 2 == 0 ? low : high;
    pb::UpdateConfigRequest request;
    request.set_num_blocks(wanted);
    pb::Config config;
    const grpc::Status status = Ask(&pb::Admin::Stub::UpdateConfig, rig.admin(), request, config);
    if (!status.ok()) {
      EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << status.error_message();
      return;
    }
    EXPECT_EQ(config.num_blocks(static_cast<int>(config.main_pool())), wanted);
    ++(wanted == low ? num_down : num_up);
    for (int k = 0; k < 10; ++k) {
      std::this_thread::sleep_for(milliseconds(1));
      const pb::BlockStats s = rig.Stats(/*fresh=*/false);
      most_used = std::max(most_used, s.used_blocks());
    }
  });
  EXPECT_GE(num_down, 2);
  EXPECT_GE(num_up, 2);
  EXPECT_GT(most_used, low);
  EXPECT_GT(rig.Stats().preemptions(), 0u) << "blocks in use were beyond the new size";
  pb::UpdateConfigRequest request;
  request.set_num_blocks(low);
  pb::Config config;
  ASSERT_TRUE(Ask(&pb::Admin::Stub::UpdateConfig, rig.admin(), request, config).ok());
  const pb::BlockStats s = rig.Stats();
  EXPECT_EQ(s.used_blocks(), 0u);
  EXPECT_EQ(s.retiring_blocks(), 0u);
  EXPECT_EQ(s.pools(static_cast<int>(config.main_pool())).total_blocks(), low);
  EXPECT_EQ(s.cached_blocks() + s.empty_blocks(), s.total_blocks());
}
INSTANTIATE_TEST_SUITE_P(Models, AdminActionsOn, ::testing::Values("llama", "gemma3"));

TEST(AdminActions, SizesThatCannotBeAreRefused) {
  RuntimeOptions options = Small(60);
  options.max_num_blocks = 80;
  ModelRig rig("llama", options);
  const auto resize = [&](uint32_t num_blocks) {
    pb::UpdateConfigRequest request;
    request.set_num_blocks(num_blocks);
    pb::Config config;
    return Ask(&pb::Admin::Stub::UpdateConfig, rig.admin(), request, config);
  };
  EXPECT_EQ(resize(0).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(resize(0xffffffffu).error_code(), StatusCode::INVALID_ARGUMENT);
  const grpc::Status beyond = resize(81);
  EXPECT_EQ(beyond.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(beyond.error_message().find("[1, 80] (max_num_blocks)"), std::string::npos);
  rig.executor().pause_ms = 20;
  Call call(rig.stub(), ModelRig::Request(TestTokens(100, 1), 100));  // 25 blocks at most
  ASSERT_TRUE(call.Read());
  const grpc::Status below = resize(24);
  EXPECT_EQ(below.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(below.error_message().find("25"), std::string::npos) << below.error_message();
  EXPECT_EQ(rig.Stats().total_blocks(), 60u);
  EXPECT_TRUE(resize(25).ok());
  rig.executor().pause_ms = 0;
  EXPECT_TRUE(call.Finish().ok());
  pb::Config config;
  ASSERT_TRUE(Ask(&pb::Admin::Stub::UpdateConfig, rig.admin(), pb::UpdateConfigRequest(), config)
                  .ok());  // nothing to change: tells
  EXPECT_EQ(config.num_blocks(0), 25u);
}

TEST(AdminActions, ASavedCacheIsLoadedByTheNextDaemon) {
  const TempDir dir;
  RuntimeOptions options = Small(60);
  options.cache_directory = dir.File("cache");
  pb::GenerateRequest request = ModelRig::Request(TestTokens(65, 3), 20);
  request.mutable_kv()->set_cache_salt("tenant");
  Answer cold;
  pb::SaveCacheRequest save;
  save.set_directory("nightly/one");
  pb::LoadCacheRequest load;
  load.set_directory("nightly/one");
  pb::CacheTransfer moved;
  {
    ModelRig rig("llama", options);
    cold = rig.Generate(request);
    const grpc::Status status = Ask(&pb::Admin::Stub::SaveCache, rig.admin(), save, moved);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(moved.entries(), 10u);  // 84 tokens were computed: 10 blocks of 8
    EXPECT_EQ(moved.tokens(), 80u);
    // 3 layers, keys and values, 2 heads of 16, float32.
    EXPECT_GE(moved.bytes(), 80u * 3 * 2 * 2 * 16 * 4);
    EXPECT_EQ(moved.dropped(), 0u);
    ASSERT_TRUE(Ask(&pb::Admin::Stub::SaveCache, rig.admin(), save, moved).ok());
    EXPECT_EQ(moved.entries() + moved.known(), 10u);
  }
  ModelRig rig("llama", options);
  const grpc::Status status = Ask(&pb::Admin::Stub::LoadCache, rig.admin(), load, moved);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(moved.entries(), 10u);
  const Answer warm = rig.Generate(request);
  EXPECT_EQ(warm.usage.cached_tokens(), 64u);
  ExpectEqual(warm, cold);
  pb::GenerateRequest stranger = request;
  stranger.mutable_kv()->set_cache_salt("another");
  EXPECT_EQ(rig.Cached(stranger), 0u);

  for (const char* bad : {"", "..", "../cache2", "a/../../x", "/etc", "."}) {
    save.set_directory(bad);
    const grpc::Status refused = Ask(&pb::Admin::Stub::SaveCache, rig.admin(), save, moved);
    EXPECT_EQ(refused.error_code(), StatusCode::INVALID_ARGUMENT) << bad;
    EXPECT_NE(refused.error_message().find("cache_directory"), std::string::npos);
  }
  ModelRig without("llama", Small(60));
  const grpc::Status none = Ask(&pb::Admin::Stub::LoadCache, without.admin(), load, moved);
  EXPECT_EQ(none.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(none.error_message().find("--cache-directory"), std::string::npos);
}

// What the host tier gives up goes to files, is counted, and is found there again.
TEST(AdminActions, TheFileTierShowsInTheStats) {
  const TempDir dir;
  RuntimeOptions options = Small(40);
  options.host_cache_memory_bytes = 30 * 8 * 768;  // 30 blocks
  options.cache_directory = dir.File("cache");
  options.cache_directory_bytes = 64 << 20;
  ModelRig rig("llama", options);
  const pb::GenerateRequest request = ModelRig::Request(TestTokens(33, 1), 4);
  const Answer cold = rig.Generate(request);
  Press(rig, 400);
  const pb::BlockStats s = rig.Stats();
  EXPECT_EQ(s.host_total_blocks(), 30u);
  EXPECT_GT(s.host_cached_blocks(), 0u);
  EXPECT_GT(s.saved_blocks(), 0u);
  EXPECT_GT(s.file_saved_blocks(), 0u);
  ASSERT_TRUE(s.has_files());
  EXPECT_GT(s.files().entries(), 0u);
  for (const auto& fault : s.files().faults()) EXPECT_EQ(fault.second, 0u) << fault.first;
  EXPECT_NE(StatsText(s).find("file tier: "), std::string::npos);
  const Answer warm = rig.Generate(request);
  EXPECT_EQ(warm.usage.cached_tokens(), 32u);
  EXPECT_GT(rig.Stats().file_loaded_blocks() + rig.Stats().loaded_blocks(), 0u);
  ExpectEqual(warm, cold);
}

TEST(AdminActions, RetentionOfARequestDecidesWhatIsEvicted) {
  ModelRig rig("llama", Small(40));
  const pb::GenerateRequest plain = ModelRig::Request(TestTokens(33, 1), 17);
  pb::GenerateRequest dear = ModelRig::Request(TestTokens(33, 2), 17);
  dear.mutable_kv()->mutable_retention()->add_ranges()->set_end(32);
  dear.mutable_kv()->mutable_retention()->mutable_ranges(0)->set_priority(80);
  dear.mutable_kv()->mutable_retention()->set_decode_priority(10);
  rig.Generate(dear);
  rig.Generate(plain);
  std::multiset<int32_t> priorities;
  for (const pb::BlockInfo& b : rig.BlockList()) {
    if (b.sealed()) priorities.insert(b.priority());
  }
  // 49 tokens are computed of each: 4 blocks of the range, one that no range names the first token
  // of, one of the output.
  EXPECT_EQ(priorities, (std::multiset<int32_t>{10, 35, 35, 35, 35, 35, 35, 35, 80, 80, 80, 80}));
  Press(rig, 300);
  EXPECT_EQ(rig.Cached(plain), 0u);
  EXPECT_EQ(rig.Cached(dear), 32u);

  // By metadata, and for a time only.
  grpc::ClientContext context;
  context.AddMetadata("x-kv-retention", "0-32:90:1h");
  const auto reader = rig.stub().Generate(&context, ModelRig::Request(TestTokens(33, 3), 1));
  pb::GenerateEvent event;
  while (reader->Read(&event)) {
  }
  ASSERT_TRUE(reader->Finish().ok());
  int num_timed = 0;
  for (const pb::BlockInfo& b : rig.BlockList()) {
    num_timed += b.sealed() && b.priority() == 90 && b.ttl_ms() > 3'500'000;
  }
  EXPECT_EQ(num_timed, 4);
  grpc::ClientContext bad;
  bad.AddMetadata("x-kv-retention", "0-32");
  const auto refused = rig.stub().Generate(&bad, plain);
  while (refused->Read(&event)) {
  }
  const grpc::Status status = refused->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("\"0-32\""), std::string::npos) << status.error_message();
}

}  // namespace
}  // namespace quire::server_test
