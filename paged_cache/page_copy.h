// paged_cache/page_copy.h -- one page to copy before a step writes.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace quire {

// One page of pool `pool` to copy before the step writes (copy-on-write). A list of them is run in
// its order, one after the other: a page may be a target first and a source or target again later.
struct PageCopy {
  int32_t pool = 0;
  PageId src = 0;
  PageId dst = 0;
};

}  // namespace quire
