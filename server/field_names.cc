// server/field_names.cc -- see field_names.h.
#include "server/field_names.h"

namespace quire {
namespace {

bool IsNamePart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// A word before which one of these stands is a value, or part of one.
bool IsInValue(char before) {
  return IsNamePart(before) || std::string_view(".=-/'\"`").find(before) != std::string_view::npos;
}

const std::pair<std::string, std::string>* Find(std::string_view rest, const FieldNames& names) {
  const std::pair<std::string, std::string>* best = nullptr;
  for (const auto& entry : names) {
    const std::string& ours = entry.first;
    if (rest.substr(0, ours.size()) != ours) continue;
    const bool whole =
        ours.back() == '.' || rest.size() == ours.size() || !IsNamePart(rest[ours.size()]);
    if (whole && (best == nullptr || ours.size() > best->first.size())) best = &entry;
  }
  return best;
}

}  // namespace

std::string Renamed(std::string_view message, const FieldNames& names) {
  std::string out;
  out.reserve(message.size());
  for (size_t i = 0; i < message.size();) {
    const bool begins = IsNamePart(message[i]) && (i == 0 || !IsInValue(message[i - 1]));
    const auto* const entry = begins ? Find(message.substr(i), names) : nullptr;
    if (entry == nullptr) {
      out += message[i++];
      continue;
    }
    out += entry->second;
    i += entry->first.size();
    // The rest of a longer name stays as it is.
    while (i < message.size() && IsNamePart(message[i])) out += message[i++];
  }
  return out;
}

absl::Status WithNames(const absl::Status& status, const FieldNames& names) {
  if (status.ok()) return status;
  absl::Status renamed(status.code(), Renamed(Message(status), names));
  status.ForEachPayload([&renamed](absl::string_view url, const absl::Cord& payload) {
    renamed.SetPayload(url, payload);
  });
  return renamed;
}

}  // namespace quire
