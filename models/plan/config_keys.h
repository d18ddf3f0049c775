// models/plan/config_keys.h -- keys of a config.json for the shape readers: the first error is kept
// and returned at the end, so that a reader reads as a list of keys.
//
// After an error every key still gives a harmless number, so readers need no checks in between.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/config_reader.h"

namespace quire {

class ConfigKeys {
 public:
  explicit ConfigKeys(JsonFields fields) : fields_(std::move(fields)) {}

  // Present and in [1, max], else an error.
  int64_t Need(std::string_view key, int64_t max = kMaxWidth);
  // In [0, max]; `fallback` if absent or null.
  int64_t Get(std::string_view key, int64_t fallback, int64_t max = kMaxWidth);
  // The first of the keys that is there.
  int64_t NeedAny(std::initializer_list<std::string_view> keys, int64_t max = kMaxWidth);
  bool Flag(std::string_view key, bool fallback);
  bool Has(std::string_view key) const { return fields_.Has(key); }
  // One entry per layer, or empty if absent. `count` < 0: any number of entries.
  std::vector<std::string> Names(std::string_view key, int64_t count);
  std::vector<int64_t> Numbers(std::string_view key, int64_t count, int64_t max = kMaxWidth);
  std::string Text(std::string_view key, std::string_view fallback);
  // The object at `key`; an empty one if absent. Its errors must be merged by Keep.
  ConfigKeys Object(std::string_view key);

  // Keeps the first error.
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  void Refuse(std::string_view key, std::string_view constraint) {
    Keep(fields_.Refuse(key, constraint));
  }
  const absl::Status& status() const { return status_; }
  const JsonFields& fields() const { return fields_; }

 private:
  JsonFields fields_;
  absl::Status status_;
};

}  // namespace quire
