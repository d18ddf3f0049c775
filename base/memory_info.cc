#include "base/memory_info.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "base/status.h"

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

// The number behind `key`, which comes after `skip` words of its line.
std::optional<int64_t> ReadField(const std::string& path, const std::string& key, int skip = 0) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    for (int i = 0; i < skip; ++i) words >> name;
    int64_t value = 0;
    if (words >> name >> value && name == key) return std::max<int64_t>(value, 0);
  }
  return std::nullopt;
}

void Apply(MemoryInfo& info, const std::string& source, int64_t limit, int64_t used) {
  if (limit < info.limit) {
    info.limit = limit;
    info.limit_source = source;
  }
  const int64_t available = std::max<int64_t>(0, limit - used);
  if (available < info.available) {
    info.available = available;
    info.available_source = source;
  }
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

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// A cgroup's list of nodes, if it has one that is not empty, cuts `nodes`.
void Intersect(std::vector<int32_t>& nodes, const std::string& path) {
  const std::vector<int32_t> allowed = ParseNodeList(FirstLine(path));
  if (allowed.empty()) return;
  nodes.erase(std::remove_if(nodes.begin(), nodes.end(),
                             [&](int32_t n) {
                               return std::find(allowed.begin(), allowed.end(), n) == allowed.end();
                             }),
              nodes.end());
}

struct Node {
  int32_t id = 0;
  int64_t total = 0;      // bytes
  int64_t available = 0;  // free, and file cache that can be dropped
};

// Nodes that have memory.
std::vector<Node> ReadNodes(const std::string& root) {
  const std::string dir = root + "/sys/devices/system/node";
  std::vector<Node> nodes;
  for (const int32_t id : ParseNodeList(FirstLine(dir + "/online"))) {
    const std::string meminfo = fmt::format("{}/node{}/meminfo", dir, id);
    // "Node 0 MemTotal:  8388608 kB"
    const auto field = [&](const char* key) {
      return ReadField(meminfo, key, 2).value_or(0) * 1024;
    };
    const Node node{id, field("MemTotal:"),
                    field("MemFree:") + field("Inactive(file):") + field("SReclaimable:")};
    if (node.total > 0) nodes.push_back(node);
  }
  return nodes;
}

// If this process may not allocate on every node, those it may are all it has.
void ApplyNodes(MemoryInfo& info, const std::string& root, std::vector<int32_t> allowed) {
  const std::vector<Node> nodes = ReadNodes(root);
  Node sum;
  std::string names;
  size_t count = 0;
  for (const Node& node : nodes) {
    if (std::find(allowed.begin(), allowed.end(), node.id) == allowed.end()) continue;
    sum.total += node.total;
    sum.available += node.available;
    names += fmt::format("{}{}", names.empty() ? "" : ",", node.id);
    ++count;
  }
  if (count == 0 || count == nodes.size()) return;
  Apply(info, fmt::format("NUMA node {} of {}", names, nodes.size()), sum.total,
        sum.total - sum.available);
}

}  // namespace

MemoryInfo ReadMemoryInfo(const std::string& root) {
  MemoryInfo info;
  const std::string meminfo = root + "/proc/meminfo";
  info.limit = ReadField(meminfo, "MemTotal:").value_or(0) * 1024;
  info.limit_source = "/proc/meminfo MemTotal";
  info.available = ReadField(meminfo, "MemAvailable:").value_or(0) * 1024;
  info.available_source = "/proc/meminfo MemAvailable";
  info.rss = root.empty() ? ResidentBytes() : 0;

  std::vector<int32_t> nodes;
  {
    std::ifstream status(root + "/proc/self/status");
    std::string word;
    while (status >> word) {
      if (word == "Mems_allowed_list:" && status >> word) nodes = ParseNodeList(word);
    }
  }
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
      Intersect(nodes, root + "/sys/fs/cgroup" + path + "/cpuset.mems.effective");
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      ApplyTree(info, root, "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes",
                "memory.usage_in_bytes", "total_inactive_file");
    }
    if (("," + controllers + ",").find(",cpuset,") != std::string::npos) {
      Intersect(nodes, root + "/sys/fs/cgroup/cpuset" + path + "/cpuset.mems");
    }
  }
  ApplyNodes(info, root, std::move(nodes));
  info.others = std::max<int64_t>(0, info.limit - info.available - info.rss);
  return info;
}

std::vector<int32_t> ParseNodeList(const std::string& text) {
  constexpr long kMostNodes = 4096;
  std::vector<int32_t> nodes;
  const char* at = text.c_str();
  while (true) {
    char* end = nullptr;
    const long first = std::strtol(at, &end, 10);
    if (end == at || first < 0 || first >= kMostNodes) return nodes;
    long last = first;
    if (*end == '-') {
      at = end + 1;
      last = std::strtol(at, &end, 10);
      if (end == at || last < first || last >= kMostNodes) return nodes;
    }
    for (long n = first; n <= last; ++n) nodes.push_back(static_cast<int32_t>(n));
    if (*end != ',') return nodes;
    at = end + 1;
  }
}

int64_t ResidentBytes() { return ReadField("/proc/self/status", "VmRSS:").value_or(0) * 1024; }

}  // namespace quire
