// models/weights/weight_source.h -- named tensors of a checkpoint, whatever the file format.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace quire {

// Owns the mappings; views stay valid while it lives. All offsets and shapes were checked against
// the file sizes when it was opened. Shapes are [outer, ..., inner] (GGUF's order is reversed).
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual std::optional<TensorView> Find(const std::string& name) const = 0;
  virtual std::vector<std::string> Names() const = 0;
  // Total bytes of tensor data.
  virtual size_t bytes() const = 0;
  // "model.gguf" or "model-00001-of-00002.safetensors": for errors about this tensor.
  virtual std::string FileOf(const std::string& name) const = 0;
  // Why a tensor that is in the files cannot be used ("dtype F8_E4M3 ..."); "" if Find gives it or
  // if it is nowhere. Formats may list such tensors: nobody may ask for them.
  virtual std::string WhyUnusable(const std::string& name) const {
    (void)name;
    return {};
  }
  // Tells the OS that the mapped pages are not needed any more.
  virtual void DropPages() const = 0;
};

}  // namespace quire
