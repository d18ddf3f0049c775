// server/cli/bench_ops.h -- `quire bench ops`; see bench_ops.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/cli/option_flags.h"

namespace quire {

class BenchOps {
 public:
  void AddOptions(CLI::App& app);
  // After parsing. Returns the exit code. A trace holds the last workload's steps, up to 2^20
  // operations.
  int Run() const;

 private:
  OptionFlags flags_;
  std::vector<std::string> workloads_ = {"W1", "W2", "W3"};
  int32_t runs_ = 1;
  uint64_t seed_ = 1234;
  bool json_ = false;
};

}  // namespace quire
