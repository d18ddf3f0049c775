#include "kernels/attention_choice.h"

namespace quire::kernels {

std::string AttentionChoice::ToString() const {
  if (full == sliding) return std::string(full->name);
  return fmt::format("full={},sliding={}", full->name, sliding->name);
}

absl::StatusOr<AttentionChoice> ParseAttention(std::string_view text) {
  AttentionChoice choice;
  if (text.find('=') == std::string_view::npos) {
    ASSIGN_OR_RETURN(choice.full, FindAttention(text));
    choice.sliding = choice.full;
    return choice;
  }
  for (std::string_view rest = text; !rest.empty();) {
    const size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
    const size_t equals = part.find('=');
    const std::string_view kind = part.substr(0, equals);
    const AttentionBackend** const out = kind == "full"      ? &choice.full
                                         : kind == "sliding" ? &choice.sliding
                                                             : nullptr;
    if (out == nullptr || equals == std::string_view::npos) {
      return InvalidArgument(
          "attention={} must name kernels by kind of layer, full=<name>,sliding=<name>, not \"{}\"",
          text, part);
    }
    if (*out != nullptr) return InvalidArgument("attention={} names {} twice", text, kind);
    ASSIGN_OR_RETURN(*out, FindAttention(part.substr(equals + 1)));
  }
  ASSIGN_OR_RETURN(const AttentionBackend* const other, FindAttention(kDefaultAttention));
  if (choice.full == nullptr) choice.full = other;
  if (choice.sliding == nullptr) choice.sliding = other;
  return choice;
}

absl::Status CheckSupport(const AttentionBackend& backend, const AttentionShape& shape,
                          int32_t page_size) {
  absl::Status own = backend.supports(shape, page_size);
  if (own.ok()) return own;
  std::string others;
  for (const AttentionBackend* b : AttentionBackends()) {
    if (b == &backend || !b->supports(shape, page_size).ok()) continue;
    others += fmt::format("{}{}", others.empty() ? "" : ", ", b->name);
  }
  if (others.empty()) return own;
  return Error(own.code(), "{}; attention={} would work", Message(own), others);
}

}  // namespace quire::kernels
