// models/weights/safetensors.h -- safetensors checkpoints: one file, or a directory with
// model.safetensors, or with shards named by model.safetensors.index.json.
//
// Opened at load time by OpenWeights; read-only afterwards and safe to read from any thread.
// Every file is untrusted; but for unknown dtypes we are at least as strict as the reference
// library:
// - The header is at most 100 MB, starts with '{' (trailing spaces are allowed, leading ones not)
// and
//   holds, for each tensor, dtype, shape and data_offsets as integers; shape x dtype must be
//   exactly the range, and the ranges must cover the rest of the file without gap or overlap.
// - A key given twice counts once, the last one wins, as in the reference; since the first one's
//   bytes are then a gap, the file is usually refused.
// - A dtype or rank that we cannot use matters only when the tensor is needed (WhyUnusable).
//
// Shards: the index rules. Other *.safetensors files beside it are ignored and listed by
// ignored_files(); a tensor that a shard holds but the index does not name is unusable. File names
// in the index must be plain names (no separator, "..", drive or control character). Symbolic
// links: a weight file may be a link if its real path lies in the model's directory, or, in a hub
// cache (<repo>/snapshots/<revision>), in <repo>/blobs. Others are refused before they are opened,
// as an index could otherwise read any file of the machine. Source: the format's README in
// huggingface/safetensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "models/weights/weight_source.h"

namespace quire {

inline constexpr char kSafetensorsFile[] = "model.safetensors";
inline constexpr char kSafetensorsIndex[] = "model.safetensors.index.json";

class SafetensorsSource final : public WeightSource {
 public:
  // ERRORS of both: kNotFound (a file is missing: all of them are listed), kPermissionDenied,
  // kInvalidArgument with file, tensor, byte offset, value and limit.
  static absl::StatusOr<std::unique_ptr<SafetensorsSource>> OpenFile(const std::string& path);
  static absl::StatusOr<std::unique_ptr<SafetensorsSource>> OpenDirectory(const std::string& dir);

  std::optional<TensorView> Find(const std::string& name) const override;
  std::vector<std::string> Names() const override { return names_; }
  size_t bytes() const override { return bytes_; }
  std::string FileOf(const std::string& name) const override;
  std::string WhyUnusable(const std::string& name) const override;
  void DropPages() const override;

  // Weight files of the directory that the index does not name.
  const std::vector<std::string>& ignored_files() const { return ignored_files_; }

 private:
  struct Tensor {
    TensorView view;
    size_t file;           // index into files_
    std::string unusable;  // empty: view is good
  };

  SafetensorsSource() = default;
  // Reads one file's header. Tensors are kept if `wanted` (the index's entries for this file) is
  // null or names them; the others become unusable.
  absl::Status AddFile(const std::string& path, const std::vector<std::string>* wanted);
  absl::Status ParseHeader(const Json& header, size_t file, size_t data_start,
                           std::unordered_map<std::string, Tensor>& tensors) const;
  absl::Status AddIndexedFiles(const std::string& dir, const Json& weight_map);
  void Finish();

  std::vector<MappedFile> files_;
  std::vector<std::string> file_names_;
  std::unordered_map<std::string, Tensor> tensors_;
  std::vector<std::string> names_;
  std::vector<std::string> ignored_files_;
  size_t bytes_ = 0;
};

}  // namespace quire
