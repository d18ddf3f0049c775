// server/admin/process_info.h -- what the kernel knows of this process.
#pragma once

#include "base/memory_info.h"  // ResidentBytes()

namespace quire {

// Seconds since the process was started, as the kernel counted; 0 where /proc can't be read.
double SecondsSinceStart();

}  // namespace quire
