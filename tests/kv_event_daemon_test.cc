// tests/kv_event_daemon_test.cc -- KV events of the daemon over a scripted executor, read in the
// process as the gRPC services read them.
#include <gtest/gtest.h>

#include <condition_variable>
#include <set>
#include <tuple>

#include "server/events/kv_event_hub.h"
#include "tests/support/server_rig.h"

namespace quire::server_test {
namespace {

using Kind = CacheEvents::Kind;

// What a reader knows: (tier, hash) of all that is stored. It reads until the engine is at rest.
class Reader {
 public:
  Reader(KvEventHub& hub, const KvEventHub::Start& start) {
    auto subscription = hub.Subscribe(start, [this] {
      const std::lock_guard lock(mutex_);
      ready_ = true;
      changed_.notify_one();
    });
    CHECK(subscription.ok(), "{}", Message(subscription.status()));
    subscription_ = *std::move(subscription);
  }
  void ReadUntil(uint64_t sequence) {
    while (!began_ || next_ < sequence) {
      const auto batch = subscription_->Next();
      ASSERT_TRUE(batch.ok()) << batch.status();
      if (*batch == nullptr) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ready_; });
        ready_ = false;
        continue;
      }
      Apply(**batch);
    }
  }
  const std::set<std::tuple<CacheTier, PrefixHash>>& stored() const { return stored_; }

 private:
  void Apply(const KvEventBatch& batch) {
    if (batch.is_snapshot) {
      EXPECT_FALSE(began_) << "a snapshot comes first";
      began_ = batch.snapshot_index + 1 == batch.snapshot_count;
      next_ = batch.sequence + 1;
    } else {
      EXPECT_TRUE(!began_ || batch.sequence == next_) << "a gap before " << batch.sequence;
      began_ = true;
      next_ = batch.sequence + 1;
    }
    for (const CacheEvents::Event& e : batch.events.events) {
      if (e.kind == Kind::kCleared) stored_.clear();
      for (int32_t i = 0; i < e.num_blocks; ++i) {
        const std::tuple at(e.tier, batch.events.hashes[static_cast<size_t>(e.first_hash + i)]);
        if (e.kind == Kind::kStored) {
          EXPECT_TRUE(stored_.insert(at).second) << "stored twice";
        } else {
          EXPECT_EQ(stored_.erase(at), 1u) << "removed, but not there";
        }
      }
    }
  }

  std::unique_ptr<KvEventSubscription> subscription_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false;
  bool began_ = false;
  uint64_t next_ = 0;
  std::set<std::tuple<CacheTier, PrefixHash>> stored_;
};

RigOptions WithEvents() {
  RigOptions options;
  options.server.kv_events = true;
  options.server.kv_events_endpoint = "";
  return options;
}

TEST(KvEventDaemon, OffByDefault) {
  Rig rig;
  EXPECT_EQ(rig.daemon().kv_events(), nullptr);
  EXPECT_EQ(rig.daemon().kv_event_publisher(), nullptr);
}

TEST(KvEventDaemon, EventsComeBeforeTheAnswerEnds) {
  Rig rig(WithEvents());
  KvEventHub& hub = *rig.daemon().kv_events();
  Reader reader(hub, {KvEventHub::From::kSequence, 0});
  const Answer answer = rig.Generate(Rig::IdsRequest(std::vector<TokenId>(20, 7), 5));
  ASSERT_TRUE(answer.status.ok());
  // 24 of 25 tokens are computed: three blocks of 8, all told of when the last event came.
  reader.ReadUntil(hub.next_sequence());
  EXPECT_EQ(reader.stored().size(), 3u);
}

// Readers join with a snapshot while requests run and blocks are evicted: in the end all know what
// the first knows, and that is what the cache has.
TEST(KvEventDaemon, WhoeverComesKnowsTheSame) {
  RigOptions options = WithEvents();
  options.num_blocks = 80;
  Rig rig(options);
  KvEventHub& hub = *rig.daemon().kv_events();
  Reader first(hub, {KvEventHub::From::kSequence, 0});
  std::vector<std::thread> clients;
  for (int t = 0; t < 3; ++t) {
    clients.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        std::vector<TokenId> prompt(static_cast<size_t>(20 + 3 * (i % 9)), 100 + 7 * t);
        prompt.resize(prompt.size() + 10, static_cast<TokenId>(300 + i * 3 + t));
        pb::GenerateRequest request = Rig::IdsRequest(prompt, 4 + i % 13);
        if (i % 4 == 0) request.mutable_kv()->set_cache_salt("tenant");
        if (i % 7 == 0) request.mutable_kv()->set_bypass_prefix_cache(true);
        const grpc::Status status = rig.Generate(request).status;
        EXPECT_TRUE(status.ok()) << status.error_message();
      }
    });
  }
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 12; ++i) {
    const uint64_t seen = hub.next_sequence();
    readers.push_back(
        std::make_unique<Reader>(hub, KvEventHub::Start{.from = KvEventHub::From::kSnapshot}));
    readers.back()->ReadUntil(seen);
  }
  for (std::thread& client : clients) client.join();
  rig.ExpectIdle();
  const uint64_t end = hub.next_sequence();
  EXPECT_GT(end, 20u);
  first.ReadUntil(end);
  for (const std::unique_ptr<Reader>& reader : readers) {
    reader->ReadUntil(end);
    EXPECT_EQ(reader->stored(), first.stored());
  }
  EXPECT_EQ(first.stored().size(), rig.Blocks().cached_blocks());
  const auto& drops = rig.Blocks().pools(0).drops();
  EXPECT_GT(drops.evicted(), 0u);
}

TEST(KvEventDaemon, SubscriptionsEndWithTheDaemonAndNeedOneToBegin) {
  Rig rig(WithEvents());
  KvEventHub& hub = *rig.daemon().kv_events();
  auto subscription = hub.Subscribe({}, [] {});
  ASSERT_TRUE(subscription.ok());
  rig.daemon().Stop();
  EXPECT_EQ((*subscription)->Next().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(hub.Subscribe({KvEventHub::From::kSnapshot}, [] {}).status().code(),
            absl::StatusCode::kUnavailable);
}

// What can't be opened is told at start, by its option.
TEST(KvEventDaemon, AnEndpointThatIsNoneIsRefused) {
  ServerOptions options;
  options.model = "m";
  options.kv_events = true;
  EXPECT_TRUE(Validate(options).ok()) << Validate(options);
  options.enable_prefix_caching = false;
  EXPECT_NE(Message(Validate(options)).find("kv_events=true"), std::string::npos);
  options.enable_prefix_caching = true;
  options.kv_events_endpoint = "";
  options.kv_events_replay_endpoint = "tcp://*:5558";
  EXPECT_NE(Message(Validate(options)).find("kv_events_replay_endpoint=tcp://*:5558"),
            std::string::npos);
}

}  // namespace
}  // namespace quire::server_test
