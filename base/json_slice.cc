#include "base/json_slice.h"

namespace quire {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

size_t SkipSpace(std::string_view json, size_t i) {
  const size_t next = json.find_first_not_of(kSpace, i);
  return next == std::string_view::npos ? json.size() : next;
}

// Behind the string that begins at i.
size_t SkipString(std::string_view json, size_t i) {
  for (++i; i < json.size() && json[i] != '"'; ++i) {
    if (json[i] == '\\') ++i;
  }
  return i + 1 < json.size() ? i + 1 : json.size();
}

// Behind the value that begins at i.
size_t SkipValue(std::string_view json, size_t i) {
  if (i < json.size() && json[i] == '"') return SkipString(json, i);
  int depth = 0;
  while (i < json.size()) {
    const char c = json[i];
    if (c == '"') {
      i = SkipString(json, i);
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') {
      if (depth == 0) return i;
      if (--depth == 0) return i + 1;
    }
    if (depth == 0 && (c == ',' || kSpace.find(c) != std::string_view::npos)) return i;
    ++i;
  }
  return i;
}

// Calls fn(key, value) for each member, or element with an empty key.
template <typename Fn>
void Walk(std::string_view json, char open, Fn fn) {
  size_t i = SkipSpace(json, 0);
  if (i >= json.size() || json[i] != open) return;
  i = SkipSpace(json, i + 1);
  while (i < json.size() && json[i] != '}' && json[i] != ']') {
    std::string_view key;
    if (open == '{') {
      const size_t end = SkipString(json, i);
      key = json.substr(i + 1, end - i - 2);
      i = SkipSpace(json, end);
      if (i < json.size()) i = SkipSpace(json, i + 1);  // the colon
    }
    const size_t end = SkipValue(json, i);
    if (end == i) return;
    fn(key, json.substr(i, end - i));
    i = SkipSpace(json, end);
    if (i < json.size() && json[i] == ',') i = SkipSpace(json, i + 1);
  }
}

}  // namespace

std::vector<std::pair<std::string_view, std::string_view>> RawMembers(std::string_view json) {
  std::vector<std::pair<std::string_view, std::string_view>> members;
  Walk(json, '{',
       [&](std::string_view key, std::string_view value) { members.emplace_back(key, value); });
  return members;
}

std::optional<std::string_view> RawMember(std::string_view json, std::string_view key) {
  std::optional<std::string_view> found;
  Walk(json, '{', [&](std::string_view name, std::string_view value) {
    if (name == key) found = value;
  });
  return found;
}

std::vector<std::string_view> RawElements(std::string_view json) {
  std::vector<std::string_view> elements;
  Walk(json, '[', [&](std::string_view, std::string_view value) { elements.push_back(value); });
  return elements;
}

}  // namespace quire
