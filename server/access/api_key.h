// server/access/api_key.h -- the keys of callers, and the file that lists them.
//
// The file is YAML (so JSON, too): a list with an entry for each key, made by `quire key`:
//
//   - name: alice                   for logs and messages; unique
//     sha256: 5e88...               of the key, which is nowhere on this machine
//     tenant: team-a                of all its requests; without, a request may name one
//     priority: 3                   of all its requests; or
//     max_priority: 0               the highest that a request may ask for
//     requests_per_minute: 60       0 or absent: no limit
//     tokens_per_minute: 100000     of prompts and outputs together
//     admin: true                   may also call quire.v1.Admin
//
// A key is 256 random bits, so one round of SHA-256 without salt is enough: there is nothing to
// guess. Any thread; pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

using KeyHash = std::array<uint8_t, 32>;

struct ApiKey {
  std::string name;
  KeyHash hash{};
  std::string tenant;  // empty: what the request says
  std::optional<int32_t> priority;
  std::optional<int32_t> max_priority;
  int64_t requests_per_minute = 0;  // 0 = no limit
  int64_t tokens_per_minute = 0;
  bool admin = false;
};

KeyHash HashOfKey(std::string_view secret);

// Takes the same time wherever they differ.
bool SameHash(const KeyHash& a, const KeyHash& b);

// "qk-" and 64 hex digits of the system's random source.
std::string NewSecret();

// The entry as the file has it.
std::string ToYaml(const ApiKey& key);

// ERRORS: kInvalidArgument, "<path>:<line>: ..." naming the field: unknown or double fields and
// names, wrong types, a hash that is none.
absl::StatusOr<std::vector<ApiKey>> ParseKeys(const std::string& text, const std::string& path);

// ERRORS: also kNotFound, and kInvalidArgument for more than a MiB.
absl::StatusOr<std::vector<ApiKey>> ReadKeys(const std::string& path);

}  // namespace quire
