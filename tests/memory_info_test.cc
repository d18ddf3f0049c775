// tests/memory_info_test.cc -- what a process may use: made-up /proc and /sys trees, and devices
// that say what they are told to.
#include "base/memory_info.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/device_memory.h"

namespace quire {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

class FakeRoot {
 public:
  FakeRoot() : path_(testing::TempDir() + "/quire_root_" + std::to_string(getpid())) {
    std::filesystem::remove_all(path_);
    Write("/proc/meminfo", "MemTotal:       8388608 kB\nMemAvailable:   4194304 kB\n");
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  void Write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path_ + file).parent_path());
    std::ofstream(path_ + file) << text;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(MemoryInfo, WithoutCgroupTheMachineRules) {
  const FakeRoot root;
  const MemoryInfo info = ReadMemoryInfo(root.path());
  EXPECT_EQ(info.limit, int64_t{8} << 30);
  EXPECT_EQ(info.available, int64_t{4} << 30);
}

// HARD-CASES L01: the container's limit rules, a parent's smaller one too.
TEST(MemoryInfo, TheSmallestLimitOfTheCgroupChainRules) {
  const FakeRoot root;
  root.Write("/proc/self/cgroup", "0::/parent/child\n");
  root.Write("/sys/fs/cgroup/parent/child/memory.max", "max\n");
  root.Write("/sys/fs/cgroup/parent/memory.max", "2147483648\n");
  root.Write("/sys/fs/cgroup/parent/memory.current", "1073741824\n");
  root.Write("/sys/fs/cgroup/parent/memory.stat", "anon 1\ninactive_file 536870912\n");
  const MemoryInfo info = ReadMemoryInfo(root.path());
  EXPECT_EQ(info.limit, int64_t{2} << 30);
  EXPECT_EQ(info.available, (int64_t{2} << 30) - (int64_t{1} << 29));
  EXPECT_NE(info.limit_source.find("parent/memory.max"), std::string::npos);
}

TEST(MemoryInfo, CgroupV1) {
  const FakeRoot root;
  root.Write("/proc/self/cgroup", "12:cpu,cpuacct:/x\n9:memory:/job\n");
  root.Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "2147483648\n");
  const MemoryInfo info = ReadMemoryInfo(root.path());
  EXPECT_EQ(info.limit, int64_t{1} << 30);
  EXPECT_EQ(info.available, 0);  // over its limit: never negative
}

// Two nodes of 4 GiB; the first has 1 GiB free and 1 GiB of file cache, the second 3 GiB free.
void WriteNodes(const FakeRoot& root) {
  const std::string dir = "/sys/devices/system/node/";
  root.Write(dir + "online", "0-1\n");
  root.Write(dir + "node0/meminfo",
             "Node 0 MemTotal:       4194304 kB\nNode 0 MemFree:        1048576 kB\n"
             "Node 0 Inactive(file):  786432 kB\nNode 0 SReclaimable:   262144 kB\n");
  root.Write(dir + "node1/meminfo",
             "Node 1 MemTotal:       4194304 kB\nNode 1 MemFree:        3145728 kB\n");
}

TEST(MemoryInfo, OneNumaNodeOfTwoIsTheLimit) {
  const FakeRoot root;
  WriteNodes(root);
  root.Write("/proc/self/status", "Name:\tquire\nMems_allowed:\t1\nMems_allowed_list:\t0\n");
  const MemoryInfo info = ReadMemoryInfo(root.path());
  EXPECT_EQ(info.limit, 4 * kGiB);
  EXPECT_EQ(info.limit_source, "NUMA node 0 of 2");
  EXPECT_EQ(info.available, 2 * kGiB);
  EXPECT_EQ(info.available_source, "NUMA node 0 of 2");
  EXPECT_EQ(info.others, 2 * kGiB);
}

TEST(MemoryInfo, AllNodesAreNoLimit) {
  const FakeRoot root;
  WriteNodes(root);
  root.Write("/proc/self/status", "Mems_allowed_list:\t0-1\n");
  const MemoryInfo info = ReadMemoryInfo(root.path());
  EXPECT_EQ(info.limit, 8 * kGiB);
  EXPECT_EQ(info.available, 4 * kGiB);
  EXPECT_EQ(info.available_source, "/proc/meminfo MemAvailable");
}

