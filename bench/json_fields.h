// bench/json_fields.h -- many members of a JSON object in one call, for benches' --json.
#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>

#include "base/json.h"

namespace quire {

inline void WriteTexts(
    JsonWriter& w, std::initializer_list<std::pair<std::string_view, std::string_view>> fields) {
  for (const auto& [key, value] : fields) {
    w.Key(key);
    w.String(value);
  }
}

inline void WriteNumbers(JsonWriter& w,
                         std::initializer_list<std::pair<std::string_view, double>> fields) {
  for (const auto& [key, value] : fields) {
    w.Key(key);
    w.Double(value);
  }
}

}  // namespace quire
