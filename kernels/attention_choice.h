// kernels/attention_choice.h -- the value of --attention: one kernel, or one for each kind of
// layer.
//
//   flash
//   full=flash,sliding=eager      kinds that are not named take the default, flash
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "kernels/attention.h"

namespace quire::kernels {

inline constexpr std::string_view kDefaultAttention = "flash";

struct AttentionChoice {
  const AttentionBackend* full = nullptr;     // layers that see all keys
  const AttentionBackend* sliding = nullptr;  // layers with a window

  // As --attention has it: a name alone if both are the same.
  std::string ToString() const;
};

// ERRORS: kInvalidArgument naming the part that is wrong and what would be right.
absl::StatusOr<AttentionChoice> ParseAttention(std::string_view text);

// OK if the backend can do it. ERRORS: its own, followed by the names of those that can.
absl::Status CheckSupport(const AttentionBackend& backend, const AttentionShape& shape,
                          int32_t page_size);

}  // namespace quire::kernels
