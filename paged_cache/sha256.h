// paged_cache/sha256.h -- SHA-256 (FIPS 180-4) and its digests as keys.
//
// Used where a hash must mean the same outside of this process: block hashes that other engines
// compute too (sha256_cbor.h) and the names of cache pages in files (page_file_format.h). Inside
// the process pages are found by XXH3-128 (prefix_hash.h), which is some ten times faster.
//
// Thread: any.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace quire {

struct Sha256Digest {
  std::array<uint8_t, 32> bytes{};

  std::string ToHex() const;  // 64 lower-case digits
  // Exactly 64 lower-case digits, or nothing.
  static std::optional<Sha256Digest> FromHex(std::string_view hex);

  friend auto operator<=>(const Sha256Digest&, const Sha256Digest&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Sha256Digest& d) {
    return H::combine(std::move(h), d.bytes);
  }
};

Sha256Digest Sha256(std::span<const std::byte> bytes);
inline Sha256Digest Sha256(std::string_view bytes) {
  return Sha256(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

}  // namespace quire
