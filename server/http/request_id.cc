#include "server/http/request_id.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace quire {
namespace {

constexpr size_t kMaxBytes = 100;  // a prefix such as "chatcmpl-" still fits into the engine's 128

}  // namespace

bool IsRequestId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxBytes &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c <= '~'; });
}

std::string NewRequestId() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seeds{device(), device(), device(), device()};
    return std::mt19937_64(seeds);
  }();
  const uint64_t high = generator();
  return fmt::format("{:016x}{:016x}", high, generator());
}

}  // namespace quire
