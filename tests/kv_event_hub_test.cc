// tests/kv_event_hub_test.cc -- readers of KV events, quick and slow, and the ZeroMQ publisher.
#include "server/events/kv_event_hub.h"

#include <gtest/gtest.h>
#include <zmq.h>

#include <atomic>
#include <condition_variable>
#include <thread>

#include "server/events/kv_event_publisher.h"

namespace quire {
namespace {

using From = KvEventHub::From;
using Subscription = std::unique_ptr<KvEventSubscription>;

KvEventFacts Facts() { return {.block_size = 2, .groups = {{"full_attention", 0}}}; }

// A chain of blocks whose hashes count from `first` on.
CacheEvents Stored(uint64_t first, int32_t num_blocks = 1) {
  CacheEvents events;
  events.events.push_back({.kind = CacheEvents::Kind::kStored, .num_blocks = num_blocks});
  for (uint64_t i = 0; i < static_cast<uint64_t>(num_blocks); ++i) {
    events.hashes.push_back({first + i, first + i});
    events.tokens.push_back(static_cast<TokenId>(first + i));
    events.tokens.push_back(7);
  }
  return events;
}

Subscription Subscribe(
    KvEventHub& hub, const KvEventHub::Start& start, std::function<void()> on_ready = [] {}) {
  auto subscription = hub.Subscribe(start, std::move(on_ready));
  EXPECT_TRUE(subscription.ok()) << subscription.status();
  return subscription.ok() ? *std::move(subscription) : nullptr;
}

// Numbers of all batches that are there.
std::vector<uint64_t> ReadAll(KvEventSubscription& subscription) {
  std::vector<uint64_t> numbers;
  for (;;) {
    const auto next = subscription.Next();
    EXPECT_TRUE(next.ok()) << next.status();
    if (!next.ok() || *next == nullptr) return numbers;
    numbers.push_back((*next)->sequence);
  }
}
std::vector<uint64_t> Range(uint64_t first, uint64_t end) {
  std::vector<uint64_t> numbers;
  for (; first < end; ++first) numbers.push_back(first);
  return numbers;
}

TEST(KvEventHub, EachReaderHasAPlaceOfItsOwn) {
  KvEventHub hub({}, Facts());
  hub.Publish(Stored(0));
  const Subscription all = Subscribe(hub, {From::kSequence, 0});
  const Subscription later = Subscribe(hub, {});
  EXPECT_EQ(ReadAll(*later), Range(0, 0));
  for (uint64_t i = 1; i < 10; ++i) hub.Publish(Stored(i));
  EXPECT_EQ(ReadAll(*later), Range(1, 10));
  EXPECT_EQ(ReadAll(*all), Range(0, 10));
  EXPECT_EQ(ReadAll(*all), Range(0, 0));
  EXPECT_EQ(hub.first_sequence(), 0u);
  EXPECT_EQ(hub.next_sequence(), 10u);
}

TEST(KvEventHub, WhoWaitsIsCalledOnceAndWhoReadsIsNot) {
  KvEventHub hub({}, Facts());
  int calls = 0;
  const Subscription reader = Subscribe(hub, {}, [&] { ++calls; });
  hub.Publish(Stored(0));
  EXPECT_EQ(calls, 0) << "it has not said that it waits";
  EXPECT_EQ(ReadAll(*reader), Range(0, 1));
  hub.Publish(Stored(1));
  hub.Publish(Stored(2));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(ReadAll(*reader), Range(1, 3));
}

TEST(KvEventHub, ASlowReaderIsToldWhatItMissedAndHoldsNothing) {
  KvEventHub hub({.buffer_batches = 8}, Facts());
  const Subscription slow = Subscribe(hub, {});
  std::weak_ptr<const KvEventBatch> first;
  {
    const Subscription quick = Subscribe(hub, {});
    hub.Publish(Stored(0));
    first = *quick->Next();
  }
  EXPECT_FALSE(first.expired());
  for (uint64_t i = 1; i < 100; ++i) hub.Publish(Stored(i));
  EXPECT_TRUE(first.expired()) << "a reader that doesn't read keeps it alive";
  EXPECT_EQ(hub.first_sequence(), 92u);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(slow->Next().status().code(), absl::StatusCode::kDataLoss);
  // A newcomer may begin at what is kept, and nowhere else.
  EXPECT_EQ(hub.Subscribe({From::kSequence, 91}, [] {}).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(hub.Subscribe({From::kSequence, 101}, [] {}).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ReadAll(*Subscribe(hub, {From::kSequence, 92})), Range(92, 100));
  EXPECT_EQ(ReadAll(*Subscribe(hub, {From::kSequence, 100})), Range(0, 0));
}

TEST(KvEventHub, MemoryIsBoundedByBytesToo) {
  KvEventHub hub({.buffer_batches = 1000, .buffer_bytes = 100'000}, Facts());
  for (uint64_t i = 0; i < 100; ++i) hub.Publish(Stored(1000 * i, 1000));  // 40 kB each
  EXPECT_LE(hub.next_sequence() - hub.first_sequence(), 3u);
  EXPECT_GE(hub.next_sequence() - hub.first_sequence(), 1u);
}

// However much a step did, no batch is larger than a message may be, and the chain is whole.
TEST(KvEventHub, LargeStepsAreSplitAlongTheChain) {
  KvEventHub hub({}, Facts());
  constexpr int32_t kBlocks = 20'000;
  CacheEvents events = Stored(1, kBlocks);
  events.salts = {"tenant"};
  events.events[0].salt = 0;
  hub.Publish(std::move(events));
  EXPECT_EQ(hub.next_sequence(), 3u);
  const Subscription reader = Subscribe(hub, {From::kSequence, 0});
  uint64_t next_hash = 1;
  for (int i = 0; i < 3; ++i) {
    const std::shared_ptr<const KvEventBatch> batch = *reader->Next();
    ASSERT_EQ(batch->events.events.size(), 1u);
    const CacheEvents::Event& e = batch->events.events[0];
    EXPECT_LE(e.num_blocks, 8192);
    EXPECT_EQ(e.has_parent, i > 0);
    if (i > 0) {
      EXPECT_EQ(e.parent.lo, next_hash - 1);
    }
    EXPECT_EQ(batch->events.salts.at(static_cast<size_t>(e.salt)), "tenant");
    ASSERT_EQ(batch->events.tokens.size(), 2u * static_cast<size_t>(e.num_blocks));
    for (int32_t b = 0; b < e.num_blocks; ++b, ++next_hash) {
      ASSERT_EQ(batch->events.hashes[static_cast<size_t>(b)].lo, next_hash);
      ASSERT_EQ(batch->events.tokens[2 * static_cast<size_t>(b)], static_cast<TokenId>(next_hash));
    }
  }
  EXPECT_EQ(next_hash, 1u + kBlocks);
}

TEST(KvEventHub, ASnapshotIsFollowedByWhatComesAfterIt) {
  KvEventHub hub({}, Facts());
  std::vector<std::function<void(CacheEvents)>> asked;
  hub.UseSnapshots([&](std::function<void(CacheEvents)> done) {
    asked.push_back(std::move(done));
    return true;
  });
  hub.Publish(Stored(0));
  int calls = 0;
  const Subscription reader = Subscribe(hub, {From::kSnapshot}, [&] { ++calls; });
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(ReadAll(*reader), Range(0, 0));
  hub.Publish(Stored(1));  // before the engine comes to it: in the snapshot
  EXPECT_EQ(ReadAll(*reader), Range(0, 0));
  EXPECT_EQ(calls, 0);
  asked[0](Stored(500, 10'000));
  EXPECT_EQ(calls, 1);
  hub.Publish(Stored(2));
  uint64_t blocks = 0;
  for (uint32_t i = 0; i < 2; ++i) {
    const std::shared_ptr<const KvEventBatch> batch = *reader->Next();
    ASSERT_NE(batch, nullptr);
    EXPECT_TRUE(batch->is_snapshot);
    EXPECT_EQ(batch->sequence, 1u);
    EXPECT_EQ(batch->snapshot_index, i);
    EXPECT_EQ(batch->snapshot_count, 2u);
    EXPECT_EQ(batch->snapshot_blocks, 10'000u);
    blocks += batch->events.hashes.size();
  }
  EXPECT_EQ(blocks, 10'000u);
  const std::shared_ptr<const KvEventBatch> next = *reader->Next();
  ASSERT_NE(next, nullptr);
  EXPECT_FALSE(next->is_snapshot);
  EXPECT_EQ(next->sequence, 2u);
  // A number that is gone becomes a snapshot if one asks for that.
  const Subscription resumed =
      Subscribe(hub, {.from = From::kSequence, .sequence = 77, .snapshot_if_gone = true});
  EXPECT_EQ(asked.size(), 2u);
}

TEST(KvEventHub, AnEmptySnapshotIsOneEmptyChunk) {
  KvEventHub hub({}, Facts());
  hub.UseSnapshots([](std::function<void(CacheEvents)> done) {
    done({});
    return true;
  });
  const Subscription reader = Subscribe(hub, {From::kSnapshot});
  const std::shared_ptr<const KvEventBatch> batch = *reader->Next();
  ASSERT_NE(batch, nullptr);
  EXPECT_TRUE(batch->is_snapshot && batch->events.empty());
  EXPECT_EQ(batch->snapshot_count, 1u);
  EXPECT_EQ(batch->sequence, ~uint64_t{0});
}

TEST(KvEventHub, WithoutAnEngineThereIsNoSnapshot) {
  KvEventHub hub({}, Facts());
  hub.UseSnapshots([](const std::function<void(CacheEvents)>&) { return false; });
  EXPECT_EQ(hub.Subscribe({From::kSnapshot}, [] {}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(KvEventHub, CloseEndsReadersBehindWhatIsThere) {
  KvEventHub hub({}, Facts());
  int calls = 0;
  const Subscription reader = Subscribe(hub, {}, [&] { ++calls; });
  ReadAll(*reader);
  hub.Publish(Stored(0));
  hub.Close();
  hub.Close();
  EXPECT_EQ(calls, 2);
  EXPECT_NE(*reader->Next(), nullptr);
  EXPECT_EQ(reader->Next().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(hub.Subscribe({}, [] {}).status().code(), absl::StatusCode::kUnavailable);
}

// Readers come, read and go on threads of their own while the engine publishes: nobody misses or
// repeats a number, and nobody is called once it has gone.
TEST(KvEventHub, ThreadsOfReaders) {
  constexpr uint64_t kBatches = 2000;
  KvEventHub hub({.buffer_batches = kBatches}, Facts());
  std::vector<std::thread> threads;
  std::atomic<uint64_t> read{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      uint64_t expected = 0;
      while (expected < kBatches) {
        struct Bell {
          std::mutex mutex;
          std::condition_variable rung;
          bool ready = false;
        };
        const auto bell = std::make_shared<Bell>();
        auto gone = std::make_shared<std::atomic<bool>>(false);
        {
          const Subscription reader = Subscribe(hub, {From::kSequence, expected}, [bell, gone] {
            EXPECT_FALSE(gone->load());
            const std::lock_guard lock(bell->mutex);
            bell->ready = true;
            bell->rung.notify_one();
          });
          const uint64_t until = expected + 100 * static_cast<uint64_t>(t + 1);
          while (expected < std::min(until, kBatches)) {
            const auto next = reader->Next();
            ASSERT_TRUE(next.ok());
            if (*next != nullptr) {
              ASSERT_EQ((*next)->sequence, expected++);
              read.fetch_add(1);
              continue;
            }
            std::unique_lock lock(bell->mutex);
            bell->rung.wait(lock, [&] { return bell->ready; });
            bell->ready = false;
          }
        }
        gone->store(true);
      }
    });
  }
  for (uint64_t i = 0; i < kBatches; ++i) hub.Publish(Stored(i));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(read.load(), 4 * kBatches);
}

// ---- ZeroMQ ----

class Client {
 public:
  Client(int type, const std::string& endpoint) : socket_(zmq_socket(context_, type)) {
    const int timeout_ms = 20'000;  // only ends what hangs
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &timeout_ms, sizeof(timeout_ms));
    if (type == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "", 0);
    CHECK(zmq_connect(socket_, endpoint.c_str()) == 0, "{}", endpoint);
  }
  ~Client() {
    const int none = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &none, sizeof(none));
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  void Send(const std::vector<std::string>& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
      CHECK(zmq_send(socket_, frames[i].data(), frames[i].size(), more) >= 0);
    }
  }
  std::vector<std::string> Receive() {
    std::vector<std::string> frames;
    int more = 1;
    while (more != 0) {
      zmq_msg_t part;
      zmq_msg_init(&part);
      if (zmq_msg_recv(&part, socket_, 0) < 0) {
        ADD_FAILURE() << zmq_strerror(zmq_errno());
        zmq_msg_close(&part);
        return {"", "", "", "", ""};
      }
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
      more = zmq_msg_more(&part);
      zmq_msg_close(&part);
    }
    return frames;
  }

 private:
  void* context_ = zmq_ctx_new();
  void* socket_;
};

std::string Number(uint64_t v) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(v >> (8 * (7 - i)));
  return bytes;
}

struct Published {
  KvEventHub hub;
  std::unique_ptr<KvEventPublisher> publisher;

  explicit Published(size_t buffer, const KvEventPublisherOptions& more = {})
      : hub({.buffer_batches = buffer}, Facts()) {
    KvEventPublisherOptions options = more;
    options.endpoint = "tcp://127.0.0.1:*";
    options.replay_endpoint = "tcp://127.0.0.1:*";
    options.topic = "kv@pod@model";
    auto started = KvEventPublisher::Start(hub, options);
    CHECK(started.ok(), "{}", Message(started.status()));
    publisher = *std::move(started);
  }
  // Until all that was published has been handed to ZeroMQ.
  void WaitUntilSent() {
    while (publisher->stats().sent + publisher->stats().skipped < hub.next_sequence()) {
      std::this_thread::yield();
    }
  }
};

TEST(KvEventPublisher, FramesAreTopicNumberAndPayload) {
  Published p(1'000'000);
  Client client(ZMQ_SUB, p.publisher->bound_endpoint());
  // A subscription takes its time to arrive: numbers below its first message are lost, none after.
  std::vector<std::string> message;
  std::atomic<bool> arrived{false};
  std::thread engine([&] {
    for (uint64_t i = 0; !arrived; ++i) {
      p.hub.Publish(Stored(i));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  message = client.Receive();
  arrived = true;
  engine.join();
  const uint64_t end = p.hub.next_sequence();
  for (;;) {
    ASSERT_EQ(message.size(), 3u);
    EXPECT_EQ(message[0], "kv@pod@model");
    uint64_t number = 0;
    for (const char c : message[1]) number = number << 8 | static_cast<unsigned char>(c);
    const Subscription reader = Subscribe(p.hub, {From::kSequence, p.hub.first_sequence()});
    std::shared_ptr<const KvEventBatch> batch;
    do batch = *reader->Next();
    while (batch->sequence < number);
    EXPECT_EQ(batch->sequence, number);
    EXPECT_EQ(message[2], EncodeKvEvents(*batch, Facts(), {}));
    if (number + 1 == end) break;
    message = client.Receive();
    ASSERT_EQ(message[1], Number(number + 1));
  }
}

TEST(KvEventPublisher, ReplaysWhatItKeepsAndSaysWhereItEnds) {
  Published p(20);
  for (uint64_t i = 0; i < 30; ++i) p.hub.Publish(Stored(i));
  p.WaitUntilSent();
  Client dealer(ZMQ_DEALER, p.publisher->bound_replay_endpoint());
  const auto expect = [&](uint64_t start, uint64_t first, uint64_t end, bool delimiter) {
    dealer.Send(delimiter ? std::vector<std::string>{"", Number(start)}
                          : std::vector<std::string>{Number(start)});
    const auto next = [&] {
      std::vector<std::string> message = dealer.Receive();
      if (delimiter) {
        EXPECT_EQ(message.front(), "");
        message.erase(message.begin());
      }
      EXPECT_EQ(message.size(), 3u);
      message.resize(3);
      EXPECT_EQ(message[0], "kv@pod@model");
      return message;
    };
    for (uint64_t i = first; i < end; ++i) {
      const std::vector<std::string> message = next();
      ASSERT_EQ(message[1], Number(i));
      EXPECT_FALSE(message[2].empty());
    }
    const std::vector<std::string> last = next();
    EXPECT_EQ(last[1], std::string(8, '\xff'));
    EXPECT_EQ(last[2], "");
  };
  expect(25, 25, 30, true);
  expect(25, 25, 30, false);
  expect(0, 10, 30, true);  // older ones are gone
  expect(30, 0, 0, true);
  expect(~uint64_t{0} - 1, 0, 0, false);
  // What is no request is ignored and costs nobody anything.
  dealer.Send({""});
  dealer.Send({"", "12345"});
  dealer.Send({"a", "b", Number(0)});
  dealer.Send({"", Number(0), "more", "and more", "and more"});
  expect(28, 28, 30, true);
  EXPECT_EQ(p.publisher->stats().malformed, 4u);
}

// A subscriber that never reads: the publisher goes on, and others get all.
TEST(KvEventPublisher, ASubscriberThatDoesNotReadDelaysNobody) {
  Published p(50'000, {.hwm = 16});
  Client lazy(ZMQ_SUB, p.publisher->bound_endpoint());
  Client replay(ZMQ_DEALER, p.publisher->bound_replay_endpoint());
  replay.Send({"", Number(0)});
  ASSERT_EQ(replay.Receive()[2], std::string(8, '\xff'));  // it has connected
  constexpr uint64_t kBatches = 20'000;
  for (uint64_t i = 0; i < kBatches; ++i) p.hub.Publish(Stored(i, 8));
  p.WaitUntilSent();
  EXPECT_EQ(p.publisher->stats().skipped, 0u);
  replay.Send({"", Number(kBatches - 3)});
  for (uint64_t i = kBatches - 3; i < kBatches; ++i) EXPECT_EQ(replay.Receive()[2], Number(i));
}

TEST(KvEventPublisher, ErrorsNameTheOption) {
  KvEventHub hub({}, Facts());
  const auto start = [&](const std::string& endpoint, const std::string& replay) {
    return KvEventPublisher::Start(hub, {.endpoint = endpoint, .replay_endpoint = replay}).status();
  };
  const absl::Status bad = start("tcp:/nowhere*", "");
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::string(bad.message()).starts_with("kv_events_endpoint=tcp:/nowhere*")) << bad;
  const absl::Status replay = start("tcp://127.0.0.1:*", "smoke://signals");
  EXPECT_EQ(replay.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::string(replay.message()).starts_with("kv_events_replay_endpoint=")) << replay;
  const Published other(10);
  const absl::Status in_use = start("tcp://127.0.0.1:*", other.publisher->bound_replay_endpoint());
  EXPECT_EQ(in_use.code(), absl::StatusCode::kUnavailable) << in_use;
}

}  // namespace
}  // namespace quire
