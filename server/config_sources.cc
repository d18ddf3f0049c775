// server/config_sources.cc -- see config_sources.h.
#include "server/config_sources.h"

#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <sstream>

namespace quire {
namespace {

// Read by the scripts in deploy/, by the tests and by the clients, not by the daemon.
constexpr std::array<std::string_view, 4> kOtherVariables = {"QUIRE_MODELS", "QUIRE_SMOLLM2",
                                                             "QUIRE_REFERENCE", "QUIRE_API_KEY"};
constexpr size_t kMaxConfigBytes = 1 << 20;

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

absl::StatusOr<std::string> ReadConfig(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return Error(absl::StatusCode::kNotFound, "{}: no such file (config)", path);
  }
  if (S_ISDIR(info.st_mode)) return InvalidArgument("{}: is a folder, not a config file", path);
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (!file.eof() && file.fail())) {
    return InvalidArgument("{}: can't be read (config)", path);
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxConfigBytes) {
    return InvalidArgument("{}: has more than {} bytes; is this a config file?", path,
                           kMaxConfigBytes);
  }
  return text;
}

// What YAML would let pass or report in words of its own.
absl::Status CheckBytes(const std::string& path, const std::string& text) {
  if (StartsWith(text, "\xef\xbb\xbf") || StartsWith(text, "\xff\xfe") ||
      StartsWith(text, "\xfe\xff")) {
    return InvalidArgument("{}:1: begins with a byte order mark; save it as plain UTF-8", path);
  }
  int32_t line = 1;
  for (const char c : text) {
    if (c == '\t') return InvalidArgument("{}:{}: has a tab; use spaces", path, line);
    if (c == '\0') return InvalidArgument("{}:{}: has a NUL byte", path, line);
    if (c == '\n') ++line;
  }
  return absl::OkStatus();
}

class YamlReader {
 public:
  explicit YamlReader(const std::string& path) : path_(path) {}

  absl::StatusOr<std::vector<Setting>> Read(const std::string& text) {
    try {
      const std::vector<YAML::Node> documents = YAML::LoadAll(text);
      if (documents.empty() || documents[0].IsNull()) {
        return InvalidArgument("{}:1: holds no settings", path_);
      }
      if (documents.size() > 1) return InvalidArgument("{}: holds more than one document", path_);
      RETURN_IF_ERROR(Walk(documents[0]));
    } catch (const YAML::Exception& e) {  // the library's border
      return InvalidArgument("{}:{}: {}", path_, e.mark.line + 1, e.msg);
    }
    return std::move(settings_);
  }

 private:
  std::string Where(const YAML::Node& node) const {
    return fmt::format("{}:{}", path_, node.Mark().line + 1);
  }

  absl::Status Walk(const YAML::Node& map) {
    if (!map.IsMap()) {
      return InvalidArgument("{}: is not a map of `key: value` lines", Where(map));
    }
    for (const auto& entry : map) {
      if (!entry.first.IsScalar())
        return InvalidArgument("{}: has a key that is not a name", Where(entry.first));
      RETURN_IF_ERROR(Add(entry.first, entry.second));
    }
    return absl::OkStatus();
  }

  absl::Status Add(const YAML::Node& key, const YAML::Node& value) {
    const std::string& name = key.Scalar();
    const std::string where = Where(key);
    if (value.IsMap()) {  // options are flat: name the first leaf by its full path
      std::string path = name;
      YAML::Node leaf = value;
      std::string last = name;
      std::string at = where;
      while (leaf.IsMap() && leaf.size() > 0) {
        const auto first = leaf.begin();
        if (!first->first.IsScalar()) break;
        last = first->first.Scalar();
        at = Where(first->first);
        path += "." + last;
        const YAML::Node next = first->second;
        leaf.reset(next);
      }
      return InvalidArgument("{}: {} is not a known option; did you mean {} (at the top level)?",
                             at, path, Nearest(last, OptionNames()));
    }
    if (!value.IsScalar()) {
      return InvalidArgument("{}: {} is {}, not a single value", where, name,
                             value.IsSequence() ? "a list" : "empty");
    }
    const auto [it, is_new] = lines_.emplace(name, key.Mark().line + 1);
    if (!is_new) {
      return InvalidArgument("{}: {} is set twice; first in line {}", where, name, it->second);
    }
    // The tag of a plain scalar is "?", that of a quoted one "!".
    settings_.push_back({name, value.Scalar(), where, value.Tag() == "!"});
    return absl::OkStatus();
  }

