// base/types.h -- the few ids that every layer speaks of.
#pragma once

#include <cstdint>

namespace quire {

using TokenId = int32_t;
using PageId = int32_t;
using RequestId = uint64_t;

// Page 0 of every pool is never taken: it stands for "outside the window" in read tables.
inline constexpr PageId kNullPage = 0;

}  // namespace quire
