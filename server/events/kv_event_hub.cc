#include "server/events/kv_event_hub.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace quire {
namespace {

// What clients of gRPC take unless they are told otherwise.
constexpr int64_t kUsualMessageBytes = int64_t{4} << 20;
// Of a block in a message of any kind, at most: a hash, numbers and their tags; and a token's id.
constexpr int64_t kBlockBytes = 80;
constexpr int64_t kTokenBytes = 3;
constexpr int64_t kMaxBatchBlocks = 8192;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int64_t BytesOf(const KvEventBatch& batch) {
  return batch.events.bytes() + static_cast<int64_t>(sizeof(KvEventBatch));
}

// The same events in pieces of at most max_blocks blocks.
std::vector<CacheEvents> Split(CacheEvents all, int32_t block_size, int32_t max_blocks) {
  std::vector<CacheEvents> pieces;
  if (std::ssize(all.hashes) <= max_blocks) {
    pieces.push_back(std::move(all));
    return pieces;
  }
  for (const CacheEvents::Event& whole : all.events) {
    int32_t done = 0;
    do {
      if (pieces.empty() || std::ssize(pieces.back().hashes) >= max_blocks) {
        pieces.push_back({.algorithm = all.algorithm});
      }
      CacheEvents& piece = pieces.back();
      CacheEvents::Event part = whole;
      part.num_blocks =
          std::min(whole.num_blocks - done, max_blocks - static_cast<int32_t>(piece.hashes.size()));
      part.first_hash = static_cast<int32_t>(piece.hashes.size());
      const auto hashes = all.hashes.begin() + whole.first_hash + done;
      if (done > 0 && whole.kind == CacheEvents::Kind::kStored) {
        part.has_parent = true;
        part.parent = *(hashes - 1);
      }
      piece.hashes.insert(piece.hashes.end(), hashes, hashes + part.num_blocks);
      if (whole.kind == CacheEvents::Kind::kStored) {
        part.first_token = static_cast<int32_t>(piece.tokens.size());
        const auto tokens = all.tokens.begin() + whole.first_token + done * block_size;
        piece.tokens.insert(piece.tokens.end(), tokens, tokens + part.num_blocks * block_size);
      }
      if (whole.salt >= 0) {
        const std::string& salt = all.salts[static_cast<size_t>(whole.salt)];
        if (piece.salts.empty() || piece.salts.back() != salt) piece.salts.push_back(salt);
        part.salt = static_cast<int32_t>(piece.salts.size()) - 1;
      }
      piece.events.push_back(part);
      done += part.num_blocks;
    } while (done < whole.num_blocks);
  }
  return pieces;
}

std::string_view SpecKindOf(CacheKind kind) {
  switch (kind) {
    case CacheKind::kLatent:
      return "mla_attention";
    case CacheKind::kSlidingWindow:
      return "sliding_window";
    case CacheKind::kChunkedLocal:
      return "chunked_local_attention";
    default:
      return "full_attention";
  }
}

}  // namespace

KvEventFacts MakeKvEventFacts(const CacheLayout& layout) {
  KvEventFacts facts{.block_size = layout.block_size};
  int told = 0;
  for (const GroupLayout& g : layout.groups) {
    facts.groups.push_back({SpecKindOf(g.group.kind), g.group.window});
    told += HasEvents(g.group, layout.block_size);
  }
  facts.many_groups = told > 1;
  return facts;
}

std::string_view MediumOf(CacheTier tier) {
  constexpr std::string_view kNames[] = {"GPU", "CPU", "STORAGE"};
  return kNames[static_cast<size_t>(tier)];
}

// ---- the hub ----

struct KvEventHub::Reader {
  // Guarded by the hub's mutex_.
  uint64_t next = 0;
  bool awaits_snapshot = false;
  bool asleep = false;  // Next() had nothing
  std::deque<std::shared_ptr<const KvEventBatch>> snapshot;

  std::mutex wake_mutex;           // held while on_ready runs
  std::function<void()> on_ready;  // guarded by wake_mutex; null: the reader has gone
};

KvEventHub::~KvEventHub() { Close(); }

// So that no message comes near what may be sent, whatever a step has done.
int32_t KvEventHub::MaxBatchBlocks() const {
  const int64_t bytes = std::min(options_.max_batch_bytes, kUsualMessageBytes);
  const int64_t blocks = bytes / (kBlockBytes + kTokenBytes * facts_.block_size);
  return static_cast<int32_t>(std::clamp<int64_t>(blocks, 1, kMaxBatchBlocks));
}

void KvEventHub::Wake(Reader& reader) {
  const std::lock_guard lock(reader.wake_mutex);
  if (reader.on_ready != nullptr) reader.on_ready();
}

void KvEventHub::Publish(CacheEvents events) {
  std::vector<CacheEvents> pieces = Split(std::move(events), facts_.block_size, MaxBatchBlocks());
  const int64_t now = NowNs();
  std::vector<std::shared_ptr<Reader>> awake;
  {
    const std::lock_guard lock(mutex_);
    for (CacheEvents& piece : pieces) {
      auto batch = std::make_shared<KvEventBatch>();
      batch->sequence = next_++;
      batch->time_ns = now;
      batch->events = std::move(piece);
      ring_bytes_ += BytesOf(*batch);
      ring_.push_back(std::move(batch));
    }
    while (ring_.size() > 1 &&
           (ring_.size() > options_.buffer_batches || ring_bytes_ > options_.buffer_bytes)) {
      ring_bytes_ -= BytesOf(*ring_.front());
      ring_.pop_front();
    }
    for (const std::shared_ptr<Reader>& reader : readers_) {
      if (!reader->asleep || reader->awaits_snapshot) continue;
      reader->asleep = false;
      awake.push_back(reader);
    }
  }
  for (const std::shared_ptr<Reader>& reader : awake) Wake(*reader);
}

