#include "server/events/kv_event_encoding.h"

#include <vector>

#include "server/events/msgpack_writer.h"

namespace quire {
namespace {

using Event = CacheEvents::Event;

class Encoder {
 public:
  Encoder(const CacheEvents& events, const KvEventFacts& facts, const KvEventFormat& format)
      : events_(events), facts_(facts), format_(format) {}

  std::string Encode(double time_s) {
    out_.Array(3);
    out_.Double(time_s);
    out_.Array(events_.events.size());
    for (const Event& e : events_.events) {
      switch (e.kind) {
        case CacheEvents::Kind::kStored:
          Stored(e);
          break;
        case CacheEvents::Kind::kRemoved:
          Removed(e);
          break;
        case CacheEvents::Kind::kCleared:
          Begin("AllBlocksCleared", 0, /*wide=*/false);
      }
    }
    out_.Uint(0);  // the only rank there is
    return out_.Take();
  }

 private:
  bool is_map() const { return format_.encoding == KvEventEncoding::kMap; }

  // wide: other encoders write the head of this map with 16 bits; theirs are the bytes to be equal
  // to.
  void Begin(std::string_view type, size_t num_fields, bool wide) {
    if (!is_map()) {
      out_.Array(num_fields + 1);
    } else if (wide) {
      out_.Map16(num_fields + 1);
    } else {
      out_.SmallMap(num_fields + 1);
    }
    if (is_map()) out_.String("type");
    out_.String(type);
  }
  void Key(std::string_view name) {
    if (is_map()) out_.String(name);
  }
  void Hash(const PrefixHash& hash) {
    if (format_.int_hashes) {
      out_.Uint(EventHash(hash, events_.algorithm));
    } else {
      out_.Binary(EventHashBytes(hash, events_.algorithm));
    }
  }
  void Hashes(const Event& e) {
    Key("block_hashes");
    out_.Array(static_cast<size_t>(e.num_blocks));
    for (int32_t i = 0; i < e.num_blocks; ++i) {
      Hash(events_.hashes[static_cast<size_t>(e.first_hash + i)]);
    }
  }
  void Medium(const Event& e) {
    Key("medium");
    out_.String(MediumOf(e.tier));
  }

  void Stored(const Event& e) {
    const bool many = facts_.many_groups;
    const KvEventGroup& group = facts_.groups[static_cast<size_t>(e.group)];
    // What a block is hashed with besides tokens, block by block: the salt enters the first alone.
    const bool has_extra = e.salt >= 0 && !e.has_parent;
    const bool has_window = many && group.window > 0;
    constexpr size_t kPlain = 7;
    if (is_map()) {
      Begin("BlockStored", kPlain + has_extra + 2 * many + has_window, /*wide=*/true);
    } else {
      Begin("BlockStored", has_window ? kPlain + 4 : many ? kPlain + 3 : kPlain + has_extra, false);
    }
    Hashes(e);
    Key("parent_block_hash");
    if (e.has_parent) {
      Hash(e.parent);
    } else {
      out_.Nil();
    }
    Key("token_ids");
    const size_t num_tokens =
        static_cast<size_t>(e.num_blocks) * static_cast<size_t>(facts_.block_size);
    out_.Array(num_tokens);
    for (size_t i = 0; i < num_tokens; ++i) {
      out_.Uint(static_cast<uint64_t>(events_.tokens[static_cast<size_t>(e.first_token) + i]));
    }
    Key("block_size");
    out_.Uint(static_cast<uint64_t>(facts_.block_size));
    Key("lora_id");
    out_.Nil();
    Medium(e);
    Key("lora_name");
    out_.Nil();
    if (has_extra) {
      Key("extra_keys");
      out_.Array(static_cast<size_t>(e.num_blocks));
      out_.Array(1);
      out_.String(events_.salts[static_cast<size_t>(e.salt)]);
      for (int32_t i = 1; i < e.num_blocks; ++i) out_.Nil();
    } else if (!is_map() && many) {
      out_.Nil();
    }
    if (!many) return;
    Key("group_idx");
    out_.Uint(static_cast<uint64_t>(e.group));
    Key("kv_cache_spec_kind");
    out_.String(group.spec_kind);
    if (!has_window) return;
    Key("kv_cache_spec_sliding_window");
    out_.Uint(static_cast<uint64_t>(group.window));
  }

  void Removed(const Event& e) {
    Begin("BlockRemoved", 2 + facts_.many_groups, /*wide=*/false);
    Hashes(e);
    Medium(e);
    if (!facts_.many_groups) return;
    Key("group_idx");
    out_.Uint(static_cast<uint64_t>(e.group));
  }

  const CacheEvents& events_;
  const KvEventFacts& facts_;
  const KvEventFormat& format_;
  MsgpackWriter out_;
};

}  // namespace

std::string EncodeKvEvents(const KvEventBatch& batch, const KvEventFacts& facts,
                           const KvEventFormat& format) {
  return Encoder(batch.events, facts, format).Encode(static_cast<double>(batch.time_ns) / 1e9);
}

}  // namespace quire
