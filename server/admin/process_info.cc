#include "server/admin/process_info.h"

#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace quire {

double SecondsSinceStart() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  if (!std::getline(file, text)) return 0;
  // Field 22 is the start time in ticks since boot; the command in field 2 may hold spaces.
  const size_t end_of_command = text.rfind(')');
  if (end_of_command == std::string::npos) return 0;
  std::istringstream fields(text.substr(end_of_command + 1));
  std::string skipped;
  for (int i = 3; i < 22; ++i) fields >> skipped;
  double start_ticks = 0;
  if (!(fields >> start_ticks)) return 0;
  timespec now{};
  if (::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  const double since_boot =
      static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
  return since_boot - start_ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

std::vector<ThreadCpu> ReadThreadCpu() {
  std::map<std::string, ThreadCpu> by_name;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    ThreadCpu one;
    double ns = 0;
    std::ifstream comm(entry.path() / "comm"), stat(entry.path() / "schedstat");
    if (!std::getline(comm, one.name) || !(stat >> ns)) continue;  // it has just ended
    ThreadCpu& sum = by_name[one.name];
    sum.name = one.name;
    ++sum.threads;
    sum.cpu_ms += ns / 1e6;
  }
  std::vector<ThreadCpu> all;
  all.reserve(by_name.size());
  for (auto& [name, sum] : by_name) all.push_back(std::move(sum));
  return all;
}

double ProcessCpuMs() {
  timespec used{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) * 1e3 + static_cast<double>(used.tv_nsec) / 1e6;
}

}  // namespace quire