absl::StatusOr<std::unique_ptr<KvEventSubscription>> KvEventHub::Subscribe(
    const Start& start, std::function<void()> on_ready) {
  const auto reader = std::make_shared<Reader>();
  reader->on_ready = std::move(on_ready);
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return absl::UnavailableError("the server is shutting down; retry elsewhere");
    const uint64_t first = next_ - ring_.size();
    reader->awaits_snapshot = start.from == From::kSnapshot;
    reader->next = next_;
    if (start.from == From::kSequence && (start.sequence < first || start.sequence > next_)) {
      if (!start.snapshot_if_gone) {
        return Error(absl::StatusCode::kOutOfRange,
                     "start_sequence_number={} is not kept: batches {} to {} are; subscribe with a "
                     "snapshot, or raise kv_events_buffer_steps",
                     start.sequence, first, next_);
      }
      reader->awaits_snapshot = true;
    } else if (start.from == From::kSequence) {
      reader->next = start.sequence;
    }
    readers_.push_back(reader);
  }
  std::unique_ptr<KvEventSubscription> subscription(new KvEventSubscription(*this, reader));
  if (reader->awaits_snapshot && !RequestSnapshot(reader)) {
    return absl::UnavailableError("the engine has stopped; retry elsewhere");
  }
  return subscription;
}

bool KvEventHub::RequestSnapshot(const std::shared_ptr<Reader>& reader) {
  return take_snapshot_ != nullptr && take_snapshot_([this, reader](CacheEvents events) {
           AddSnapshot(reader, std::move(events));
         });
}

// Engine thread: nothing is published meanwhile.
void KvEventHub::AddSnapshot(const std::shared_ptr<Reader>& reader, CacheEvents events) {
  const auto blocks = static_cast<uint64_t>(events.hashes.size());
  std::vector<CacheEvents> pieces = Split(std::move(events), facts_.block_size, MaxBatchBlocks());
  const int64_t now = NowNs();
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < pieces.size(); ++i) {
      auto batch = std::make_shared<KvEventBatch>();
      batch->sequence = next_ - 1;
      batch->time_ns = now;
      batch->is_snapshot = true;
      batch->snapshot_index = static_cast<uint32_t>(i);
      batch->snapshot_count = static_cast<uint32_t>(pieces.size());
      batch->snapshot_blocks = blocks;
      batch->events = std::move(pieces[i]);
      reader->snapshot.push_back(std::move(batch));
    }
    reader->next = next_;
    reader->awaits_snapshot = false;
    if (!std::exchange(reader->asleep, false)) return;
  }
  Wake(*reader);
}

uint64_t KvEventHub::first_sequence() const {
  const std::lock_guard lock(mutex_);
  return next_ - ring_.size();
}
uint64_t KvEventHub::next_sequence() const {
  const std::lock_guard lock(mutex_);
  return next_;
}

void KvEventHub::Close() {
  std::vector<std::shared_ptr<Reader>> all;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    all = readers_;
    for (const std::shared_ptr<Reader>& reader : all) reader->asleep = false;
  }
  for (const std::shared_ptr<Reader>& reader : all) Wake(*reader);
}

// ---- one reader ----

KvEventSubscription::KvEventSubscription(KvEventHub& hub,
                                         std::shared_ptr<KvEventHub::Reader> reader)
    : hub_(hub), reader_(std::move(reader)) {}

KvEventSubscription::~KvEventSubscription() {
  {
    const std::lock_guard lock(hub_.mutex_);
    std::erase(hub_.readers_, reader_);
    reader_->snapshot.clear();
  }
  const std::lock_guard lock(reader_->wake_mutex);
  reader_->on_ready = nullptr;
}

absl::StatusOr<std::shared_ptr<const KvEventBatch>> KvEventSubscription::Next() {
  const std::lock_guard lock(hub_.mutex_);
  Reader& r = *reader_;
  if (!r.snapshot.empty()) {
    std::shared_ptr<const KvEventBatch> batch = std::move(r.snapshot.front());
    r.snapshot.pop_front();
    return batch;
  }
  const uint64_t first = hub_.next_ - hub_.ring_.size();
  if (!r.awaits_snapshot && r.next < first) {
    return Error(absl::StatusCode::kDataLoss,
                 "batches {} to {} were not read in time and are gone; subscribe again with a "
                 "snapshot",
                 r.next, first - 1);
  }
  if (r.awaits_snapshot || r.next == hub_.next_) {
    if (hub_.closed_) return absl::UnavailableError("the server is shutting down; retry elsewhere");
    r.asleep = true;
    return std::shared_ptr<const KvEventBatch>();
  }
  return hub_.ring_[static_cast<size_t>(r.next++ - first)];
}

}  // namespace quire
