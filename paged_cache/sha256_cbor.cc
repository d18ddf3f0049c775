#include "paged_cache/sha256_cbor.h"

#include <utility>

#include "base/status.h"

namespace quire {
namespace {

// Major types of RFC 8949, in the upper three bits of an item's first byte.
enum CborType : uint8_t {
  kUnsigned = 0 << 5,
  kNegative = 1 << 5,
  kBytes = 2 << 5,
  kText = 3 << 5,
  kArray = 4 << 5,
};
constexpr uint8_t kNull = 0xf6;

// An item's type and argument in the fewest bytes: up to 23 within the first byte, else as 1, 2, 4
// or 8 bytes, big-endian, after a first byte of 24, 25, 26 or 27.
void AppendHead(CborType type, uint64_t argument, std::string& out) {
  if (argument < 24) {
    out += static_cast<char>(type | argument);
    return;
  }
  int log2_bytes = 0;
  while (log2_bytes < 3 && argument >> (8 << log2_bytes) != 0) ++log2_bytes;
  out += static_cast<char>(type | (24 + log2_bytes));
  for (int shift = (8 << log2_bytes) - 8; shift >= 0; shift -= 8) {
    out += static_cast<char>(argument >> shift & 0xff);
  }
}

void AppendText(std::string_view text, std::string& out) {
  AppendHead(kText, text.size(), out);
  out += text;
}

void AppendInt(int64_t value, std::string& out) {
  if (value >= 0) {
    AppendHead(kUnsigned, static_cast<uint64_t>(value), out);
  } else {
    AppendHead(kNegative, static_cast<uint64_t>(-1 - value), out);
  }
}

void AppendExtraKeys(const ExtraKeys& extra, std::string& out) {
  const bool has_salt = !extra.cache_salt.empty();
  const uint64_t count = uint64_t{extra.lora.has_value()} + uint64_t{has_salt};
  if (count == 0) {
    out += static_cast<char>(kNull);
    return;
  }
  AppendHead(kArray, count, out);
  if (extra.lora.has_value()) {
    AppendHead(kArray, 3, out);
    AppendText("lora", out);
    AppendText(extra.lora->name, out);
    AppendText(extra.lora->path, out);
  }
  if (has_salt) {
    AppendHead(kArray, 2, out);
    AppendText("cache_salt", out);
    AppendText(extra.cache_salt, out);
  }
}

}  // namespace

Sha256Digest NoneHash(std::string_view seed) {
  std::string cbor;
  AppendText(seed, cbor);
  return Sha256(cbor);
}

std::string EncodeBlockCbor(const Sha256Digest& parent, std::span<const TokenId> tokens,
                            const ExtraKeys& extra) {
  constexpr size_t kMaxTokenBytes = 5;
  constexpr size_t kMaxHeads = 32;
  std::string cbor;
  cbor.reserve(parent.bytes.size() + kMaxTokenBytes * tokens.size() + kMaxHeads);
  AppendHead(kArray, 3, cbor);
  AppendHead(kBytes, parent.bytes.size(), cbor);
  cbor.append(parent.bytes.begin(), parent.bytes.end());
  AppendHead(kArray, tokens.size(), cbor);
  for (const TokenId token : tokens) AppendInt(token, cbor);
  AppendExtraKeys(extra, cbor);
  return cbor;
}

Sha256Digest HashBlockSha256Cbor(const Sha256Digest& parent, std::span<const TokenId> tokens,
                                 const ExtraKeys& extra) {
  return Sha256(EncodeBlockCbor(parent, tokens, extra));
}

uint64_t ExternalHash(const Sha256Digest& hash) {
  uint64_t value = 0;
  for (size_t i = hash.bytes.size() - sizeof(value); i < hash.bytes.size(); ++i) {
    value = value << 8 | hash.bytes[i];
  }
  return value;
}

Sha256CborChain::Sha256CborChain(std::string_view seed, int32_t block_size, ExtraKeys extra)
    : none_hash_(NoneHash(seed)),
      block_size_(static_cast<size_t>(block_size)),
      first_(std::move(extra)),
      later_{.lora = first_.lora, .cache_salt = {}} {
  CHECK(block_size > 0, "block_size={}", block_size);
}

void Sha256CborChain::Extend(std::span<const TokenId> tokens,
                             std::vector<Sha256Digest>& chain) const {
  for (size_t at = chain.size() * block_size_; at + block_size_ <= tokens.size();
       at += block_size_) {
    const bool is_first = chain.empty();
    chain.push_back(HashBlockSha256Cbor(is_first ? none_hash_ : chain.back(),
                                        tokens.subspan(at, block_size_),
                                        is_first ? first_ : later_));
  }
}

}  // namespace quire
