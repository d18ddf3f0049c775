#include "models/plan/config_keys.h"

namespace quire {

int64_t ConfigKeys::Need(std::string_view key, int64_t max) {
  const absl::StatusOr<int64_t> value = fields_.Int(key, std::nullopt, 1, max);
  if (value.ok()) return *value;
  Keep(value.status());
  return 1;
}

int64_t ConfigKeys::Get(std::string_view key, int64_t fallback, int64_t max) {
  const absl::StatusOr<int64_t> value = fields_.Int(key, fallback, 0, max);
  if (value.ok()) return *value;
  Keep(value.status());
  return fallback;
}

int64_t ConfigKeys::NeedAny(std::initializer_list<std::string_view> keys, int64_t max) {
  for (const std::string_view key : keys) {
    if (Has(key)) return Need(key, max);
  }
  return Need(*keys.begin(), max);
}

bool ConfigKeys::Flag(std::string_view key, bool fallback) {
  const absl::StatusOr<bool> value = fields_.Bool(key, fallback);
  if (value.ok()) return *value;
  Keep(value.status());
  return fallback;
}

std::vector<std::string> ConfigKeys::Names(std::string_view key, int64_t count) {
  std::vector<std::string> names;
  if (!Has(key)) return names;
  const Json list = fields_.json()[key];
  if (!list.is_array() || (count >= 0 && list.size() != static_cast<size_t>(count)) ||
      list.size() > static_cast<size_t>(kMaxLayers)) {
    Refuse(key, count >= 0 ? fmt::format("must be a list of {} names, one per layer", count)
                           : fmt::format("must be a list of at most {} names", kMaxLayers));
    return names;
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::optional<std::string_view> name = list.at(i).as_string();
    if (!name) {
      Refuse(key, fmt::format("must hold names (element {})", i));
      return {};
    }
    names.emplace_back(*name);
  }
  return names;
}

std::vector<int64_t> ConfigKeys::Numbers(std::string_view key, int64_t count, int64_t max) {
  std::vector<int64_t> numbers;
  if (!Has(key)) return numbers;
  const Json list = fields_.json()[key];
  if (!list.is_array() || (count >= 0 && list.size() != static_cast<size_t>(count)) ||
      list.size() > static_cast<size_t>(kMaxLayers)) {
    Refuse(key, count >= 0 ? fmt::format("must be a list of {} numbers, one per layer", count)
                           : fmt::format("must be a list of at most {} numbers", kMaxLayers));
    return numbers;
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::optional<int64_t> number = list.at(i).as_int();
    if (!number || *number < 0 || *number > max) {
      Refuse(key, fmt::format("must hold integers in [0, {}] (element {})", max, i));
      return {};
    }
    numbers.push_back(*number);
  }
  return numbers;
}

std::string ConfigKeys::Text(std::string_view key, std::string_view fallback) {
  const absl::StatusOr<std::string> value = fields_.String(key, fallback);
  if (value.ok()) return *value;
  Keep(value.status());
  return std::string(fallback);
}

ConfigKeys ConfigKeys::Object(std::string_view key) {
  absl::StatusOr<JsonFields> object = fields_.Object(key);
  if (object.ok()) return ConfigKeys(*std::move(object));
  Keep(object.status());
  return ConfigKeys(JsonFields(Json(), fields_.file()));
}

}  // namespace quire
