// server/admin/process_info.h -- what the kernel knows of this process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/memory_info.h"  // ResidentBytes()

namespace quire {

// Seconds since the process was started, as the kernel counted; 0 where /proc can't be read.
double SecondsSinceStart();

// CPU time of all threads of one name.
struct ThreadCpu {
  std::string name;
  int32_t threads = 0;
  double cpu_ms = 0;
};

// Of the threads that live now, by name. Source: /proc/PID/task/TID/{comm,schedstat}.
std::vector<ThreadCpu> ReadThreadCpu();

// Of the process, threads that have ended included.
double ProcessCpuMs();

}  // namespace quire
