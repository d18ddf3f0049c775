// paged_cache/page_copy.h -- what happens to whole pages before a step writes anything.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace quire {

enum class PageOp : uint8_t {
  kCopy,  // page src -> page dst
  kSave,  // page src -> host slot dst
  kLoad,  // host slot src -> page dst
  kFill,  // BlockManager::fills()[src] -> page dst
};

// Run in their order: the books were kept in that order, so a source may be the target of an
// earlier one, and a page that was evicted is saved before its new owner's content arrives.
struct PageCopy {
  int32_t pool = 0;
  int32_t src = kNullPage;
  int32_t dst = kNullPage;
  PageOp op = PageOp::kCopy;
  friend bool operator==(const PageCopy&, const PageCopy&) = default;
};

}  // namespace quire
