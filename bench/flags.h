// bench/flags.h -- the arguments of a program below bench/: --name=value, --name for a switch, and
// what is left in order.
//
// Called by their main functions, once. Depends on base/ only. Daemon and clients have CLI11; these
// programs link as little as they can, so that kernels are measured after a short build.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"

namespace quire {

class Flags {
 public:
  // Variables outlive Parse and keep their value unless the argument is there. `help`: a line.
  void Add(const std::string& name, bool* value, const std::string& help);
  void Add(const std::string& name, std::string* value, const std::string& help);
  void Add(const std::string& name, std::vector<std::string>* value, const std::string& help);
  void Add(const std::string& name, int32_t* value, int32_t least, int32_t most,
           const std::string& help);
  // "1,2,4"; at least one.
  void Add(const std::string& name, std::vector<int32_t>* value, int32_t least, int32_t most,
           const std::string& help);
  void Add(const std::string& name, double* value, double least, double most,
           const std::string& help);
  // Any other form; `parse` says what is wrong with a text.
  void Add(const std::string& name, std::function<absl::Status(const std::string&)> parse,
           const std::string& help);

  // What is no flag goes to `rest`, at most max_rest of it.
  // ERRORS: kInvalidArgument naming an unknown or repeated flag, a missing or superfluous value, a
  // value out of range, or the first argument too many.
  absl::Status Parse(const std::vector<std::string>& arguments, std::vector<std::string>& rest,
                     size_t max_rest) const;

  // A line for each.
  std::string Help() const;

 private:
  struct Flag {
    std::string name, help;
    bool is_switch = false;
    std::function<absl::Status(const std::string&)> parse;
  };
  std::vector<Flag> flags_;
};

// The whole of main's start: prints help for --help (exit code 0) and what is wrong (2), and ends
// the program then. usage: "linear_bench [flags]".
std::vector<std::string> ParseOrExit(const Flags& flags, const std::string& usage, int argc,
                                     char** argv, size_t max_rest = 0);

// "a,b" gives {"a", "b"}; "" none.
std::vector<std::string> SplitCommas(const std::string& text);

// ERRORS: kInvalidArgument naming `field`: not a number, or out of range.
absl::StatusOr<int32_t> ParseInt(const std::string& field, const std::string& text, int32_t least,
                                 int32_t most);

}  // namespace quire
