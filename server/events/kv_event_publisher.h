// server/events/kv_event_publisher.h -- KV events over ZeroMQ.
//
//   PUB      [topic, sequence, payload]                to all who subscribe
//   ROUTER   [sequence] -> [topic, sequence, payload] ... from there on, then [topic, -1, ""]
//            (behind an empty frame if the request has one, as REQ sockets send and expect it)
//
// Sequences are 8 bytes, big-endian; payloads: kv_event_encoding.h. A thread of its own reads the
// hub; nothing here is ever waited for by anybody else. A subscriber that is too slow loses the
// newest messages (its high-water mark) and sees a gap in the numbers: it asks for a replay.
//
// An endpoint with "*" or "::", and ipc and inproc ones, are bound; others are connected to, for an
// indexer that many publish to. The replay endpoint is always bound. There is neither encryption
// nor authentication, and token ids are in the messages: keep it in a network that you trust.
//
// Source: vLLM 0.33, distributed/kv_events.py and config/kv_events.py (frames, endpoints, defaults;
// facts, no code); the guide of libzmq.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "base/status.h"
#include "server/events/kv_event_encoding.h"
#include "server/events/kv_event_hub.h"

namespace quire {

struct KvEventPublisherOptions {
  std::string endpoint = "tcp://*:5557";
  std::string replay_endpoint;  // empty: no replay
  std::string topic;
  int32_t hwm = 100'000;  // messages that wait for one subscriber
  // Batches that wait to be sent at all; beyond it the oldest are skipped. They can be replayed as
  // long as the hub keeps them.
  int32_t max_queue_size = 100'000;
  int32_t replay_hwm = 10'001;  // messages that wait for one who asked for a replay
  KvEventFormat format;
};

class KvEventPublisher {
 public:
  // The hub outlives it. ERRORS: kInvalidArgument (an endpoint that is none), kUnavailable (it is
  // in use), both naming the option.
  static absl::StatusOr<std::unique_ptr<KvEventPublisher>> Start(KvEventHub& hub,
                                                                 KvEventPublisherOptions options);
  // Sends what is due, then ends.
  ~KvEventPublisher();
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

  // Where it is bound, with the port that "*" became; empty: nowhere.
  const std::string& bound_endpoint() const { return bound_endpoint_; }
  const std::string& bound_replay_endpoint() const { return bound_replay_endpoint_; }

  struct Stats {
    uint64_t sent = 0;     // batches
    uint64_t skipped = 0;  // too late to be sent
    uint64_t replays = 0;  // requests
    uint64_t malformed = 0;
  };
  Stats stats() const;  // any thread

 private:
  struct Sockets;
  KvEventPublisher(KvEventHub& hub, KvEventPublisherOptions options);
  absl::Status Open();
  absl::Status SubscribeFromFirst();
  void Loop();
  void SendNew();
  void AnswerReplays();
  void Replay(const std::string& identity, bool has_delimiter, uint64_t start);

  KvEventHub& hub_;
  const KvEventPublisherOptions options_;
  std::string bound_endpoint_;
  std::string bound_replay_endpoint_;
  std::unique_ptr<Sockets> sockets_;
  // Both of the thread, once it runs.
  std::unique_ptr<KvEventSubscription> subscription_;
  uint64_t next_sequence_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> sent_{0}, skipped_{0}, replays_{0}, malformed_{0};
  std::thread thread_;
};

}  // namespace quire
