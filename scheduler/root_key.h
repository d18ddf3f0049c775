// scheduler/root_key.h -- what else than tokens decides a page's content, as the bytes of a prefix
// root (contract C2). Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "scheduler/request.h"

namespace quire {

struct RootParts {
  std::string fingerprint;
  std::string cache_salt;
  std::string rope_regime;
  RequestId private_to = 0;  // the request that shares its prefixes with nobody else; 0 = shared
};

// No two different inputs give the same bytes: each part is preceded by its length.
std::string RootKeyOf(const RootParts& parts);

// What the keys of all roots of this salt begin with, and of no other.
std::string RootKeyPrefix(std::string_view fingerprint, std::string_view cache_salt);

// nullopt if RootKeyOf cannot have made it.
std::optional<RootParts> ParseRootKey(std::string_view key);

}  // namespace quire
