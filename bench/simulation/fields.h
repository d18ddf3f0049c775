// bench/simulation/fields.h -- structs of options whose fields are listed once, by
// `VisitFields(self, visit)` with visit(FieldInfo, member): from that list come flags, `name=value`
// overrides, range checks and the report's heading. Any thread.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"

namespace quire {

struct FieldInfo {
  std::string_view name;  // max_num_seqs
  std::string_view help;
  double min = 0;  // numbers only, inclusive
  double max = 0;
  std::string_view choices = {};  // strings only: "a|b|c"
};

inline std::string FieldText(bool value) { return value ? "true" : "false"; }
inline std::string FieldText(const std::string& value) { return value; }
template <typename T>
std::string FieldText(T value) {
  return fmt::format("{}", value);
}

inline bool IsChoice(std::string_view choices, std::string_view value) {
  for (;;) {
    const size_t bar = choices.find('|');
    if (choices.substr(0, bar) == value) return true;
    if (bar == std::string_view::npos) return false;
    choices.remove_prefix(bar + 1);
  }
}

// ERRORS: kInvalidArgument naming field, value and limit.
template <typename T>
absl::Status ParseField(const FieldInfo& info, std::string_view text, T& out) {
  if constexpr (std::is_same_v<T, std::string>) {
    if (!info.choices.empty() && !IsChoice(info.choices, text)) {
      return InvalidArgument("{}={} must be one of {}", info.name, text, info.choices);
    }
    out = std::string(text);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (text != "true" && text != "false") {
      return InvalidArgument("{}={} must be true or false", info.name, text);
    }
    out = text == "true";
  } else {
    T value{};
    const std::from_chars_result r = std::from_chars(text.data(), text.data() + text.size(), value);
    const auto as_double = static_cast<double>(value);
    if (r.ec != std::errc() || r.ptr != text.data() + text.size() ||
        !(as_double >= info.min && as_double <= info.max)) {
      return InvalidArgument("{}={} must be {} in [{}, {}]", info.name, text,
                             std::is_integral_v<T> ? "a whole number" : "a number", info.min,
                             info.max);
    }
    out = value;
  }
  return absl::OkStatus();
}

// ERRORS: kInvalidArgument; kNotFound: no such field.
template <typename T>
absl::Status SetField(T& object, std::string_view name, std::string_view text) {
  absl::Status status = Error(absl::StatusCode::kNotFound, "{} is not an option", name);
  T::VisitFields(object, [&](const FieldInfo& info, auto& member) {
    if (info.name == name) status = ParseField(info, text, member);
  });
  return status;
}

}  // namespace quire
