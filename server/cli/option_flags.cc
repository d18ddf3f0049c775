#include "server/cli/option_flags.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "server/config_sources.h"

namespace quire {

void OptionFlags::Add(CLI::App& app, std::vector<std::string> more) {
  app_ = &app;
  more_ = std::move(more);
  app.allow_extras();
  app.add_option("--config", config_, "a YAML file of the options below [QUIRE_CONFIG]")
      ->type_name("path");
  const ServerOptions defaults;
  ServerOptions::VisitFields(defaults, [&](const OptionInfo& info, const auto&) {
    Flag& flag = flags_.emplace_back();
    flag.name = std::string(info.name);
    std::string flags = FlagOf(info.name);
    if (!info.alias.empty()) flags += "," + FlagOf(info.alias);
    const std::string initial = ValueOf(defaults, info.name);
    std::string range;
    if (!info.choices.empty()) range = fmt::format("; {}", info.choices);
    const std::string help = fmt::format("{} [{}{}; YAML {}, {}]", info.help,
                                         initial.empty() ? "no default" : "default " + initial,
                                         range, info.name, VariableOf(info.name));
    flag.option = app.add_option(flags, flag.value, help)->type_name(std::string(info.unit));
    if (IsBoolOption(info.name)) {
      flag.option->expected(0, 1);
      flag.negation = app.add_flag("--no-" + FlagOf(info.name).substr(2))->group("");
    }
  });
}

absl::StatusOr<std::vector<Setting>> OptionFlags::Settings() const {
  const std::vector<std::string> unknown = app_->remaining();
  if (!unknown.empty()) {
    std::vector<std::string> known = {"--config", "--help"};
    known.insert(known.end(), more_.begin(), more_.end());
    for (const std::string& name : OptionNames()) known.push_back(FlagOf(name));
    const std::string flag = unknown[0].substr(0, unknown[0].find('='));
    return InvalidArgument("{} is not a known option; did you mean {}?", unknown[0],
                           Nearest(flag, known));
  }
  std::vector<Setting> settings;
  for (const Flag& flag : flags_) {
    const bool negated = flag.negation != nullptr && flag.negation->count() > 0;
    if (negated) settings.push_back({flag.name, "false", "--no-" + FlagOf(flag.name).substr(2)});
    if (flag.option->count() == 0) continue;
    std::string value = flag.value;
    if (flag.negation != nullptr && value.empty()) value = "true";
    settings.push_back({flag.name, value, FlagOf(flag.name)});
  }
  return settings;
}

absl::StatusOr<ServerOptions> OptionFlags::Load() const {
  ASSIGN_OR_RETURN(const std::vector<Setting> settings, Settings());
  return LoadOptions(settings, config_, Environment());
}

}  // namespace quire
