// server/openengine/oe_kv_events.cc -- see oe_kv_events.h.
#include "server/openengine/oe_kv_events.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/udp.hpp>
#include <optional>
#include <string_view>
#include <type_traits>

#include "server/grpc/kv_event_streams.h"
#include "server/openengine/oe_answer.h"

namespace quire {
namespace {

namespace oe = ::openengine::v1;

oe::StorageMedium StorageOf(CacheTier tier) {
  switch (tier) {
    case CacheTier::kPool:
      return oe::STORAGE_MEDIUM_GPU;
    case CacheTier::kHost:
      return oe::STORAGE_MEDIUM_CPU_PINNED;
    case CacheTier::kFiles:
      return oe::STORAGE_MEDIUM_DISK;
  }
  return oe::STORAGE_MEDIUM_UNSPECIFIED;
}

template <typename Told>
void FillPlace(const CacheEvents& events, const CacheEvents::Event& e, const KvEventFacts& facts,
               Told& out) {
  const auto fill = [&](const PrefixHash& hash, oe::KvBlockHash& to) {
    to.set_value(EventHashBytes(hash, events.algorithm));
    to.set_encoding("bytes");
  };
  for (int32_t i = 0; i < e.num_blocks; ++i) {
    fill(events.hashes[static_cast<size_t>(e.first_hash + i)], *out.add_block_hashes());
  }
  if constexpr (std::is_same_v<Told, oe::BlockStored>) {
    if (e.has_parent) fill(e.parent, *out.mutable_parent_block_hash());
  }
  out.set_medium(StorageOf(e.tier));
  if (facts.many_groups) out.set_group_idx(static_cast<uint32_t>(e.group));
}

void FillStored(const CacheEvents& events, const CacheEvents::Event& e, const KvEventFacts& facts,
                oe::BlockStored& out) {
  FillPlace(events, e, facts, out);
  const TokenId* const tokens = events.tokens.data() + e.first_token;
  out.mutable_token_ids()->Add(tokens, tokens + e.num_blocks * facts.block_size);
  out.set_block_size(static_cast<uint32_t>(facts.block_size));
  // What a block is hashed with besides tokens, block by block: the salt enters the first alone.
  if (e.salt >= 0 && !e.has_parent) {
    out.add_extra_keys()->add_values(events.salts[static_cast<size_t>(e.salt)]);
    for (int32_t i = 1; i < e.num_blocks; ++i) out.add_extra_keys();
  }
  if (!facts.many_groups) return;
  const KvEventGroup& group = facts.groups[static_cast<size_t>(e.group)];
  out.set_kv_cache_spec_kind(group.spec_kind.data(), group.spec_kind.size());
  out.set_kv_cache_spec_sliding_window(static_cast<uint32_t>(group.window));
}

// The address from which this machine would call others; empty if there is no way out. Asks the
// routing table: connecting a datagram socket sends nothing.
std::string OwnAddress() {
  boost::asio::io_context io;
  boost::asio::ip::udp::socket socket(io);
  boost::system::error_code error;
  // An address that documents use for "some other machine" (RFC 5737).
  const auto elsewhere = boost::asio::ip::make_address("192.0.2.1");
  socket.connect({elsewhere, 9}, error);
  if (error) return {};
  const auto local = socket.local_endpoint(error);
  return error ? std::string() : local.address().to_string();
}

struct TcpEndpoint {
  std::string host;
  uint32_t port = 0;
};

// Of "tcp://host:port" as libzmq reports a bound socket.
std::optional<TcpEndpoint> Parse(std::string_view endpoint) {
  constexpr std::string_view kTcp = "tcp://";
  const size_t colon = endpoint.rfind(':');
  if (endpoint.substr(0, kTcp.size()) != kTcp || colon < kTcp.size()) return std::nullopt;
  TcpEndpoint out{.host = std::string(endpoint.substr(kTcp.size(), colon - kTcp.size()))};
  // An IPv4 address of a socket that speaks IPv6, too.
  constexpr std::string_view kMapped = "[::ffff:";
  if (out.host.compare(0, kMapped.size(), kMapped) == 0) {
    out.host = out.host.substr(kMapped.size(), out.host.size() - kMapped.size() - 1);
  }
  for (const char c : endpoint.substr(colon + 1)) {
    if (c < '0' || c > '9' || out.port > 65535) return std::nullopt;
    out.port = out.port * 10 + static_cast<uint32_t>(c - '0');
  }
  if (out.host == "0.0.0.0" || out.host == "[::]" || out.host == "*") out.host = OwnAddress();
  if (out.host.empty() || out.port == 0 || out.port > 65535) return std::nullopt;
  return out;
}

}  // namespace

oe::SubscribeKvEventsResponse ToOe(const KvEventBatch& batch, const KvEventFacts& facts) {
  oe::SubscribeKvEventsResponse response;
  oe::KvEventBatch& out = *response.mutable_batch();
  out.set_sequence_number(ToldSequence(batch));
  out.set_timestamp_unix_nanos(static_cast<uint64_t>(batch.time_ns));
  out.set_data_parallel_rank(0);
  if (BeginsAnew(batch)) out.add_events()->mutable_all_blocks_cleared();
  for (const CacheEvents::Event& e : batch.events.events) {
    oe::KvEvent& event = *out.add_events();
    switch (e.kind) {
      case CacheEvents::Kind::kStored:
        FillStored(batch.events, e, facts, *event.mutable_block_stored());
        break;
      case CacheEvents::Kind::kRemoved:
        FillPlace(batch.events, e, facts, *event.mutable_block_removed());
        break;
      case CacheEvents::Kind::kCleared:
        event.mutable_all_blocks_cleared();
    }
  }
  return response;
}

oe::SubscribeKvEventsResponse OeKvEventsError(const absl::Status& status) {
  oe::SubscribeKvEventsResponse response;
  oe::EngineError& error = *response.mutable_error();
  // Who has missed something may come again, with a snapshot.
  const bool too_slow = absl::IsDataLoss(status);
  error.set_code(too_slow ? oe::ERROR_CODE_OVERLOADED : OeErrorCode(status));
  error.set_message(Message(status));
  error.set_retryable(too_slow || absl::IsUnavailable(status));
  return response;
}

bool FillZmqSource(const ServerOptions& options, const std::string& endpoint,
                   const std::string& replay_endpoint, oe::KvEventSource& source) {
  const std::optional<TcpEndpoint> at = Parse(endpoint);
  if (!at.has_value()) return false;
  source.set_transport("zmq");
  source.mutable_endpoint_addr()->set_host(at->host);
  source.mutable_endpoint_addr()->set_port(at->port);
  source.mutable_endpoint_addr()->set_protocol("tcp");
  source.set_topic(options.kv_events_topic);
  if (const auto replay = Parse(replay_endpoint); replay.has_value()) {
    source.set_replay_endpoint(fmt::format("tcp://{}:{}", replay->host, replay->port));
  }
  source.set_data_parallel_rank(0);
  source.set_encoding("msgpack");
  source.set_buffer_steps(static_cast<uint32_t>(options.kv_events_buffer_steps));
  source.set_hwm(static_cast<uint32_t>(options.kv_events_hwm));
  source.set_max_queue_size(static_cast<uint32_t>(options.kv_events_max_queue_size));
  return true;
}

}  // namespace quire
