// kernels/profile/machine_text.h -- on what a figure was measured: CPU, cores, caches, memory, and
// the versions of what ran. The head of each report.
//
// Called by `quire kernels`, `quire bench ops` and the programs below bench/. Thread: any.
#pragma once

#include <string>

#include "base/json.h"

namespace quire::kernels {

struct MachineInfo {
  std::string cpu;       // as the system names it
  std::string topology;  // "1 socket, 2 cores, 1 thread per core, 1 NUMA node"
  std::string caches;    // "L1d 48 KiB, L2 2 MiB, L3 30 MiB"; of a core, L3 of all
  std::string memory;    // "23.5 GiB"
  std::string isa;       // the row in use
  std::string system;    // kernel and its release
  std::string build;     // "quire 0.1.0, gcc 12.2.0, NDEBUG"
  double load = 0;       // of the last minute, all processes: below 0.2 or so nobody disturbs
};

// `root` is prefixed to the paths below /proc and /sys: tests put a made-up tree there.
MachineInfo ReadMachineInfo(const std::string& root = "");

// Three lines, the last one ended.
std::string MachineText(const MachineInfo& info);
// An object.
void WriteMachine(const MachineInfo& info, JsonWriter& w);

}  // namespace quire::kernels
