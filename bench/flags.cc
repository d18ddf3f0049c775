#include "bench/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

namespace quire {

std::vector<std::string> SplitCommas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
    if (at == text.size()) parts.emplace_back();  // a comma at the end
  }
  return parts;
}

absl::StatusOr<int32_t> ParseInt(const std::string& field, const std::string& text, int32_t least,
                                 int32_t most) {
  int32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [ptr, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || ptr != end || value < least || value > most) {
    return InvalidArgument("{}={} must be a number from {} to {}", field, text, least, most);
  }
  return value;
}

void Flags::Add(const std::string& name, std::function<absl::Status(const std::string&)> parse,
                const std::string& help) {
  flags_.push_back({.name = name, .help = help, .parse = std::move(parse)});
}

void Flags::Add(const std::string& name, bool* value, const std::string& help) {
  Add(
      name,
      [value](const std::string&) {
        *value = true;
        return absl::OkStatus();
      },
      help);
  flags_.back().is_switch = true;
}

void Flags::Add(const std::string& name, std::string* value, const std::string& help) {
  Add(
      name,
      [value](const std::string& text) {
        *value = text;
        return absl::OkStatus();
      },
      help);
}

void Flags::Add(const std::string& name, std::vector<std::string>* value, const std::string& help) {
  Add(
      name,
      [value](const std::string& text) {
        *value = SplitCommas(text);
        return absl::OkStatus();
      },
      help);
}

void Flags::Add(const std::string& name, int32_t* value, int32_t least, int32_t most,
                const std::string& help) {
  Add(
      name,
      [=](const std::string& text) -> absl::Status {
        ASSIGN_OR_RETURN(*value, ParseInt(name, text, least, most));
        return absl::OkStatus();
      },
      help);
}

void Flags::Add(const std::string& name, std::vector<int32_t>* value, int32_t least, int32_t most,
                const std::string& help) {
  Add(
      name,
      [=](const std::string& text) -> absl::Status {
        std::vector<int32_t> numbers;
        for (const std::string& part : SplitCommas(text)) {
          ASSIGN_OR_RETURN(const int32_t number, ParseInt(name, part, least, most));
          numbers.push_back(number);
        }
        if (numbers.empty()) return InvalidArgument("{} must name at least one number", name);
        *value = std::move(numbers);
        return absl::OkStatus();
      },
      help);
}

void Flags::Add(const std::string& name, double* value, double least, double most,
                const std::string& help) {
  Add(
      name,
      [=](const std::string& text) -> absl::Status {
        double number = 0;
        const char* const end = text.data() + text.size();
        const auto [ptr, error] = std::from_chars(text.data(), end, number);
        if (error != std::errc() || ptr != end || !(number >= least && number <= most)) {
          return InvalidArgument("{}={} must be a number from {} to {}", name, text, least, most);
        }
        *value = number;
        return absl::OkStatus();
      },
      help);
}

absl::Status Flags::Parse(const std::vector<std::string>& arguments, std::vector<std::string>& rest,
                          size_t max_rest) const {
  std::set<std::string> seen;
  for (const std::string& argument : arguments) {
    if (!argument.starts_with("--")) {
      if (rest.size() == max_rest) return InvalidArgument("argument={} is one too many", argument);
      rest.push_back(argument);
      continue;
    }
    const size_t equals = std::min(argument.find('='), argument.size());
    const std::string name = argument.substr(2, equals - 2);
    const auto flag =
        std::find_if(flags_.begin(), flags_.end(), [&](const Flag& f) { return f.name == name; });
    if (flag == flags_.end()) {
      return InvalidArgument("argument={} is unknown; --help lists what there is", argument);
    }
    if (!seen.insert(name).second) return InvalidArgument("argument=--{} is there twice", name);
    const bool has_value = equals < argument.size();
    if (has_value == flag->is_switch) {
      return InvalidArgument("argument=--{} {}", name,
                             flag->is_switch ? "takes no value" : "needs a value, as --name=value");
    }
    RETURN_IF_ERROR(flag->parse(has_value ? argument.substr(equals + 1) : ""));
  }
  return absl::OkStatus();
}

std::string Flags::Help() const {
  std::string text;
  for (const Flag& flag : flags_) {
    text += fmt::format("  --{:<20}{}\n", flag.name + (flag.is_switch ? "" : "="), flag.help);
  }
  return text;
}

std::vector<std::string> ParseOrExit(const Flags& flags, const std::string& usage, int argc,
                                     char** argv, size_t max_rest) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
    std::printf("%s\n%s", usage.c_str(), flags.Help().c_str());
    std::exit(0);
  }
  std::vector<std::string> rest;
  const absl::Status status = flags.Parse(arguments, rest, max_rest);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n%s\n", Message(status).c_str(), usage.c_str());
    std::exit(2);
  }
  return rest;
}

}  // namespace quire
