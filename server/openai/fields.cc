#include "server/openai/fields.h"

#include <limits>

namespace quire {
namespace {

constexpr size_t kShownBytes = 64;

}  // namespace

std::string Shown(const Json& value) {
  std::string text = value.Dump();
  if (text.size() > kShownBytes) {
    size_t end = kShownBytes;
    while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
    text = text.substr(0, end) + "...";
  }
  return text;
}

std::optional<Json> Fields::Find(std::string_view name) const {
  if (!status_.ok()) return std::nullopt;
  Json value = object_[name];
  if (value.is_null()) return std::nullopt;
  return value;
}

void Fields::WrongType(std::string_view name, const Json& value, std::string_view wanted) {
  Fail(InvalidArgument("{}{}={} is not {}", path_, name, Shown(value), wanted));
}

void Fields::Refuse(std::string_view name, std::string_view why) {
  if (const auto value = Find(name)) {
    Fail(InvalidArgument("{}{}={} {}", path_, name, Shown(*value), why));
  }
}

std::optional<bool> Fields::Bool(std::string_view name) {
  const auto value = Find(name);
  if (!value) return std::nullopt;
  if (!value->is_bool()) WrongType(name, *value, "true or false");
  return value->as_bool();
}

std::optional<int64_t> Fields::Int64(std::string_view name) {
  const auto value = Find(name);
  if (!value) return std::nullopt;
  const std::optional<int64_t> number = value->as_int();
  if (!number) WrongType(name, *value, "a whole number of 64 bits");
  return number;
}

std::optional<int32_t> Fields::Int(std::string_view name) {
  const auto value = Find(name);
  if (!value) return std::nullopt;
  const std::optional<int64_t> number = value->as_int();
  if (!number || *number < std::numeric_limits<int32_t>::min() ||
      *number > std::numeric_limits<int32_t>::max()) {
    WrongType(name, *value, "a whole number of 32 bits");
    return std::nullopt;
  }
  return static_cast<int32_t>(*number);
}

std::optional<double> Fields::Number(std::string_view name) {
  const auto value = Find(name);
  if (!value) return std::nullopt;
  if (!value->is_number()) WrongType(name, *value, "a number");
  return value->as_double();
}

std::optional<std::string> Fields::String(std::string_view name) {
  const auto value = Find(name);
  if (!value) return std::nullopt;
  if (!value->is_string()) {
    WrongType(name, *value, "a string");
    return std::nullopt;
  }
  return std::string(*value->as_string());
}

std::optional<Fields> Fields::Object(std::string_view name) {
  const auto value = Find(name);
  if (!value) return std::nullopt;
  if (!value->is_object()) {
    WrongType(name, *value, "an object");
    return std::nullopt;
  }
  return Fields(*value, path_ + std::string(name) + ".");
}

std::vector<Json> Fields::Array(std::string_view name) {
  std::vector<Json> elements;
  const auto value = Find(name);
  if (!value) return elements;
  if (!value->is_array()) {
    WrongType(name, *value, "an array");
    return elements;
  }
  elements.reserve(value->size());
  for (size_t i = 0; i < value->size(); ++i) elements.push_back(value->at(i));
  return elements;
}

std::vector<std::string> Fields::Strings(std::string_view name) {
  std::vector<std::string> strings;
  const auto value = Find(name);
  if (!value) return strings;
  if (const auto one = value->as_string()) {
    strings.emplace_back(*one);
    return strings;
  }
  if (!value->is_array()) {
    WrongType(name, *value, "a string or an array of strings");
    return strings;
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const Json element = value->at(i);
    if (!element.is_string()) {
      WrongType(fmt::format("{}[{}]", name, i), element, "a string");
      return {};
    }
    strings.emplace_back(*element.as_string());
  }
  return strings;
}

std::vector<int64_t> Fields::Ints(std::string_view name) {
  std::vector<int64_t> numbers;
  const std::vector<Json> elements = Array(name);
  for (size_t i = 0; i < elements.size(); ++i) {
    const auto number = elements[i].as_int();
    if (!number) {
      WrongType(fmt::format("{}[{}]", name, i), elements[i], "a whole number");
      return {};
    }
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace quire