  const std::string& path_;
  std::vector<Setting> settings_;
  std::map<std::string, int> lines_;
};

bool IsFromKubernetes(std::string_view name, std::string_view value) {
  return StartsWith(name, "QUIRE_SERVICE_") || StartsWith(name, "QUIRE_PORT_") ||
         (name == "QUIRE_PORT" && StartsWith(value, "tcp://"));
}

// Name and alias of one option in one source.
absl::Status CheckTwice(const std::vector<Setting>& settings) {
  absl::Status status;
  const ServerOptions defaults;
  ServerOptions::VisitFields(defaults, [&](const OptionInfo& info, const auto&) {
    const Setting* seen = nullptr;
    for (const Setting& s : settings) {
      if (s.name != info.name && (info.alias.empty() || s.name != info.alias)) continue;
      if (seen != nullptr && status.ok()) {
        status = InvalidArgument("{}: {} is set twice; first as {} ({})", s.where, s.name,
                                 seen->name, seen->where);
      }
      seen = &s;
    }
  });
  return status;
}

}  // namespace

absl::StatusOr<std::vector<Setting>> SettingsFromYaml(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadConfig(path));
  RETURN_IF_ERROR(CheckBytes(path, text));
  ASSIGN_OR_RETURN(std::vector<Setting> settings, YamlReader(path).Read(text));
  return settings;
}

absl::StatusOr<std::vector<Setting>> SettingsFromEnvironment(
    const std::vector<std::string>& environment, std::string& config_path) {
  std::vector<std::string> known = {"QUIRE_CONFIG"};
  std::map<std::string, std::string> names;  // variable to option
  for (const std::string& name : OptionNames()) {
    known.push_back(VariableOf(name));
    names[known.back()] = name;
  }
  std::vector<Setting> settings;
  for (const std::string& line : environment) {
    const size_t equals = line.find('=');
    if (!StartsWith(line, "QUIRE_") || equals == std::string::npos) continue;
    const std::string variable = line.substr(0, equals);
    const std::string value = line.substr(equals + 1);
    if (IsFromKubernetes(variable, value) ||
        std::find(kOtherVariables.begin(), kOtherVariables.end(), variable) !=
            kOtherVariables.end()) {
      continue;
    }
    if (variable == "QUIRE_CONFIG") {
      config_path = value;
      continue;
    }
    const auto name = names.find(variable);
    if (name == names.end()) {
      return InvalidArgument("environment: {} is not a known option; did you mean {}?", variable,
                             Nearest(variable, known));
    }
    settings.push_back({name->second, value, variable, false});
  }
  return settings;
}

std::vector<std::string> Environment() {
  std::vector<std::string> lines;
  for (char** line = environ; line != nullptr && *line != nullptr; ++line)
    lines.emplace_back(*line);
  return lines;
}

absl::StatusOr<ServerOptions> LoadOptions(const std::vector<Setting>& flags,
                                          std::string config_path,
                                          const std::vector<std::string>& environment) {
  std::string config_of_environment;
  ASSIGN_OR_RETURN(const std::vector<Setting> variables,
                   SettingsFromEnvironment(environment, config_of_environment));
  if (config_path.empty()) config_path = config_of_environment;
  std::vector<Setting> yaml;
  if (!config_path.empty()) {
    ASSIGN_OR_RETURN(yaml, SettingsFromYaml(config_path));
  }
  ServerOptions options;
  for (const std::vector<Setting>* source :
       {static_cast<const std::vector<Setting>*>(&yaml), &variables, &flags}) {
    RETURN_IF_ERROR(CheckTwice(*source));
    for (const Setting& s : *source) RETURN_IF_ERROR(ApplySetting(s, options));
  }
  RETURN_IF_ERROR(Validate(options));
  return options;
}

}  // namespace quire
