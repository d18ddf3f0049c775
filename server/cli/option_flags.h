// server/cli/option_flags.h -- the daemon's options as flags of a subcommand, with environment and
// YAML behind them. For `quire serve`, and for what loads a model as it would.
#pragma once

#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/options.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace quire {

// Lives as long as the parser, at one address.
class OptionFlags {
 public:
  // Adds --config and a flag for each option. `more`: other flags of the subcommand, which a
  // mistyped one may have meant.
  void Add(CLI::App& app, std::vector<std::string> more = {});
  // After parsing. ERRORS: kInvalidArgument, also for flags that nobody knows.
  absl::StatusOr<ServerOptions> Load() const;

 private:
  // The flags of one option, as CLI11 fills them.
  struct Flag {
    std::string name;
    std::string value;
    CLI::Option* option = nullptr;
    CLI::Option* negation = nullptr;  // --no-x of a bool
  };
  absl::StatusOr<std::vector<Setting>> Settings() const;

  CLI::App* app_ = nullptr;
  std::string config_;
  std::list<Flag> flags_;  // addresses stay
  std::vector<std::string> more_;
};

}  // namespace quire
