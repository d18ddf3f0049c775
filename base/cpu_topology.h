// base/cpu_topology.h -- sockets, cores and NUMA nodes of the machine, and which of its logical
// CPUs this process may run on. Source: Linux's sysfs (Documentation/ABI/stable/sysfs-devices-cpu).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace quire {

struct CpuTopology {
  // Of all CPUs that are online.
  int32_t sockets = 1;
  int32_t cores = 1;
  int32_t threads_per_core = 1;  // the most of any core
  int32_t numa_nodes = 1;        // that have CPUs
  // Of this process.
  std::vector<int32_t> cpus;   // logical, ascending
  int32_t usable_cores = 1;    // physical, on which these are
  std::vector<int32_t> nodes;  // NUMA nodes, on which these are
};

// The logical CPUs of this process's affinity, ascending.
std::vector<int32_t> AllowedCpus();

// Files that are missing or say nothing sensible count as one socket, one core for each CPU and one
// node. `root` is prefixed to all paths: tests put a made-up tree there.
CpuTopology ReadCpuTopology(std::span<const int32_t> allowed, const std::string& root = "");

// Of the machine: "1 socket, 2 cores, 1 thread per core, 1 NUMA node".
std::string Describe(const CpuTopology& topology);
// Of a pool in this process: "2 threads on CPUs 0-1 (2 cores, NUMA node 0)".
std::string DescribePool(const CpuTopology& topology, int32_t pool_threads);

// {0, 1, 2, 5} gives "0-2,5". REQUIRES: ascending.
std::string FormatIdList(std::span<const int32_t> ids);

}  // namespace quire
