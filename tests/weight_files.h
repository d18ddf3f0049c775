// tests/weight_files.h -- crafted weight files for the loader tests: raw bytes, temporary
// directories.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace quire {

inline std::string ReferencePath(const std::string& path) {
  return std::string(QUIRE_TEST_REFERENCE) + "/" + path;
}

inline std::string ReadBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  CHECK(in.good(), "{}", path);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

// A new file each time: some file systems flush to disk when an old one is cut and written again.
inline void WriteBytes(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  CHECK(out.good(), "{}", path);
}

// A directory of its own, removed at the end.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "quire-test-XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = std::filesystem::canonical(pattern).string();
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& bytes) const {
    WriteBytes(File(name), bytes);
    return File(name);
  }

 private:
  std::string path_;
};

// Little-endian bytes, appended.
class Bytes {
 public:
  template <typename T>
  Bytes& Put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    text_.append(raw, sizeof(T));
    return *this;
  }
  Bytes& U32(uint32_t v) { return Put(v); }
  Bytes& U64(uint64_t v) { return Put(v); }
  // As GGUF stores strings: length, bytes.
  Bytes& Str(const std::string& s) { return U64(s.size()).Raw(s); }
  Bytes& Raw(const std::string& s) {
    text_ += s;
    return *this;
  }
  Bytes& PadTo(size_t multiple) {
    text_.resize((text_.size() + multiple - 1) / multiple * multiple);
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// A GGUF file from its parts; counts default to the truth.
struct GgufParts {
  uint32_t version = 3;
  uint64_t num_tensors = 0;
  uint64_t num_entries = 0;
  Bytes entries;
  Bytes infos;
  std::string data;
  size_t alignment = 32;

  GgufParts& Entry(const std::string& key, uint32_t type, const std::string& value) {
    entries.Str(key).U32(type).Raw(value);
    ++num_entries;
    return *this;
  }
  // type 0 is F32; dims innermost first, as the file has them.
  GgufParts& Tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                    uint64_t offset) {
    infos.Str(name).U32(static_cast<uint32_t>(dims.size()));
    for (const uint64_t d : dims) infos.U64(d);
    infos.U32(type).U64(offset);
    ++num_tensors;
    return *this;
  }
  std::string Build() const {
    Bytes out;
    out.Raw("GGUF").U32(version).U64(num_tensors).U64(num_entries);
    out.Raw(entries.text()).Raw(infos.text());
    if (num_tensors > 0) out.PadTo(alignment);
    return out.Raw(data).text();
  }
};

// A safetensors file: header text and data.
inline std::string Safetensors(const std::string& header, const std::string& data) {
  return Bytes().U64(header.size()).Raw(header).Raw(data).text();
}

// Expects an error with this code, whose text has all of `parts`.
inline void ExpectRefused(const absl::Status& status, absl::StatusCode code,
                          const std::vector<std::string>& parts) {
  ASSERT_FALSE(status.ok()) << "expected an error with " << ::testing::PrintToString(parts);
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& part : parts) EXPECT_THAT(Message(status), ::testing::HasSubstr(part));
}

}  // namespace quire
