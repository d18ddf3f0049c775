// tests/support/edited_model.h -- reference checkpoints with another configuration: keys of
// config.json replaced or taken out, and layers repeated.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "tests/support/golden_file.h"
#include "tests/weight_files.h"

namespace quire {

// Keys with their JSON text; "" takes a key out.
using ConfigEdits = std::map<std::string, std::string>;

inline std::string EditedConfig(const std::string& text, const ConfigEdits& edits) {
  const auto json = Json::Parse(text);
  CHECK(json.ok(), "{}", json.status().ToString());
  std::map<std::string, std::string> keys;
  for (const std::string& key : json->keys()) keys[key] = (*json)[key].Dump();
  for (const auto& [key, value] : edits) keys[key] = value;
  JsonWriter out;
  out.BeginObject();
  for (const auto& [key, value] : keys) {
    if (value.empty()) continue;
    out.Key(key);
    out.Raw(value);
  }
  out.EndObject();
  return out.text();
}

// The tensors of a .safetensors file of F32, with layer i of `num_layers` made from layer i modulo
// the number of layers there.
inline std::string RepeatedLayers(const std::string& path, int32_t num_layers) {
  const GoldenFile file(path);
  const auto prefix = [](int32_t i) { return fmt::format("model.layers.{}.", i); };
  const auto begins = [](const std::string& name, const std::string& with) {
    return name.rfind(with, 0) == 0;
  };
  std::map<std::string, const GoldenTensor*> tensors;
  const std::vector<std::string> names = file.Names();
  int32_t there = 0;
  for (const std::string& name : names) {
    if (!begins(name, "model.layers.")) tensors[name] = &file.Get(name);
    if (name == prefix(there) + "mlp.up_proj.weight") ++there;  // names are sorted
  }
  CHECK(there > 0 && there <= 10, "{} layers in {}", there, path);
  for (int32_t i = 0; i < num_layers; ++i) {
    const std::string from = prefix(i % there);
    for (const std::string& name : names) {
      if (begins(name, from)) tensors[prefix(i) + name.substr(from.size())] = &file.Get(name);
    }
  }
  std::string header = "{";
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    std::string shape;
    for (const int64_t n : tensor->shape) shape += fmt::format("{}{}", shape.empty() ? "" : ",", n);
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          header == "{" ? "" : ",", name, tensor->dtype, shape, data.size(),
                          data.size() + tensor->bytes.size());
    data.append(tensor->bytes.begin(), tensor->bytes.end());
  }
  return Safetensors(header + "}", data);
}

// A directory `<name>-<label>` that lives as long as the process: test parameters name it.
inline std::string EditedModel(const std::string& name, const std::string& label,
                               const ConfigEdits& edits, int32_t num_layers = 0) {
  static TempDir root;
  const std::string from = ReferencePath("models/" + name);
  const std::string to = root.File(name + "-" + label);
  if (!std::filesystem::create_directory(to)) return to;  // made before
  ConfigEdits all = edits;
  if (num_layers > 0) all["num_hidden_layers"] = std::to_string(num_layers);
  WriteBytes(to + "/config.json", EditedConfig(ReadBytes(from + "/config.json"), all));
  WriteBytes(to + "/model.safetensors",
             num_layers > 0 ? RepeatedLayers(from + "/model.safetensors", num_layers)
                            : ReadBytes(from + "/model.safetensors"));
  return to;
}

}  // namespace quire
