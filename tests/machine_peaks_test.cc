// What is measured is what the system says this CPU has. How fast it is, is not looked at.
#include "kernels/profile/machine_peaks.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <tuple>

#include "kernels/profile/peak_loops.h"
#include "kernels/profile/self_measure.h"

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

TEST(MachinePeaks, AKernelIsComparedWithAUnitThatItsIsaHas) {
  const std::vector<MathPeak> peaks = {
      {.type = MathType::kF32, .unit = "plain", .available = true, .gops_per_thread = 1},
      {.type = MathType::kF32,
       .unit = "fma",
       .isa = CpuIsa::kAvx512,
       .available = true,
       .gops_per_thread = 8},
      {.type = MathType::kBF16,
       .unit = "dot",
       .isa = CpuIsa::kAvx512,
       .available = true,
       .gops_per_thread = 5},
      {.type = MathType::kBF16,
       .unit = "tiles",
       .isa = CpuIsa::kAmx,
       .available = true,
       .gops_per_thread = 99},
      {.type = MathType::kI8, .unit = "dot8", .isa = CpuIsa::kAvx512, .available = false}};
  const auto unit = [&](MathType type, CpuIsa isa) { return UnitInUse(peaks, type, isa)->unit; };
  EXPECT_EQ(unit(MathType::kBF16, CpuIsa::kAmx), "tiles");
  EXPECT_EQ(unit(MathType::kBF16, CpuIsa::kAvx512), "dot");
  EXPECT_EQ(unit(MathType::kBF16, CpuIsa::kAvx2), "plain");  // no such unit: float32's
  EXPECT_EQ(unit(MathType::kI8, CpuIsa::kAmx), "fma");       // this CPU lacks it
  EXPECT_EQ(unit(MathType::kF32, CpuIsa::kPortable), "plain");
  EXPECT_EQ(UnitInUse({}, MathType::kF32, CpuIsa::kAmx), nullptr);
}

TEST(SelfMeasure, LinearLayersOfEachComputeType) {
  ThreadPool pool(2);
  MachinePeaks peaks{.num_threads = 2, .memory_gb_s = 10};
  peaks.math = MeasureMath(2, 0.002);
  for (const auto& [format, compute, type] :
       {std::tuple{DType::kF32, ComputeType::kF32, MathType::kF32},
        {DType::kBF16, ComputeType::kBF16, MathType::kBF16},
        {DType::kQ4_1, ComputeType::kI8, MathType::kI8}}) {
    const LinearRates rates = MeasureLinear(format, compute, peaks, pool);
    EXPECT_GT(rates.decode_gb_s, 0) << NameOf(compute);
    EXPECT_DOUBLE_EQ(rates.decode_share, rates.decode_gb_s / 10);
    EXPECT_GT(rates.prefill_gflop_s, 0) << NameOf(compute);
    EXPECT_EQ(rates.prefill_unit, UnitInUse(peaks.math, type, ActiveIsa())->unit);
    EXPECT_NEAR(rates.prefill_share * 2 * UnitInUse(peaks.math, type, ActiveIsa())->gops_per_thread,
                rates.prefill_gflop_s, 1e-6 * rates.prefill_gflop_s);
  }
  // linear.h: bf16 rounds float32 and float16 to BF16, block types stay as they are.
  EXPECT_EQ(PackedType(DType::kF32, ComputeType::kF32, pool), DType::kF32);
  EXPECT_EQ(PackedType(DType::kF16, ComputeType::kBF16, pool), DType::kBF16);
  EXPECT_EQ(PackedType(DType::kQ4_1, ComputeType::kI8, pool), DType::kQ4_1);
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
