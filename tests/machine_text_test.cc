// The head of a report, of a made-up machine.
#include "kernels/profile/machine_text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "kernels/cpu_isa.h"

namespace quire::kernels {
namespace {

namespace fs = std::filesystem;

class MachineText : public ::testing::Test {
 protected:
  ~MachineText() override { fs::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) const {
    const fs::path file = root_ / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const fs::path root_ = fs::path(::testing::TempDir()) / "machine_text_test";
};

TEST_F(MachineText, TwoThreadsOfACoreAreOneCore) {
  Write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nflags\t\t: fpu\n");
  Write("proc/loadavg", "1.25 0.50 0.10 1/100 4242\n");
  Write("proc/meminfo", "MemTotal:        8388608 kB\nMemAvailable:    4194304 kB\n");
  Write("sys/devices/system/cpu/online", "0-3\n");
  for (int cpu = 0; cpu < 4; ++cpu) {
    const std::string folder = "sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    Write(folder + "thread_siblings_list", cpu % 2 == 0 ? "0,2\n" : "1,3\n");
    Write(folder + "physical_package_id", "0\n");
  }
  const MachineInfo info = ReadMachineInfo(root_.string());
  EXPECT_EQ(info.cpu, "Some CPU @ 3 GHz");
  EXPECT_EQ(info.topology, "1 socket, 2 cores, 2 threads per core, 1 NUMA node");
  EXPECT_EQ(info.memory, "8.0 GiB");
  EXPECT_EQ(info.load, 1.25);
  EXPECT_EQ(info.isa, NameOf(ActiveIsa()));
  EXPECT_NE(info.build.find("quire "), std::string::npos);

  const std::string text = quire::kernels::MachineText(info);
  for (const std::string& part : {info.cpu, info.topology, info.caches, info.memory, info.build,
                                  info.system, std::string("load 1.25")}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
  JsonWriter w;
  WriteMachine(info, w);
  const auto json = Json::Parse(w.text());
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ((*json)["cpu"].as_string(), info.cpu);
  EXPECT_EQ((*json)["topology"].as_string(), info.topology);
  EXPECT_EQ((*json)["load"].as_double(), 1.25);
}

TEST_F(MachineText, WhatTheSystemDoesNotTellIsUnknown) {
  fs::create_directories(root_);
  const MachineInfo info = ReadMachineInfo(root_.string());
  EXPECT_EQ(info.cpu, "unknown");
  EXPECT_EQ(info.load, 0);
}

}  // namespace
}  // namespace quire::kernels
