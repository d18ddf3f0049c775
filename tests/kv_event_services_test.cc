// tests/kv_event_services_test.cc -- SubscribeKvEvents of VllmEngine and OpenEngine: where a stream
// begins, slow and vanishing subscribers, the end.
#include <gtest/gtest.h>

#include <set>

#include "openengine/v1/openengine.grpc.pb.h"
#include "server/events/kv_event_hub.h"
#include "tests/support/server_rig.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace quire::server_test {
namespace {

namespace oe = ::openengine::v1;
namespace smg = ::smg::grpc::common;
using Vllm = ::vllm::grpc::engine::VllmEngine;
using Kind = CacheEvents::Kind;

RigOptions WithEvents() {
  RigOptions options;
  options.server.kv_events = true;
  options.server.kv_events_endpoint = "";
  return options;
}

// A subscriber that reads when it is told to.
class VllmSubscriber {
 public:
  explicit VllmSubscriber(const std::shared_ptr<grpc::Channel>& channel, uint64_t start = 0)
      : stub_(Vllm::NewStub(channel)) {
    smg::SubscribeKvEventsRequest request;
    request.set_start_sequence_number(start);
    reader_ = stub_->SubscribeKvEvents(&context, request);
  }
  bool Read() { return reader_->Read(&batch); }
  void WaitForMetadata() { reader_->WaitForInitialMetadata(); }
  // Applies batches up to number `last`.
  void ReadUntil(uint64_t last) {
    do {
      ASSERT_TRUE(Read()) << reader_->Finish().error_message();
      Apply();
    } while (batch.sequence_number() < last);
  }
  grpc::Status Finish() {
    while (Read()) Apply();
    return reader_->Finish();
  }
  const std::set<int64_t>& stored() const { return stored_; }

  grpc::ClientContext context;
  smg::KvEventBatch batch;

 private:
  void Apply() {
    if (any_) {
      EXPECT_EQ(batch.sequence_number(), last_ + 1);
    }
    any_ = true;
    last_ = batch.sequence_number();
    for (const smg::KvCacheEvent& event : batch.events()) {
      if (event.has_cleared()) stored_.clear();
      for (const int64_t hash : event.removed().block_hashes()) {
        EXPECT_EQ(stored_.erase(hash), 1u);
      }
      int64_t parent = event.stored().parent_block_hash();
      bool has_parent = event.stored().has_parent_block_hash();
      for (const smg::KvBlock& block : event.stored().blocks()) {
        EXPECT_TRUE(!has_parent || stored_.count(parent) == 1) << "a child before its parent";
        EXPECT_TRUE(stored_.insert(block.block_hash()).second);
        EXPECT_EQ(block.token_ids_size(), block.block_size());
        parent = block.block_hash();
        has_parent = true;
      }
    }
  }

  std::unique_ptr<Vllm::Stub> stub_;
  std::unique_ptr<grpc::ClientReader<smg::KvEventBatch>> reader_;
  std::set<int64_t> stored_;
  bool any_ = false;
  uint64_t last_ = 0;
};

grpc::Status SubscribeOe(Rig& rig, const oe::SubscribeKvEventsRequest& request,
                         std::vector<oe::SubscribeKvEventsResponse>* told) {
  grpc::ClientContext context;
  const auto stub = oe::Control::NewStub(rig.channel());
  const auto reader = stub->SubscribeKvEvents(&context, request);
  oe::SubscribeKvEventsResponse response;
  while (reader->Read(&response)) told->push_back(response);
  return reader->Finish();
}

void Ask(Rig& rig, TokenId first, int32_t length = 40) {
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < length; ++i) prompt.push_back(first + i);
  const Answer answer = rig.Generate(Rig::IdsRequest(prompt, 2));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
}

TEST(KvEventServices, WithoutTheOptionBothNameIt) {
  Rig rig;
  VllmSubscriber subscriber(rig.channel());
  const grpc::Status status = subscriber.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_NE(status.error_message().find("kv_events=false"), std::string::npos);
  std::vector<oe::SubscribeKvEventsResponse> told;
  const grpc::Status refused = SubscribeOe(rig, {}, &told);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(refused.error_message().find("kv_events=false"), std::string::npos);
  EXPECT_TRUE(told.empty());
  grpc::ClientContext context;
  oe::GetKvEventSourcesResponse sources;
  ASSERT_TRUE(oe::Control::NewStub(rig.channel())->GetKvEventSources(&context, {}, &sources).ok());
  EXPECT_EQ(sources.sources_size(), 0);
}

