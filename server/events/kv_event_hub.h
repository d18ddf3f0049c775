// server/events/kv_event_hub.h -- KV events from the engine to whoever wants to know what is
// cached.
//
// The engine's thread hands over what changed in a step (CacheEvents): a batch, or some if it is
// much. The hub gives it the next sequence number and keeps the last `buffer_steps` batches.
// Everybody reads these from a place of his own: the ZeroMQ publisher, and each gRPC subscriber. So
// who is slow holds no memory and delays nobody; who falls off the end is told that he has missed
// something.
//
//   engine thread            hub (one lock, held for moments)        reader's thread
//   Publish(events) -------> ring of batches, on_ready() ----------> Next(), Next() ...
//   snapshot (admin call) <-- Subscribe(kSnapshot) <---------------
//                        --> snapshot batches, then from there on -> Next(), Next() ...
//
// Numbers start at 0 with the process, without gaps. Batch 0 says "cleared": what was known of an
// earlier process of the same name is no longer true.
//
// Thread: any, all functions. None of them waits for anything but the lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "paged_cache/cache_events.h"
#include "paged_cache/cache_layout.h"

namespace quire {

// Immutable once it is published.
struct KvEventBatch {
  // Of a snapshot's batches: the number of the last batch whose events it contains, so the next one
  // that comes has the next number; 2^64 - 1 if there was none yet.
  uint64_t sequence = 0;
  int64_t time_ns = 0;  // since 1970
  bool is_snapshot = false;
  uint32_t snapshot_index = 0;   // this chunk of
  uint32_t snapshot_count = 0;   // so many
  uint64_t snapshot_blocks = 0;  // in all of them: contents, of a group in a tier each
  CacheEvents events;            // a snapshot's are kStored only
};

// What readers must know of the cache to write an event down.
struct KvEventGroup {
  std::string_view spec_kind;  // "full_attention", "mla_attention", "sliding_window", ...
  int32_t window = 0;          // tokens; 0 = none
};
struct KvEventFacts {
  int32_t block_size = 16;
  std::vector<KvEventGroup> groups;  // by CacheEvents::Event::group
  // More than one group has events: each says which (group_idx). With one it goes without saying.
  bool many_groups = false;
};
KvEventFacts MakeKvEventFacts(const CacheLayout& layout);

// "GPU" (the pool, on whatever device), "CPU" (host tier), "STORAGE" (files): the field's words.
std::string_view MediumOf(CacheTier tier);

class KvEventSubscription;

class KvEventHub {
 public:
  struct Options {
    size_t buffer_batches = 10'000;
    // Memory of the ring, whatever buffer_batches says. At least the newest batch stays.
    int64_t buffer_bytes = int64_t{256} << 20;
    // Of a batch as a message, about: what is more is told in several.
    int64_t max_batch_bytes = int64_t{4} << 20;
  };
  // Where a subscription begins.
  enum class From : uint8_t {
    kNow,       // with the next batch
    kSequence,  // with batch `sequence`; kOutOfRange if it is gone, unless snapshot_if_gone
    kSnapshot,  // with all that is stored now, then the batches after that
  };
  struct Start {
    From from = From::kNow;
    uint64_t sequence = 0;
    bool snapshot_if_gone = false;
  };
  // All that is stored now, between two steps and after all that was published; given to `done` on
  // the engine's thread. False: the engine is not there any more, `done` is not going to run.
  using TakeSnapshot = std::function<bool(std::function<void(CacheEvents)> done)>;

  KvEventHub(Options options, KvEventFacts facts) : options_(options), facts_(std::move(facts)) {}
  ~KvEventHub();
  KvEventHub(const KvEventHub&) = delete;
  KvEventHub& operator=(const KvEventHub&) = delete;

  const KvEventFacts& facts() const { return facts_; }
  // REQUIRES: before the first Subscribe.
  void UseSnapshots(TakeSnapshot take) { take_snapshot_ = std::move(take); }

  // Engine thread.
  void Publish(CacheEvents events);

  // on_ready: called after Next() had nothing, as soon as it has something again; on the engine's
  // thread or on that which calls Subscribe or Close. It must only pass the word on (post to a
  // loop, write to a pipe), and not call the hub or the subscription. ERRORS: kOutOfRange naming
  // the first batch that there is (with `sequence` beyond the next one, too: the daemon has started
  // anew), kUnavailable after Close.
  absl::StatusOr<std::unique_ptr<KvEventSubscription>> Subscribe(const Start& start,
                                                                 std::function<void()> on_ready);

  uint64_t first_sequence() const;  // the oldest that is kept
  uint64_t next_sequence() const;   // of the batch that comes next

  // Subscriptions end with kUnavailable once they have read what there is. Done by the destructor.
  void Close();

 private:
  friend class KvEventSubscription;
  struct Reader;
  void AddSnapshot(const std::shared_ptr<Reader>& reader, CacheEvents events);
  bool RequestSnapshot(const std::shared_ptr<Reader>& reader);
  static void Wake(Reader& reader);
  int32_t MaxBatchBlocks() const;

  const Options options_;
  const KvEventFacts facts_;
  TakeSnapshot take_snapshot_;

  mutable std::mutex mutex_;  // guards all below
  std::deque<std::shared_ptr<const KvEventBatch>> ring_;
  int64_t ring_bytes_ = 0;
  uint64_t next_ = 0;
  bool closed_ = false;
  std::vector<std::shared_ptr<Reader>> readers_;
};

// One reader's place. Used by one thread at a time, any. Ends with the object: on_ready is not
// running and not called again once the destructor has returned. The hub outlives it.
class KvEventSubscription {
 public:
  ~KvEventSubscription();
  KvEventSubscription(const KvEventSubscription&) = delete;
  KvEventSubscription& operator=(const KvEventSubscription&) = delete;

  // The next batch; null if there is none yet: on_ready will tell. Never waits.
  // ERRORS (for good): kDataLoss if this reader was so slow that the next batch is not kept any
  // more; subscribe again with a snapshot. kUnavailable after KvEventHub::Close.
  absl::StatusOr<std::shared_ptr<const KvEventBatch>> Next();

 private:
  friend class KvEventHub;
  using Reader = KvEventHub::Reader;
  KvEventSubscription(KvEventHub& hub, std::shared_ptr<KvEventHub::Reader> reader);

  KvEventHub& hub_;
  const std::shared_ptr<KvEventHub::Reader> reader_;
};

}  // namespace quire
