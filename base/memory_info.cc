#include "base/memory_info.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace quire {
namespace {

// "max" and absurd values (v1 writes about 2^63 for "none") mean no limit.
std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text) || text == "max") return std::nullopt;
  char* end = nullptr;
  const uint64_t value = std::strtoull(text.c_str(), &end, 10);
  if (end == text.c_str() || value > (uint64_t{1} << 60)) return std::nullopt;
  return static_cast<int64_t>(value);
}

std::optional<int64_t> ReadField(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

void Apply(MemoryInfo& info, const std::string& source, int64_t limit, int64_t used) {
  if (limit < info.limit) {
    info.limit = limit;
    info.limit_source = source;
  }
  info.available = std::min(info.available, std::max<int64_t>(0, limit - used));
}

// One cgroup directory and its parents up to `mount`.
void ApplyTree(MemoryInfo& info, const std::string& root, const std::string& mount,
               std::string group, const char* limit_file, const char* usage_file,
               const char* cache_key) {
  while (true) {
    const std::string dir = mount + group;
    if (const std::optional<int64_t> limit = ReadNumber(root + dir + "/" + limit_file)) {
      const int64_t used = ReadNumber(root + dir + "/" + usage_file).value_or(0);
      const int64_t cache = ReadField(root + dir + "/memory.stat", cache_key).value_or(0);
      Apply(info, dir + "/" + limit_file, *limit, used - cache);
    }
    if (group.empty() || group == "/") return;
    group.resize(group.rfind('/'));
  }
}

}  // namespace

MemoryInfo ReadMemoryInfo(const std::string& root) {
  MemoryInfo info;
  const std::string meminfo = root + "/proc/meminfo";
  info.limit = ReadField(meminfo, "MemTotal:").value_or(0) * 1024;
  info.limit_source = "/proc/meminfo MemTotal";
  info.available = ReadField(meminfo, "MemAvailable:").value_or(0) * 1024;
  info.rss = root.empty() ? ResidentBytes() : 0;

  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    // "0::/path" (v2) or "9:memory:/path" (v1).
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      ApplyTree(info, root, "/sys/fs/cgroup", path, "memory.max", "memory.current",
                "inactive_file");
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      ApplyTree(info, root, "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes",
                "memory.usage_in_bytes", "total_inactive_file");
    }
  }
  return info;
}

int64_t ResidentBytes() { return ReadField("/proc/self/status", "VmRSS:").value_or(0) * 1024; }

}  // namespace quire
