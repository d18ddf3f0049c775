// server/access/api_key.cc -- see api_key.h.
#include "server/access/api_key.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "server/access/read_file.h"
#include "server/options.h"

namespace quire {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxKeys = 4096;  // each call compares with all of them
constexpr size_t kMaxNameBytes = 128;
constexpr int32_t kMaxPriority = 1000;  // as of requests
constexpr int64_t kMaxPerMinute = int64_t{1} << 40;
constexpr char kHex[] = "0123456789abcdef";

std::string ToHex(const uint8_t* bytes, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    text += kHex[bytes[i] >> 4];
    text += kHex[bytes[i] & 15];
  }
  return text;
}

std::optional<KeyHash> FromHex(const std::string& text) {
  KeyHash hash{};
  if (text.size() != 2 * hash.size()) return std::nullopt;
  for (size_t i = 0; i < hash.size(); ++i) {
    const char* const begin = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, hash[i], 16);
    if (error != std::errc() || end != begin + 2) return std::nullopt;
  }
  return hash;
}

class KeyReader {
 public:
  KeyReader(const YAML::Node& entry, const std::string& path) : entry_(entry), path_(path) {}

  absl::StatusOr<ApiKey> Read() {
    if (!entry_.IsMap()) return InvalidArgument("{}: a key is a map of fields", Where(entry_));
    std::set<std::string> seen;
    for (const auto& field : entry_) {
      if (!field.first.IsScalar() || !field.second.IsScalar()) {
        return InvalidArgument("{}: a field is a name and a single value", Where(field.first));
      }
      const std::string& name = field.first.Scalar();
      where_ = Where(field.first);
      if (!seen.insert(name).second) return InvalidArgument("{}: {} is given twice", where_, name);
      RETURN_IF_ERROR(Set(name, field.second));
    }
    where_ = Where(entry_);
    if (!seen.contains("name")) return InvalidArgument("{}: name is missing", where_);
    if (!seen.contains("sha256")) {
      return InvalidArgument("{}: sha256 is missing; `quire key` makes an entry", where_);
    }
    if (key_.priority && key_.max_priority) {
      return InvalidArgument("{}: priority and max_priority are both given; drop one", where_);
    }
    return std::move(key_);
  }

 private:
  std::string Where(const YAML::Node& node) const {
    return fmt::format("{}:{}", path_, node.Mark().line + 1);
  }

  absl::Status Set(const std::string& name, const YAML::Node& value) {
    if (name == "name") return Text(name, value, key_.name, /*may_be_empty=*/false);
    if (name == "tenant") return Text(name, value, key_.tenant, /*may_be_empty=*/true);
    if (name == "sha256") {
      const std::optional<KeyHash> hash = FromHex(value.Scalar());
      if (!hash) return InvalidArgument("{}: sha256 is not 64 hex digits", where_);
      key_.hash = *hash;
      return absl::OkStatus();
    }
    if (name == "priority" || name == "max_priority") {
      int64_t number = 0;
      RETURN_IF_ERROR(Number(name, value, -kMaxPriority, kMaxPriority, number));
      (name == "priority" ? key_.priority : key_.max_priority) = static_cast<int32_t>(number);
      return absl::OkStatus();
    }
    if (name == "requests_per_minute") {
      return Number(name, value, 0, kMaxPerMinute, key_.requests_per_minute);
    }
    if (name == "tokens_per_minute") {
      return Number(name, value, 0, kMaxPerMinute, key_.tokens_per_minute);
    }
    if (name == "admin") {
      if (value.Scalar() != "true" && value.Scalar() != "false") {
        return InvalidArgument("{}: admin={} is not true or false", where_, value.Scalar());
      }
      key_.admin = value.Scalar() == "true";
      return absl::OkStatus();
    }
    return InvalidArgument("{}: {} is not a known field; did you mean {}?", where_, name,
                           Nearest(name, {"name", "sha256", "tenant", "priority", "max_priority",
                                          "requests_per_minute", "tokens_per_minute", "admin"}));
  }

