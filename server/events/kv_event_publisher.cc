#include "server/events/kv_event_publisher.h"

#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/thread_name.h"

namespace quire {
namespace {

constexpr uint64_t kEndOfReplay = ~uint64_t{0};  // -1

// Between two looks at the replay socket while there is much to send, and the other way round.
constexpr int kAtATime = 64;

using Frame8 = std::array<char, 8>;

Frame8 BigEndian(uint64_t v) {
  Frame8 bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(v >> (8 * (7 - i)));
  return bytes;
}
uint64_t FromBigEndian(const std::string& bytes) {
  uint64_t v = 0;
  for (const char c : bytes) v = v << 8 | static_cast<unsigned char>(c);
  return v;
}

bool IsBound(const std::string& endpoint) {
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://") || endpoint.starts_with("inproc://");
}

std::string LastEndpoint(void* socket) {
  std::array<char, 1024> text{};
  size_t size = text.size();
  if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, text.data(), &size) != 0) return {};
  return text.data();
}

absl::Status Attach(void* socket, std::string_view option, const std::string& endpoint,
                    bool binds) {
  if ((binds ? zmq_bind : zmq_connect)(socket, endpoint.c_str()) == 0) return absl::OkStatus();
  const int error = zmq_errno();
  const bool in_use = error == EADDRINUSE || error == EACCES || error == EADDRNOTAVAIL;
  return Error(in_use ? absl::StatusCode::kUnavailable : absl::StatusCode::kInvalidArgument,
               "{}={} can't be {}: {}; give another, such as tcp://*:5557", option, endpoint,
               binds ? "bound" : "connected to", zmq_strerror(error));
}

void SetInt(void* socket, int option, int value) {
  CHECK(zmq_setsockopt(socket, option, &value, sizeof(value)) == 0, "zmq option {}: {}", option,
        zmq_strerror(zmq_errno()));
}

// All parts of a message, or none: false if it can't be sent now.
bool Send(void* socket, std::initializer_list<std::string_view> frames) {
  size_t left = frames.size();
  for (const std::string_view frame : frames) {
    const int more = --left > 0 ? ZMQ_SNDMORE : 0;
    while (zmq_send(socket, frame.data(), frame.size(), more | ZMQ_DONTWAIT) < 0) {
      if (zmq_errno() != EINTR) return false;
    }
  }
  return true;
}

// A whole message; false if there is none. What it has beyond a few frames is dropped.
bool Receive(void* socket, std::vector<std::string>& frames) {
  constexpr size_t kMaxFrames = 4;
  frames.clear();
  for (bool more = true; more;) {
    zmq_msg_t part;
    zmq_msg_init(&part);
    int received = -1;
    do received = zmq_msg_recv(&part, socket, ZMQ_DONTWAIT);
    while (received < 0 && zmq_errno() == EINTR);
    if (received < 0) {
      zmq_msg_close(&part);
      return false;
    }
    more = zmq_msg_more(&part) != 0;
    if (frames.size() < kMaxFrames) {
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
    }
    zmq_msg_close(&part);
  }
  return true;
}

}  // namespace

struct KvEventPublisher::Sockets {
  void* context = nullptr;
  void* publish = nullptr;
  void* replay = nullptr;
  int wake = -1;  // written by the hub, and to stop

  ~Sockets() {
    if (publish != nullptr) zmq_close(publish);
    if (replay != nullptr) zmq_close(replay);
    if (context != nullptr) zmq_ctx_term(context);
    if (wake >= 0) ::close(wake);
  }
  void Wake() const {
    const uint64_t one = 1;
    const ssize_t ignored = ::write(wake, &one, sizeof(one));  // full: it is awake anyway
    (void)ignored;
  }
};

KvEventPublisher::KvEventPublisher(KvEventHub& hub, KvEventPublisherOptions options)
    : hub_(hub), options_(std::move(options)), sockets_(std::make_unique<Sockets>()) {}

absl::StatusOr<std::unique_ptr<KvEventPublisher>> KvEventPublisher::Start(
    KvEventHub& hub, KvEventPublisherOptions options) {
  std::unique_ptr<KvEventPublisher> self(new KvEventPublisher(hub, std::move(options)));
  RETURN_IF_ERROR(self->Open());
  self->next_sequence_ = hub.first_sequence();
  RETURN_IF_ERROR(self->SubscribeFromFirst());
  self->thread_ = std::thread([publisher = self.get()] { publisher->Loop(); });
  return self;
}

KvEventPublisher::~KvEventPublisher() {
  stop_ = true;
  if (thread_.joinable()) {
    sockets_->Wake();
    thread_.join();
  }
  subscription_.reset();  // before what its callback writes to
}

