// Everything is read from files that Linux has; what is missing is "unknown".
#include "kernels/profile/machine_text.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <fstream>

#include "base/cpu_topology.h"
#include "base/memory_info.h"
#include "kernels/cpu_isa.h"
#include "kernels/profile/machine_peaks.h"

namespace quire::kernels {
namespace {

std::string CpuName(const std::string& root) {
  std::ifstream file(root + "/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (line.starts_with("model name") && colon != std::string::npos) {
      const size_t at = line.find_first_not_of(' ', colon + 1);
      if (at != std::string::npos) return line.substr(at);
    }
  }
  return "unknown";
}

std::string Size(size_t bytes) {
  if (bytes == 0) return "unknown";
  const double kib = static_cast<double>(bytes) / 1024;
  return kib < 1024 ? fmt::format("{:g} KiB", kib) : fmt::format("{:g} MiB", kib / 1024);
}

std::string Compiler() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  return fmt::format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "unknown compiler";
#endif
}

#if defined(NDEBUG)
constexpr const char* kAsserts = "release";
#else
constexpr const char* kAsserts = "not a release build";
#endif

}  // namespace

MachineInfo ReadMachineInfo(const std::string& root) {
  MachineInfo info;
  info.cpu = CpuName(root);
  info.topology = Describe(ReadCpuTopology(AllowedCpus(), root));
  const CacheSizes caches = ReadCacheSizes();
  info.caches =
      fmt::format("L1d {}, L2 {}, L3 {}", Size(caches.l1), Size(caches.l2), Size(caches.l3));
  info.memory =
      fmt::format("{:.1f} GiB", static_cast<double>(ReadMemoryInfo(root).limit) / (1 << 30));
  info.isa = NameOf(ActiveIsa());
  utsname system{};
  info.system = ::uname(&system) == 0 ? fmt::format("{} {}", system.sysname, system.release)
                                      : std::string("unknown");
  info.build = fmt::format("quire {}, {}, {}", QUIRE_VERSION, Compiler(), kAsserts);
  std::ifstream(root + "/proc/loadavg") >> info.load;
  return info;
}

std::string MachineText(const MachineInfo& info) {
  return fmt::format("{}; {}\n{}; {} of memory; ISA {}\n{}; {}; load {:.2f}\n", info.cpu,
                     info.topology, info.caches, info.memory, info.isa, info.build, info.system,
                     info.load);
}

void WriteMachine(const MachineInfo& info, JsonWriter& w) {
  w.BeginObject();
  for (const auto& [key, value] : {std::pair<const char*, const std::string&>{"cpu", info.cpu},
                                   {"topology", info.topology},
                                   {"caches", info.caches},
                                   {"memory", info.memory},
                                   {"isa", info.isa},
                                   {"system", info.system},
                                   {"build", info.build}}) {
    w.Key(key);
    w.String(value);
  }
  w.Key("load");
  w.Double(info.load);
  w.EndObject();
}

}  // namespace quire::kernels
