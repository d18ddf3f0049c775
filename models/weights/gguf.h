// models/weights/gguf.h -- a GGUF file (version 2 or 3, little endian): typed metadata and tensors.
//
// Opened at load time by OpenWeights; read-only afterwards and safe to read from any thread.
// Everything in the file is untrusted. Before Open returns, every length, count, offset and product
// of dimensions was checked against the file's size, nothing was allocated by a number from the
// file that the file's own size does not back, tensors neither overlap nor leave the file, and no
// name occurs twice. Arrays of arrays and split files are refused: no model needs them here. If the
// file shrinks while it is mapped, access raises SIGBUS (see base/mapped_file.h). Source: the GGUF
// specification, ggml's docs/gguf.md.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "models/weights/byte_reader.h"
#include "models/weights/gguf_types.h"
#include "models/weights/weight_source.h"

namespace quire {

class GgufFile final : public WeightSource {
 public:
  // ERRORS: kNotFound, kPermissionDenied; kInvalidArgument with file, field or tensor, byte offset,
  // value and limit ("truncated" with the size needed and the size found); kUnimplemented for a
  // version, byte order, tensor type or split file that we do not read.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);

  const std::string& file_name() const { return file_name_; }
  uint32_t version() const { return version_; }

  // Metadata keys in the file's order.
  std::vector<std::string> Keys() const { return keys_; }
  bool Has(const std::string& key) const { return values_.contains(key); }
  std::optional<GgufType> TypeOf(const std::string& key) const;
  // Nullopt if the key is absent or no array.
  std::optional<GgufType> ElementTypeOf(const std::string& key) const;
  // Elements of an array; 0 if the key is absent or no array.
  uint64_t ArraySize(const std::string& key) const;

  // Typed values. GetInt takes every integer type, GetFloat both float types; nothing else is
  // converted. ERRORS: kNotFound if the key is absent; kInvalidArgument with file, key, the type
  // found and the type wanted, or a value that int64 cannot hold.
  absl::StatusOr<int64_t> GetInt(const std::string& key) const;
  absl::StatusOr<double> GetFloat(const std::string& key) const;
  absl::StatusOr<bool> GetBool(const std::string& key) const;
  absl::StatusOr<std::string> GetString(const std::string& key) const;
  absl::StatusOr<std::vector<int64_t>> GetIntArray(const std::string& key) const;
  absl::StatusOr<std::vector<double>> GetFloatArray(const std::string& key) const;
  absl::StatusOr<std::vector<bool>> GetBoolArray(const std::string& key) const;
  absl::StatusOr<std::vector<std::string>> GetStringArray(const std::string& key) const;

  std::optional<TensorView> Find(const std::string& name) const override;
  std::vector<std::string> Names() const override { return tensor_names_; }
  size_t bytes() const override { return tensor_bytes_; }
  std::string FileOf(const std::string&) const override { return file_name_; }
  void DropPages() const override { file_.DropPages(); }

 private:
  // Where a value lies; it is decoded when somebody asks.
  struct Value {
    GgufType type;
    GgufType element_type;  // arrays only
    uint64_t count;         // arrays only
    size_t offset;          // of the first byte after type (and, for arrays, after the count)
  };
  struct Tensor {
    std::string name;
    TensorView view;
    uint64_t offset;  // from the start of the data section
    size_t info_at;   // byte offset of its description, for errors
  };

  GgufFile() = default;
  absl::Status Parse();
  absl::Status ParseValue(ByteReader& in, const std::string& key);
  absl::Status ParseTensorInfo(ByteReader& in, uint64_t index, std::vector<Tensor>& tensors) const;
  absl::Status PlaceTensors(std::vector<Tensor> tensors, size_t data_start);
  absl::StatusOr<uint32_t> Alignment() const;
  // The value if it has the type wanted.
  absl::StatusOr<Value> Expect(const std::string& key, std::string_view wanted, bool array,
                               bool (*accepts)(GgufType)) const;

  MappedFile file_;
  std::string file_name_;
  uint32_t version_ = 0;
  std::vector<std::string> keys_;
  std::unordered_map<std::string, Value> values_;
  std::vector<std::string> tensor_names_;
  std::unordered_map<std::string, TensorView> tensors_;
  size_t tensor_bytes_ = 0;
};

}  // namespace quire