// HARD-CASES L01: a cpuset may leave one node, in either version of cgroups.
TEST(MemoryInfo, CpusetsLeaveTheirNodes) {
  for (const bool v2 : {true, false}) {
    const FakeRoot root;
    WriteNodes(root);
    root.Write("/proc/self/status", "Mems_allowed_list:\t0-1\n");
    if (v2) {
      root.Write("/proc/self/cgroup", "0::/job\n");
      root.Write("/sys/fs/cgroup/job/cpuset.mems.effective", "1\n");
    } else {
      root.Write("/proc/self/cgroup", "4:cpuset:/job\n");
      root.Write("/sys/fs/cgroup/cpuset/job/cpuset.mems", "1\n");
    }
    const MemoryInfo info = ReadMemoryInfo(root.path());
    EXPECT_EQ(info.limit, 4 * kGiB) << v2;
    EXPECT_EQ(info.limit_source, "NUMA node 1 of 2");
    EXPECT_EQ(info.available, 3 * kGiB);
  }
}

// The smallest rules, whoever sets it: a small container on a node, on a machine with a neighbour.
TEST(MemoryInfo, LimitAndAvailableMayHaveDifferentSources) {
  const FakeRoot root;
  WriteNodes(root);
  root.Write("/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 524288 kB\n");
  root.Write("/proc/self/status", "Mems_allowed_list:\t0\n");
  root.Write("/proc/self/cgroup", "0::/job\n");
  root.Write("/sys/fs/cgroup/job/memory.max", "1073741824\n");
  root.Write("/sys/fs/cgroup/job/memory.current", "104857600\n");
  const MemoryInfo info = ReadMemoryInfo(root.path());
  EXPECT_EQ(info.limit, kGiB);
  EXPECT_EQ(info.limit_source, "/sys/fs/cgroup/job/memory.max");
  EXPECT_EQ(info.available, kGiB / 2);
  EXPECT_EQ(info.available_source, "/proc/meminfo MemAvailable");
  EXPECT_EQ(info.others, kGiB / 2);
}

TEST(MemoryInfo, ThisProcessIsReadable) {
  const MemoryInfo info = ReadMemoryInfo();
  EXPECT_GT(info.rss, 0);
  EXPECT_GT(info.limit, info.rss);
  EXPECT_GE(info.others, 0);
  EXPECT_LE(info.available, info.limit);
}

TEST(MemoryInfo, NodeLists) {
  EXPECT_EQ(ParseNodeList("0-1,3\n"), (std::vector<int32_t>{0, 1, 3}));
  EXPECT_EQ(ParseNodeList("7"), (std::vector<int32_t>{7}));
  for (const char* text : {"", "\n", "x", "-1", "4096", "99999999999999999999"}) {
    EXPECT_TRUE(ParseNodeList(text).empty()) << text;
  }
  EXPECT_EQ(ParseNodeList("0,2-1"), (std::vector<int32_t>{0}));
  EXPECT_EQ(ParseNodeList("0,2-99999"), (std::vector<int32_t>{0}));
}

TEST(DeviceMemory, ADeviceTellsTotalAndFree) {
  DeviceOps ops{.name = "made up"};
  EXPECT_EQ(MemoryOfDevice(ops).status().code(), absl::StatusCode::kUnimplemented);
  ops.memory = [](size_t* free, size_t* total) -> const char* {
    *free = size_t{5} << 30;
    *total = size_t{24} << 30;
    return nullptr;
  };
  const auto memory = MemoryOfDevice(ops);
  ASSERT_TRUE(memory.ok());
  const auto info = (*memory)->Read();
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->limit, 24 * kGiB);
  EXPECT_EQ(info->available, 5 * kGiB);
  EXPECT_EQ(info->others, 19 * kGiB);
  EXPECT_EQ(info->limit_source, "device made up");
  ops.memory = [](size_t*, size_t*) -> const char* { return "lost"; };
  const auto lost = (*MemoryOfDevice(ops))->Read();
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(Message(lost.status()).find("lost"), std::string::npos);
}

TEST(DeviceMemory, TheHostIsADevice) {
  const FakeRoot root;
  const auto info = HostMemory(root.path())->Read();
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->limit, 8 * kGiB);
  EXPECT_TRUE(MemoryOf(DeviceKind::kCpu).ok());
  EXPECT_EQ(MemoryOf(DeviceKind::kCuda).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace quire
