// What is measured is what the system says this CPU has. How fast it is, is not looked at.
#include "kernels/profile/machine_peaks.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "kernels/profile/peak_loops.h"

namespace quire::kernels {
namespace {

// Flags of the first CPU in /proc/cpuinfo.
std::string CpuFlags() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("flags")) return line.substr(line.find(':') + 1) + " ";
  }
  return " ";
}

TEST(MachinePeaks, UnitsAreThoseThatTheSystemNames) {
  const std::map<std::string, std::vector<std::string>> needs = {
      {"portable", {}},
      {"avx2 fma", {"avx2", "fma"}},
      {"avx512 fma", {"avx512f"}},
      {"avx512 vdpbf16ps", {"avx512_bf16"}},
      {"amx tdpbf16ps", {"amx_bf16"}},
      {"avx vpdpbusd", {"avx_vnni"}},
      {"avx512 vpdpbusd", {"avx512_vnni"}},
      {"amx tdpbssd", {"amx_int8"}}};
  const std::string flags = CpuFlags();
  const std::vector<MathPeak> peaks = MeasureMath(2, 0.002);
  for (const MathPeak& peak : peaks) {
    const auto row = needs.find(std::string(peak.unit));
    ASSERT_NE(row, needs.end()) << peak.unit;
    bool wanted = true;
    for (const std::string& flag : row->second) {
      wanted = wanted && flags.find(" " + flag + " ") != std::string::npos;
    }
    EXPECT_EQ(peak.available, wanted) << peak.unit;
    EXPECT_EQ(peak.gops_per_thread > 0, wanted) << peak.unit;
  }
  EXPECT_GT(BestGops(peaks, MathType::kF32, 2), 0);
}

TEST(MachinePeaks, TheFastestUnitOfATypeIsItsPeak) {
  const std::vector<MathPeak> peaks = {
      {.type = MathType::kF32, .available = true, .gops_per_thread = 3},
      {.type = MathType::kF32, .available = true, .gops_per_thread = 2},
      {.type = MathType::kI8, .available = false}};
  EXPECT_EQ(BestGops(peaks, MathType::kF32, 4), 12);
  EXPECT_EQ(BestGops(peaks, MathType::kI8, 4), 0);
  EXPECT_EQ(BestGops(peaks, MathType::kBF16, 4), 0);
}

TEST(MachinePeaks, ReadsAnySizeWithAnyThreads) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{300'000}, size_t{3} << 20}) {
    for (const int32_t threads : {1, 3}) {
      EXPECT_GT(MeasureRead(bytes, threads, 0.001), 0) << bytes << " " << threads;
    }
  }
}

}  // namespace
}  // namespace quire::kernels