  absl::Status Text(const std::string& name, const YAML::Node& value, std::string& out,
                    bool may_be_empty) {
    out = value.Scalar();
    if ((out.empty() && !may_be_empty) || out.size() > kMaxNameBytes) {
      return InvalidArgument("{}: {} has {} bytes, must have 1 to {}", where_, name, out.size(),
                             kMaxNameBytes);
    }
    if (std::any_of(out.begin(), out.end(), [](char c) { return c <= ' ' || c > '~'; })) {
      return InvalidArgument("{}: {} must be printable ASCII without spaces", where_, name);
    }
    return absl::OkStatus();
  }

  absl::Status Number(const std::string& name, const YAML::Node& value, int64_t least, int64_t most,
                      int64_t& out) {
    const std::string& text = value.Scalar();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error != std::errc() || end != text.data() + text.size() || out < least || out > most) {
      return InvalidArgument("{}: {}={} is not a whole number in [{}, {}]", where_, name, text,
                             least, most);
    }
    return absl::OkStatus();
  }

  const YAML::Node entry_;
  const std::string& path_;
  std::string where_;
  ApiKey key_;
};

absl::StatusOr<std::vector<ApiKey>> ReadList(const YAML::Node& list, const std::string& path) {
  if (!list.IsSequence()) {
    return InvalidArgument("{}:1: is not a list of keys (`- name: ...`); `quire key` makes entries",
                           path);
  }
  if (list.size() > kMaxKeys) {
    return InvalidArgument("{}: has {} keys, at most {} are possible", path, list.size(), kMaxKeys);
  }
  std::vector<ApiKey> keys;
  std::set<std::string> names;
  std::set<KeyHash> hashes;
  for (const auto& entry : list) {
    ASSIGN_OR_RETURN(ApiKey key, KeyReader(entry, path).Read());
    if (!names.insert(key.name).second) {
      return InvalidArgument("{}:{}: name={} is there twice", path, entry.Mark().line + 1,
                             key.name);
    }
    if (!hashes.insert(key.hash).second) {
      return InvalidArgument("{}:{}: the sha256 of {} is there twice", path, entry.Mark().line + 1,
                             key.name);
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

}  // namespace

KeyHash HashOfKey(std::string_view secret) {
  KeyHash hash{};
  SHA256(reinterpret_cast<const uint8_t*>(secret.data()), secret.size(), hash.data());
  return hash;
}

bool SameHash(const KeyHash& a, const KeyHash& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string NewSecret() {
  std::array<uint8_t, 32> bytes{};
  CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1, "no random bytes");
  return "qk-" + ToHex(bytes.data(), bytes.size());
}

std::string ToYaml(const ApiKey& key) {
  // Quoted: a name like `yes` or `1e3` is text.
  std::string text = fmt::format("- name: \"{}\"\n  sha256: \"{}\"\n", key.name,
                                 ToHex(key.hash.data(), key.hash.size()));
  if (!key.tenant.empty()) text += fmt::format("  tenant: \"{}\"\n", key.tenant);
  if (key.priority) text += fmt::format("  priority: {}\n", *key.priority);
  if (key.max_priority) text += fmt::format("  max_priority: {}\n", *key.max_priority);
  if (key.requests_per_minute > 0) {
    text += fmt::format("  requests_per_minute: {}\n", key.requests_per_minute);
  }
  if (key.tokens_per_minute > 0) {
    text += fmt::format("  tokens_per_minute: {}\n", key.tokens_per_minute);
  }
  if (key.admin) text += "  admin: true\n";
  return text;
}

absl::StatusOr<std::vector<ApiKey>> ParseKeys(const std::string& text, const std::string& path) {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() != 1) {
      return InvalidArgument("{}:1: holds {} documents, one list of keys is wanted", path,
                             documents.size());
    }
    return ReadList(documents[0], path);
  } catch (const YAML::Exception& e) {  // the library's border
    return InvalidArgument("{}:{}: {}", path, e.mark.line + 1, e.msg);
  }
}

absl::StatusOr<std::vector<ApiKey>> ReadKeys(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxFileBytes));
  return ParseKeys(text, path);
}

}  // namespace quire
