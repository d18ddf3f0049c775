// tests/cpu_topology_test.cc -- made-up trees of sysfs: what a machine has, and what of it is ours.
#include "base/cpu_topology.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/thread_pool.h"

namespace quire {
namespace {

class FakeSysfs {
 public:
  FakeSysfs() : path_(testing::TempDir() + "/quire_sysfs_" + std::to_string(getpid())) {
    std::filesystem::remove_all(path_);
  }
  ~FakeSysfs() { std::filesystem::remove_all(path_); }
  void Write(const std::string& file, const std::string& text) const {
    const std::string name = path_ + "/sys/devices/system/" + file;
    std::filesystem::create_directories(std::filesystem::path(name).parent_path());
    std::ofstream(name) << text;
  }
  void AddCpu(int32_t cpu, const std::string& socket, const std::string& siblings) const {
    const std::string dir = "cpu/cpu" + std::to_string(cpu) + "/topology/";
    Write(dir + "physical_package_id", socket + "\n");
    Write(dir + "thread_siblings_list", siblings + "\n");
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

using Ids = std::vector<int32_t>;

// Two sockets of two cores of two threads; siblings are numbered half the CPUs apart.
FakeSysfs TwoSockets() {
  FakeSysfs sys;
  sys.Write("cpu/online", "0-7\n");
  for (int32_t cpu = 0; cpu < 8; ++cpu) {
    const int32_t core = cpu % 4;
    sys.AddCpu(cpu, std::to_string(core / 2),
               std::to_string(core) + "," + std::to_string(core + 4));
  }
  sys.Write("node/online", "0-1\n");
  sys.Write("node/node0/cpulist", "0-1,4-5\n");
  sys.Write("node/node1/cpulist", "2-3,6-7\n");
  return sys;
}

TEST(CpuTopology, SocketsCoresThreadsAndNodes) {
  const FakeSysfs sys = TwoSockets();
  const CpuTopology all = ReadCpuTopology(Ids{0, 1, 2, 3, 4, 5, 6, 7}, sys.path());
  EXPECT_EQ(all.sockets, 2);
  EXPECT_EQ(all.cores, 4);
  EXPECT_EQ(all.threads_per_core, 2);
  EXPECT_EQ(all.numa_nodes, 2);
  EXPECT_EQ(all.usable_cores, 4);
  EXPECT_EQ(all.nodes, (Ids{0, 1}));
  EXPECT_EQ(Describe(all), "2 sockets, 4 cores, 2 threads per core, 2 NUMA nodes");
  EXPECT_EQ(DescribePool(all, 4), "4 threads on CPUs 0-7 (4 cores, NUMA nodes 0-1)");
}

TEST(CpuTopology, OfAnAffinityOnlyItsCoresAndNodesAreOurs) {
  const FakeSysfs sys = TwoSockets();
  const CpuTopology two = ReadCpuTopology(Ids{3, 7}, sys.path());  // both threads of one core
  EXPECT_EQ(two.cores, 4);
  EXPECT_EQ(two.usable_cores, 1);
  EXPECT_EQ(two.nodes, (Ids{1}));
  EXPECT_EQ(Describe(two), "2 sockets, 4 cores, 2 threads per core, 2 NUMA nodes");
  EXPECT_EQ(DescribePool(two, 1), "1 thread on CPUs 3,7 (1 core, NUMA node 1)");
}

// A CPU that is offline has no topology, and its siblings have one thread fewer.
TEST(CpuTopology, OfflineCpusDoNotCount) {
  const FakeSysfs sys;
  sys.Write("cpu/online", "0,2\n");
  sys.AddCpu(0, "0", "0");
  sys.AddCpu(2, "0", "2-3");
  const CpuTopology t = ReadCpuTopology(Ids{0, 2}, sys.path());
  EXPECT_EQ(t.cores, 2);
  EXPECT_EQ(t.threads_per_core, 1);
  EXPECT_EQ(t.usable_cores, 2);
}

// Some virtual machines and boards give -1 for the socket, or no such files at all.
TEST(CpuTopology, WhatMakesNoSenseCountsAsOneSocketAndACoreForEachCpu) {
  const FakeSysfs nothing;
  const CpuTopology t = ReadCpuTopology(Ids{0, 1, 5}, nothing.path());
  EXPECT_EQ(t.sockets, 1);
  EXPECT_EQ(t.cores, 3);
  EXPECT_EQ(t.usable_cores, 3);
  EXPECT_EQ(t.numa_nodes, 1);
  EXPECT_EQ(t.nodes, (Ids{0}));

  const FakeSysfs odd;
  odd.Write("cpu/online", "0-3\n");
  odd.AddCpu(0, "-1", "0");
  odd.AddCpu(1, "-1", "99999999999999999999");
  odd.AddCpu(2, "18446744073709551617", "5-1");
  odd.AddCpu(3, "", "junk");
  odd.Write("node/online", "0-99999999\n");
  const CpuTopology u = ReadCpuTopology(Ids{0, 1, 2, 3}, odd.path());
  EXPECT_EQ(u.sockets, 1);
  EXPECT_EQ(u.cores, 4);
  EXPECT_EQ(u.threads_per_core, 1);
  EXPECT_EQ(u.nodes, (Ids{0}));
}

TEST(CpuTopology, NobodyAllowedIsStillOneCore) {
  const FakeSysfs sys = TwoSockets();
  const CpuTopology t = ReadCpuTopology({}, sys.path());
  EXPECT_EQ(t.usable_cores, 1);
  EXPECT_EQ(t.nodes, (Ids{0}));
}

TEST(CpuTopology, FormatIdList) {
  EXPECT_EQ(FormatIdList({}), "");
  EXPECT_EQ(FormatIdList(Ids{4}), "4");
  EXPECT_EQ(FormatIdList(Ids{0, 1}), "0-1");
  EXPECT_EQ(FormatIdList(Ids{0, 2, 3, 4, 9, 11, 12}), "0,2-4,9,11-12");
}

// Of this machine: the affinity is the kernel's, and no more cores than CPUs.
TEST(CpuTopology, ThisProcess) {
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  const std::vector<int32_t> cpus = AllowedCpus();
  EXPECT_EQ(static_cast<int>(cpus.size()), CPU_COUNT(&set));
  EXPECT_GE(NumPhysicalCores(), 1);
  EXPECT_LE(NumPhysicalCores(), CPU_COUNT(&set));
}

}  // namespace
}  // namespace quire
