// server/admin/process_info.h -- what the kernel knows of this process.
#pragma once

#include <cstdint>

namespace quire {

// Resident set, bytes; 0 where /proc can't be read.
int64_t ResidentBytes();

// Seconds since the process was started, as the kernel counted; 0 where /proc can't be read.
double SecondsSinceStart();

}  // namespace quire
