#include "base/cpu_topology.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "base/memory_info.h"

namespace quire {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string Counted(int32_t n, const char* noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

bool Contains(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

std::vector<int32_t> AllowedCpus() {
  std::vector<int32_t> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

CpuTopology ReadCpuTopology(std::span<const int32_t> allowed, const std::string& root) {
  const std::string dir = root + "/sys/devices/system/cpu";
  CpuTopology t;
  t.cpus.assign(allowed.begin(), allowed.end());
  std::vector<int32_t> online = ParseNodeList(FirstLine(dir + "/online"));
  if (online.empty()) online = t.cpus;
  std::set<int32_t> sockets, usable_cores;
  std::map<int32_t, int32_t> core_threads;  // by the core's first CPU
  for (const int32_t cpu : online) {
    const std::string topology = fmt::format("{}/cpu{}/topology", dir, cpu);
    const std::vector<int32_t> socket =
        ParseNodeList(FirstLine(topology + "/physical_package_id"));  // -1 on some machines
    sockets.insert(socket.empty() ? 0 : socket[0]);
    const std::vector<int32_t> siblings =
        ParseNodeList(FirstLine(topology + "/thread_siblings_list"));
    const int32_t core = Contains(siblings, cpu) ? siblings[0] : cpu;
    ++core_threads[core];
    if (Contains(t.cpus, cpu)) usable_cores.insert(core);
  }
  const auto count = [](const auto& set) {
    return std::max<int32_t>(1, static_cast<int32_t>(set.size()));
  };
  t.sockets = count(sockets);
  t.cores = count(core_threads);
  t.usable_cores = count(usable_cores);
  for (const auto& [core, threads] : core_threads) {
    t.threads_per_core = std::max(t.threads_per_core, threads);
  }
  const std::string nodes = root + "/sys/devices/system/node";
  int32_t with_cpus = 0;
  for (const int32_t node : ParseNodeList(FirstLine(nodes + "/online"))) {
    const std::vector<int32_t> cpus =
        ParseNodeList(FirstLine(fmt::format("{}/node{}/cpulist", nodes, node)));
    with_cpus += cpus.empty() ? 0 : 1;
    const auto usable = [&](int32_t cpu) { return Contains(t.cpus, cpu); };
    if (std::any_of(cpus.begin(), cpus.end(), usable)) t.nodes.push_back(node);
  }
  t.numa_nodes = std::max(1, with_cpus);
  if (t.nodes.empty()) t.nodes.push_back(0);
  return t;
}

std::string FormatIdList(std::span<const int32_t> ids) {
  std::string text;
  for (size_t i = 0; i < ids.size();) {
    size_t last = i;
    while (last + 1 < ids.size() && ids[last + 1] == ids[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", ids[i]);
    if (last > i) text += fmt::format("-{}", ids[last]);
    i = last + 1;
  }
  return text;
}

std::string Describe(const CpuTopology& t) {
  return fmt::format("{}, {}, {} per core, {}", Counted(t.sockets, "socket"),
                     Counted(t.cores, "core"), Counted(t.threads_per_core, "thread"),
                     Counted(t.numa_nodes, "NUMA node"));
}

std::string DescribePool(const CpuTopology& t, int32_t pool_threads) {
  return fmt::format("{} on CPU{} {} ({}, NUMA node{} {})", Counted(pool_threads, "thread"),
                     t.cpus.size() == 1 ? "" : "s", FormatIdList(t.cpus),
                     Counted(t.usable_cores, "core"), t.nodes.size() == 1 ? "" : "s",
                     FormatIdList(t.nodes));
}

}  // namespace quire
