#include "paged_cache/sha256.h"

#include <openssl/evp.h>

#include "base/status.h"

namespace quire {

std::string Sha256Digest::ToHex() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const uint8_t byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::optional<Sha256Digest> Sha256Digest::FromHex(std::string_view hex) {
  Sha256Digest digest;
  if (hex.size() != 2 * digest.bytes.size()) return std::nullopt;
  for (size_t i = 0; i < hex.size(); ++i) {
    const char c = hex[i];
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && !(c >= 'a' && c <= 'f')) return std::nullopt;
    const int value = is_digit ? c - '0' : c - 'a' + 10;
    digest.bytes[i / 2] = static_cast<uint8_t>(digest.bytes[i / 2] << 4 | value);
  }
  return digest;
}

Sha256Digest Sha256(std::span<const std::byte> bytes) {
  // Fetched once: a search for the algorithm costs more than the hash of a short text. Never freed.
  static const EVP_MD* const kSha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  CHECK(kSha256 != nullptr, "libcrypto has no SHA256");
  Sha256Digest digest;
  unsigned int size = 0;
  const int ok =
      EVP_Digest(bytes.data(), bytes.size(), digest.bytes.data(), &size, kSha256, nullptr);
  CHECK(ok == 1 && size == digest.bytes.size(), "EVP_Digest gave {} bytes", size);
  return digest;
}

}  // namespace quire
