// server/config_sources.h -- reads options from a YAML file and from the environment, strictly.
//
// A misspelt key, a wrong type, a key twice or a tab is a refusal with file, line and key, never a
// silent default (the caller exits with code 2).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/options.h"

namespace quire {

// A flat map of scalars. ERRORS: kInvalidArgument, kNotFound; "<file>:<line>: <key path> ...".
absl::StatusOr<std::vector<Setting>> SettingsFromYaml(const std::string& path);

// QUIRE_* of `environment` ("NAME=value" each). `config_path` receives QUIRE_CONFIG.
// Left alone: what Kubernetes sets for a service called quire (QUIRE_PORT=tcp://...,
// QUIRE_SERVICE_HOST ...), and the variables of our scripts and tests (kOtherVariables).
absl::StatusOr<std::vector<Setting>> SettingsFromEnvironment(
    const std::vector<std::string>& environment, std::string& config_path);

// The environment of this process.
std::vector<std::string> Environment();

// All sources in order of precedence, checked one by one and together.
// flags: settings of the command line; config_path: --config, or empty.
absl::StatusOr<ServerOptions> LoadOptions(const std::vector<Setting>& flags,
                                          std::string config_path,
                                          const std::vector<std::string>& environment);

}  // namespace quire
