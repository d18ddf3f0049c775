#include "scheduler/root_key.h"

#include <fmt/format.h>

#include <charconv>

namespace quire {
namespace {

// "5:hello": takes it off the front.
bool TakePart(std::string_view& rest, std::string& part) {
  size_t size = 0;
  const char* const end = rest.data() + rest.size();
  const auto [after, error] = std::from_chars(rest.data(), end, size);
  if (error != std::errc() || after == end || *after != ':') return false;
  rest.remove_prefix(static_cast<size_t>(after - rest.data()) + 1);
  if (size > rest.size()) return false;
  part = rest.substr(0, size);
  rest.remove_prefix(size);
  return true;
}

}  // namespace

std::string RootKeyPrefix(std::string_view fingerprint, std::string_view cache_salt) {
  return fmt::format("{}:{}{}:{}", fingerprint.size(), fingerprint, cache_salt.size(), cache_salt);
}

std::string RootKeyOf(const RootParts& p) {
  return fmt::format("{}{}:{}{}", RootKeyPrefix(p.fingerprint, p.cache_salt), p.rope_regime.size(),
                     p.rope_regime, p.private_to == 0 ? "s" : fmt::format("p{}", p.private_to));
}

std::optional<RootParts> ParseRootKey(std::string_view key) {
  RootParts p;
  if (!TakePart(key, p.fingerprint) || !TakePart(key, p.cache_salt) ||
      !TakePart(key, p.rope_regime)) {
    return std::nullopt;
  }
  if (key == "s") return p;
  if (key.empty() || key[0] != 'p') return std::nullopt;
  const char* const end = key.data() + key.size();
  const auto [after, error] = std::from_chars(key.data() + 1, end, p.private_to);
  if (error != std::errc() || after != end || p.private_to == 0) return std::nullopt;
  return p;
}

}  // namespace quire
