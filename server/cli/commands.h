// server/cli/commands.h -- the subcommands of `quire`. Each adds itself to the parser and runs
// after parsing; the result is the exit code: 0, 1 (it failed) or 2 (wrong usage or configuration).
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace quire {

inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

struct Subcommand {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

Subcommand MakeServe(CLI::App& parent);     // the daemon
Subcommand MakeGenerate(CLI::App& parent);  // one prompt, answered on standard output
Subcommand MakeBench(CLI::App& parent);     // load and figures
Subcommand MakeKernels(CLI::App& parent);   // what this build and this CPU have
Subcommand MakePlan(CLI::App& parent);      // what models take and what fits, from configs alone
Subcommand MakeKey(CLI::App& parent);       // an API key and its entry
Subcommand MakeSimulate(CLI::App& parent);  // a load against the scheduler on a virtual clock
Subcommand MakeAdmin(CLI::App& parent);     // looks into a running daemon, and acts on its cache

// Prints "quire: error: <message>" and returns `code`.
int Fail(int code, const char* message);

}  // namespace quire
