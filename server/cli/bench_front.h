// server/cli/bench_front.h -- `quire bench front`: what a request and a streamed token cost the
// server's CPU outside the engine.
//
// The server tells its threads' CPU times (Admin.GetServerInfo): all of the process less those that
// compute. Two loads tell requests and tokens apart: many requests of one token each, and a few of
// many tokens, whose own costs as requests are taken off.
#pragma once

#include <cstdint>

#include "server/cli/client.h"

namespace quire {

class BenchFront {
 public:
  void AddOptions(CLI::App& app);
  int Run();

 private:
  ServerAddress address_;
  int32_t streams_ = 256;
  int32_t requests_ = 2000;
  int32_t prompt_bytes_ = 2048;
  int32_t new_tokens_ = 128;
  bool token_ids_ = false;
};

}  // namespace quire