absl::Status KvEventPublisher::Open() {
  Sockets& s = *sockets_;
  s.wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  s.context = zmq_ctx_new();
  CHECK(s.wake >= 0 && s.context != nullptr, "{}", std::strerror(errno));
  s.publish = zmq_socket(s.context, ZMQ_PUB);
  CHECK(s.publish != nullptr, "{}", zmq_strerror(zmq_errno()));
  constexpr int kLingerMs = 100;  // at the end, for who still reads
  SetInt(s.publish, ZMQ_SNDHWM, options_.hwm);
  SetInt(s.publish, ZMQ_LINGER, kLingerMs);
  SetInt(s.publish, ZMQ_IPV6, 1);
  RETURN_IF_ERROR(
      Attach(s.publish, "kv_events_endpoint", options_.endpoint, IsBound(options_.endpoint)));
  if (IsBound(options_.endpoint)) bound_endpoint_ = LastEndpoint(s.publish);
  if (options_.replay_endpoint.empty()) return absl::OkStatus();
  s.replay = zmq_socket(s.context, ZMQ_ROUTER);
  CHECK(s.replay != nullptr, "{}", zmq_strerror(zmq_errno()));
  constexpr int64_t kMaxRequestBytes = 64;
  CHECK(zmq_setsockopt(s.replay, ZMQ_MAXMSGSIZE, &kMaxRequestBytes, sizeof(int64_t)) == 0);
  // What doesn't fit is not sent, and the end is not either: the client asks again.
  SetInt(s.replay, ZMQ_ROUTER_MANDATORY, 1);
  SetInt(s.replay, ZMQ_SNDHWM, options_.replay_hwm);
  SetInt(s.replay, ZMQ_LINGER, kLingerMs);
  SetInt(s.replay, ZMQ_IPV6, 1);
  RETURN_IF_ERROR(Attach(s.replay, "kv_events_replay_endpoint", options_.replay_endpoint, true));
  bound_replay_endpoint_ = LastEndpoint(s.replay);
  return absl::OkStatus();
}

// From the oldest batch that is kept; those before it that were not sent are skipped.
absl::Status KvEventPublisher::SubscribeFromFirst() {
  subscription_.reset();
  for (;;) {
    const uint64_t first = std::max(next_sequence_, hub_.first_sequence());
    auto subscription = hub_.Subscribe({KvEventHub::From::kSequence, first},
                                       [sockets = sockets_.get()] { sockets->Wake(); });
    if (absl::IsOutOfRange(subscription.status())) continue;  // it has just gone
    RETURN_IF_ERROR(subscription.status());
    skipped_.fetch_add(first - std::exchange(next_sequence_, first));
    subscription_ = *std::move(subscription);
    return absl::OkStatus();
  }
}

void KvEventPublisher::Loop() {
  SetThreadName("quire-events");
  const Sockets& s = *sockets_;
  SendNew();
  while (!stop_) {
    zmq_pollitem_t items[] = {{nullptr, s.wake, ZMQ_POLLIN, 0}, {s.replay, 0, ZMQ_POLLIN, 0}};
    if (zmq_poll(items, s.replay == nullptr ? 1 : 2, -1) < 0 && zmq_errno() != EINTR) {
      spdlog::error("KV events: {}; none are published any more", zmq_strerror(zmq_errno()));
      return;
    }
    if (items[0].revents != 0) {
      uint64_t count = 0;
      const ssize_t ignored = ::read(s.wake, &count, sizeof(count));
      (void)ignored;
      SendNew();
    }
    if (s.replay != nullptr && items[1].revents != 0) AnswerReplays();
  }
  SendNew();
}

void KvEventPublisher::SendNew() {
  for (int i = 0; subscription_ != nullptr; ++i) {
    const auto next = subscription_->Next();
    if (absl::IsDataLoss(next.status())) {
      spdlog::warn("KV events: {}", Message(next.status()));
      if (!SubscribeFromFirst().ok()) return;
      continue;
    }
    if (!next.ok()) {  // the daemon ends
      subscription_.reset();
      return;
    }
    if (*next == nullptr) return;
    const KvEventBatch& batch = **next;
    next_sequence_ = batch.sequence + 1;
    if (hub_.next_sequence() - batch.sequence > static_cast<uint64_t>(options_.max_queue_size)) {
      skipped_.fetch_add(1);
      continue;
    }
    const Frame8 sequence = BigEndian(batch.sequence);
    const std::string payload = EncodeKvEvents(batch, hub_.facts(), options_.format);
    Send(sockets_->publish, {options_.topic, {sequence.data(), sequence.size()}, payload});
    sent_.fetch_add(1);
    if (i % kAtATime == kAtATime - 1 && sockets_->replay != nullptr) AnswerReplays();
  }
}

void KvEventPublisher::AnswerReplays() {
  std::vector<std::string> frames;
  for (int i = 0; i < kAtATime && Receive(sockets_->replay, frames); ++i) {
    const bool has_delimiter = frames.size() == 3 && frames[1].empty();
    if ((frames.size() != 2 && !has_delimiter) || frames.back().size() != sizeof(uint64_t)) {
      malformed_.fetch_add(1);
      spdlog::debug("KV events: a replay request of {} frames is not 8 bytes of a number; ignored",
                    frames.size());
      continue;
    }
    replays_.fetch_add(1);
    Replay(frames[0], has_delimiter, FromBigEndian(frames.back()));
  }
}

void KvEventPublisher::Replay(const std::string& identity, bool has_delimiter, uint64_t start) {
  const auto send = [&](uint64_t number, std::string_view payload) {
    const Frame8 bytes = BigEndian(number);
    const std::string_view sequence(bytes.data(), bytes.size());
    return has_delimiter ? Send(sockets_->replay, {identity, "", options_.topic, sequence, payload})
                         : Send(sockets_->replay, {identity, options_.topic, sequence, payload});
  };
  // What is not kept any more is left out: the numbers tell.
  const uint64_t first = std::max(start, hub_.first_sequence());
  auto subscription = hub_.Subscribe({KvEventHub::From::kSequence, first}, [] {});
  while (subscription.ok()) {
    const auto next = (*subscription)->Next();
    if (!next.ok() || *next == nullptr) break;
    if (!send((*next)->sequence, EncodeKvEvents(**next, hub_.facts(), options_.format))) return;
  }
  send(kEndOfReplay, {});
}

KvEventPublisher::Stats KvEventPublisher::stats() const {
  return {sent_.load(), skipped_.load(), replays_.load(), malformed_.load()};
}

}  // namespace quire
