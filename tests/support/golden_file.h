// tests/support/golden_file.h -- reads a golden .safetensors file of float32 / int32 tensors, with
// code that shares nothing with the loader under test.
#pragma once

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace quire {

struct GoldenTensor {
  std::vector<int64_t> shape;
  std::string dtype;  // "F32", "BF16" ...
  std::vector<char> bytes;
  std::vector<float> floats() const {
    CHECK(dtype == "F32", "golden tensor is {}", dtype);
    std::vector<float> out(bytes.size() / sizeof(float));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
};

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    CHECK(file.good(), "{}: missing golden file", path);
    const std::vector<char> all{std::istreambuf_iterator<char>(file), {}};
    uint64_t header = 0;
    CHECK(all.size() > 8, "{}: too short", path);
    std::memcpy(&header, all.data(), 8);
    CHECK(header <= all.size() - 8, "{}: header of {} bytes", path, header);
    const absl::StatusOr<Json> json = Json::Parse({all.data() + 8, static_cast<size_t>(header)});
    CHECK(json.ok(), "{}: {}", path, json.status().ToString());
    const char* data = all.data() + 8 + header;
    json->ForEach([&](std::string_view name, const Json& entry) {
      if (name == "__metadata__") return;
      GoldenTensor t;
      t.dtype = std::string(*entry["dtype"].as_string());
      const Json shape = entry["shape"];
      for (size_t i = 0; i < shape.size(); ++i) t.shape.push_back(*shape.at(i).as_int());
      const auto begin = static_cast<size_t>(*entry["data_offsets"].at(0).as_int());
      const auto end = static_cast<size_t>(*entry["data_offsets"].at(1).as_int());
      t.bytes.assign(data + begin, data + end);
      tensors_[std::string(name)] = std::move(t);
    });
  }

  bool Has(const std::string& name) const { return tensors_.count(name) > 0; }
  const GoldenTensor& Get(const std::string& name) const {
    const auto it = tensors_.find(name);
    CHECK(it != tensors_.end(), "no golden tensor {}", name);
    return it->second;
  }
  std::vector<float> Floats(const std::string& name) const { return Get(name).floats(); }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : tensors_) names.push_back(entry.first);
    return names;
  }

 private:
  std::map<std::string, GoldenTensor> tensors_;
};

inline Json ReadGoldenJson(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good(), "{}: missing golden file", path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  absl::StatusOr<Json> json = Json::Parse(text);
  CHECK(json.ok(), "{}: {}", path, json.status().ToString());
  return *json;
}

}  // namespace quire