TEST(KvEventServices, AStreamBeginsWhereItIsAskedTo) {
  Rig rig(WithEvents());
  KvEventHub& hub = *rig.daemon().kv_events();
  Ask(rig, 100);
  Ask(rig, 300);
  const uint64_t next = hub.next_sequence();
  ASSERT_GE(next, 3u);
  VllmSubscriber all(rig.channel());
  all.ReadUntil(next - 1);
  EXPECT_EQ(all.stored().size(), rig.Blocks().cached_blocks());
  // From a number on.
  VllmSubscriber later(rig.channel(), next - 1);
  ASSERT_TRUE(later.Read());
  EXPECT_EQ(later.batch.sequence_number(), next - 1);
  // From what comes: the client knows at once that it is subscribed.
  VllmSubscriber live(rig.channel(), next);
  live.WaitForMetadata();
  Ask(rig, 500);
  ASSERT_TRUE(live.Read());
  EXPECT_EQ(live.batch.sequence_number(), next);
  // Beyond: of a process that is not this one.
  const grpc::Status beyond = VllmSubscriber(rig.channel(), 1'000'000).Finish();
  EXPECT_EQ(beyond.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_NE(beyond.error_message().find("start_sequence_number=1000000"), std::string::npos);
  for (VllmSubscriber* s : {&all, &later, &live}) s->context.TryCancel();
}

TEST(KvEventServices, WhoAsksForWhatIsGoneGetsASnapshotOrAnError) {
  RigOptions options = WithEvents();
  options.server.kv_events_buffer_steps = 2;
  options.num_blocks = 60;
  Rig rig(options);
  KvEventHub& hub = *rig.daemon().kv_events();
  for (int i = 0; i < 20; ++i) Ask(rig, 100 + 25 * i);  // evicts
  rig.ExpectIdle();
  const uint64_t next = hub.next_sequence();
  VllmSubscriber subscriber(rig.channel());
  ASSERT_TRUE(subscriber.Read());
  EXPECT_EQ(subscriber.batch.sequence_number(), next - 1);
  EXPECT_EQ(subscriber.batch.snapshot().count(), 1u);
  EXPECT_EQ(subscriber.batch.snapshot().blocks(), rig.Blocks().cached_blocks());
  EXPECT_TRUE(subscriber.batch.events(0).has_cleared());
  VllmSubscriber again(rig.channel());
  again.ReadUntil(next - 1);
  EXPECT_EQ(again.stored().size(), rig.Blocks().cached_blocks());
  Ask(rig, 700);
  again.ReadUntil(hub.next_sequence() - 1);
  EXPECT_EQ(again.stored().size(), rig.Blocks().cached_blocks());
  const grpc::Status gone = VllmSubscriber(rig.channel(), 1).Finish();
  EXPECT_EQ(gone.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  // OpenEngine: the same by its own words.
  oe::SubscribeKvEventsRequest request;
  request.set_start_sequence_number(1);
  std::vector<oe::SubscribeKvEventsResponse> told;
  EXPECT_EQ(SubscribeOe(rig, request, &told).error_code(), grpc::StatusCode::OUT_OF_RANGE);
  request.add_data_parallel_ranks(1);
  EXPECT_EQ(SubscribeOe(rig, request, &told).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(told.empty());
  for (VllmSubscriber* s : {&subscriber, &again}) s->context.TryCancel();
}

// Many blocks at once, as large prompts bring them.
CacheEvents Large(uint64_t number) {
  constexpr int32_t kBlocks = 8000;
  CacheEvents events;
  events.events.push_back({.kind = Kind::kStored, .num_blocks = kBlocks});
  for (uint64_t i = 0; i < kBlocks; ++i) {
    PrefixHash hash;
    hash.lo = number * kBlocks + i + 1;
    events.hashes.push_back(hash);
    events.tokens.insert(events.tokens.end(), 8, 50'000);
  }
  return events;
}

// One who doesn't read is told so when he does, and holds up neither a quick one nor the engine.
TEST(KvEventServices, ASlowSubscriberIsToldAndCostsNobodyElse) {
  RigOptions options = WithEvents();
  options.server.kv_events_buffer_steps = 4;
  Rig rig(options);
  KvEventHub& hub = *rig.daemon().kv_events();
  Ask(rig, 100);
  const uint64_t start = hub.next_sequence();
  VllmSubscriber slow(rig.Connect(), start);
  slow.WaitForMetadata();
  grpc::ClientContext oe_context;
  const auto oe_stub = oe::Control::NewStub(rig.Connect());
  oe::SubscribeKvEventsRequest request;
  request.set_start_sequence_number(start);
  const auto oe_slow = oe_stub->SubscribeKvEvents(&oe_context, request);
  oe_slow->WaitForInitialMetadata();
  VllmSubscriber quick(rig.Connect(), start);
  // 300 kB each: more than what lies between the two.
  for (uint64_t i = 0; i < 100; ++i) {
    hub.Publish(Large(i));
    quick.ReadUntil(start + i);
  }
  EXPECT_EQ(quick.stored().size(), 100u * 8000);
  Ask(rig, 300);
  const grpc::Status status = slow.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_NE(status.error_message().find("subscribe again"), std::string::npos);
  EXPECT_LT(slow.stored().size(), 100u * 8000);
  oe::SubscribeKvEventsResponse response;
  while (oe_slow->Read(&response) && response.has_batch()) {
  }
  ASSERT_TRUE(response.has_error());
  EXPECT_EQ(response.error().code(), oe::ERROR_CODE_OVERLOADED);
  EXPECT_TRUE(response.error().retryable());
  EXPECT_FALSE(oe_slow->Read(&response));
  EXPECT_TRUE(oe_slow->Finish().ok());
  quick.context.TryCancel();
}

TEST(KvEventServices, AHugeStepIsToldInMessagesThatMayBeSent) {
  RigOptions options = WithEvents();
  options.server.max_message_bytes = 64 << 10;
  Rig rig(options);
  KvEventHub& hub = *rig.daemon().kv_events();
  const uint64_t start = hub.next_sequence();
  hub.Publish(Large(0));
  ASSERT_GT(hub.next_sequence(), start + 1);
  VllmSubscriber subscriber(rig.channel(), start);
  subscriber.ReadUntil(hub.next_sequence() - 1);
  EXPECT_EQ(subscriber.stored().size(), 8000u);
  subscriber.context.TryCancel();
}

TEST(KvEventServices, SubscribersComeAndGoAndGiveTheirPlaceBack) {
  RigOptions options = WithEvents();
  options.server.kv_events_max_subscribers = 4;
  Rig rig(options);
  std::vector<std::unique_ptr<VllmSubscriber>> open;
  for (int i = 0; i < 4; ++i) {
    open.push_back(std::make_unique<VllmSubscriber>(rig.channel()));
    ASSERT_TRUE(open.back()->Read());
  }
  const grpc::Status full = VllmSubscriber(rig.channel()).Finish();
  EXPECT_EQ(full.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(full.error_message().find("kv_events_max_subscribers=4"), std::string::npos);
  for (const auto& subscriber : open) subscriber->context.TryCancel();
  for (const auto& subscriber : open) {
    EXPECT_EQ(subscriber->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  // Cancelled at any moment, while events come.
  std::vector<std::thread> clients;
  for (int t = 0; t < 3; ++t) {
    clients.emplace_back([&rig, t] {
      const auto channel = rig.Connect();
      for (int i = 0; i < 60; ++i) {
        VllmSubscriber subscriber(channel);
        for (int reads = 0; reads < (i + t) % 4; ++reads) {
          if (!subscriber.Read()) break;
        }
        subscriber.context.TryCancel();
      }
    });
  }
  for (int i = 0; i < 30; ++i) Ask(rig, 100 + 20 * i);
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(rig.Eventually([&rig] {
    VllmSubscriber subscriber(rig.channel());
    const bool read = subscriber.Read();
    subscriber.context.TryCancel();
    return read;
  }));
  rig.ExpectIdle();
}

TEST(KvEventServices, StreamsEndWithTheDaemon) {
  Rig rig(WithEvents());
  VllmSubscriber subscriber(rig.channel());
  ASSERT_TRUE(subscriber.Read());
  grpc::ClientContext context;
  const auto stub = oe::Control::NewStub(rig.channel());
  oe::SubscribeKvEventsRequest request;
  request.set_include_snapshot(true);
  const auto reader = stub->SubscribeKvEvents(&context, request);
  oe::SubscribeKvEventsResponse first;
  ASSERT_TRUE(reader->Read(&first));
  EXPECT_TRUE(first.batch().events(0).has_all_blocks_cleared());
  rig.daemon().Stop();
  EXPECT_EQ(subscriber.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  oe::SubscribeKvEventsResponse response;
  while (reader->Read(&response) && response.has_batch()) {
  }
  EXPECT_EQ(response.error().code(), oe::ERROR_CODE_DRAINING);
  EXPECT_TRUE(response.error().retryable());
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST(KvEventServices, OpenEngineTellsWhereZeroMqIs) {
  RigOptions options = WithEvents();
  options.server.kv_events_endpoint = "tcp://127.0.0.1:*";
  options.server.kv_events_replay_endpoint = "tcp://127.0.0.1:*";
  Rig rig(options);
  const auto stub = oe::Control::NewStub(rig.channel());
  grpc::ClientContext context;
  oe::GetKvEventSourcesResponse sources;
  ASSERT_TRUE(stub->GetKvEventSources(&context, {}, &sources).ok());
  ASSERT_EQ(sources.sources_size(), 1);
  EXPECT_EQ(sources.sources(0).endpoint_addr().host(), "127.0.0.1");
  EXPECT_GT(sources.sources(0).endpoint_addr().port(), 0u);
  EXPECT_NE(sources.sources(0).replay_endpoint().find("tcp://127.0.0.1:"), std::string::npos);
  grpc::ClientContext other;
  oe::GetKvEventSourcesRequest request;
  request.add_data_parallel_ranks(3);
  ASSERT_TRUE(stub->GetKvEventSources(&other, request, &sources).ok());
  EXPECT_EQ(sources.sources_size(), 0);
}

}  // namespace
}  // namespace quire::server_test
