// models/config_reader.h -- hyper-parameters out of config.json or GGUF metadata, each checked as
// it is read: type, range, finiteness. Errors name file, key, value and limit.
//
// Used by models/arch/ and models/rope_reader; load time only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "models/config.h"
#include "models/weights/gguf.h"

namespace quire {

// Limits that no model comes near; products of two of them fit int64, and sizes stay plausible
// before any tensor is looked at.
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxHeads = 65536;
inline constexpr int64_t kMaxWidth = 1 << 24;  // hidden_dim, mlp_dim, heads * head_dim
inline constexpr int64_t kMaxVocab = 1 << 27;
inline constexpr int64_t kMaxPosition = 1 << 30;

// One object of a JSON file. A key whose value is null counts as absent, as transformers reads it;
// HasKey tells the two apart.
class JsonFields {
 public:
  // `path` is put before keys in errors: "" or "rope_scaling.".
  JsonFields(Json object, std::string file, std::string path = "")
      : object_(std::move(object)), file_(std::move(file)), path_(std::move(path)) {}

  const std::string& file() const { return file_; }
  const Json& json() const { return object_; }
  bool Has(std::string_view key) const { return !object_[key].is_null(); }
  bool HasKey(std::string_view key) const { return object_.Has(key); }

  // `fallback` if absent; no fallback makes the key required. ERRORS: kInvalidArgument.
  absl::StatusOr<int64_t> Int(std::string_view key, std::optional<int64_t> fallback, int64_t min,
                              int64_t max) const;
  // Finite and above zero, as a float too.
  absl::StatusOr<float> Positive(std::string_view key, std::optional<float> fallback) const;
  absl::StatusOr<bool> Bool(std::string_view key, bool fallback) const;
  absl::StatusOr<std::string> String(std::string_view key, std::string_view fallback) const;
  absl::StatusOr<std::vector<float>> PositiveList(std::string_view key, size_t size) const;
  absl::StatusOr<std::vector<std::string>> StringList(std::string_view key, size_t size) const;
  // An id, a list of ids or nothing; each in [0, vocab_size).
  absl::StatusOr<std::vector<TokenId>> TokenIds(std::string_view key, int64_t vocab_size) const;
  // The object at `key`; an empty one if absent.
  absl::StatusOr<JsonFields> Object(std::string_view key) const;

  // `<file>: <key>=<value> <constraint>`.
  absl::Status Refuse(std::string_view key, std::string_view constraint,
                      absl::StatusCode code = absl::StatusCode::kInvalidArgument) const;

 private:
  Json object_;
  std::string file_;
  std::string path_;
};

// Metadata of one architecture: keys are "<architecture>.<key>".
class GgufFields {
 public:
  GgufFields(const GgufFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  const GgufFile& file() const { return file_; }
  std::string Key(std::string_view key) const { return prefix_ + std::string(key); }
  bool Has(std::string_view key) const { return file_.Has(Key(key)); }

  absl::StatusOr<int64_t> Int(std::string_view key, std::optional<int64_t> fallback, int64_t min,
                              int64_t max) const;
  absl::StatusOr<float> Positive(std::string_view key, std::optional<float> fallback) const;
  absl::StatusOr<std::string> String(std::string_view key, std::string_view fallback) const;
  // Whether layer i is the exception of a repeating pattern: the key is that pattern's length, the
  // last of each run being the exception (1: all are, 0: none), or an array of flags that are true
  // for the others. [num_layers]
  absl::StatusOr<std::vector<bool>> Exceptions(std::string_view key, int64_t fallback,
                                               size_t num_layers) const;
  // [num_layers], from one number or from an array of as many.
  absl::StatusOr<std::vector<int64_t>> PerLayer(std::string_view key,
                                                const std::vector<int64_t>& fallback,
                                                size_t num_layers, int64_t min, int64_t max) const;
  absl::Status Refuse(std::string_view key, std::string_view value, std::string_view constraint,
                      absl::StatusCode code = absl::StatusCode::kInvalidArgument) const;

 private:
  const GgufFile& file_;
  std::string prefix_;
};

// The names that checkpoints give to activations. ERRORS: kUnimplemented listing the known ones.
absl::StatusOr<kernels::Activation> ActivationFromName(const JsonFields& fields,
                                                       std::string_view key,
                                                       std::string_view fallback);

// What holds for every architecture, whatever file it came from: kv heads divide heads, widths are
// in range, head_dim is even where rope turns it. `names` are the file's keys for heads, kv heads
// and head_dim.
struct KeyNames {
  std::string file;
  std::string num_heads;
  std::string num_kv_heads;
  std::string head_dim;
};
absl::Status CheckConfig(const ModelConfig& config, const KeyNames& names);

}  // namespace quire
