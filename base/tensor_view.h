// base/tensor_view.h -- a typed, shaped look at memory that somebody else owns.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/status.h"

namespace quire {

// Row-major, contiguous. shape[0] is the outermost dimension; unused trailing entries are absent
// (rank tells). For block types the innermost dimension counts values, not blocks.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int32_t rank = 0;
  std::array<int64_t, 4> shape{};

  int64_t num_elements() const {
    int64_t n = 1;
    for (int32_t i = 0; i < rank; ++i) n *= shape[static_cast<size_t>(i)];
    return n;
  }
  size_t num_bytes() const { return BytesFor(dtype, static_cast<size_t>(num_elements())); }
  // "[576, 1536] Q4_1"
  std::string ToString() const {
    std::string s = "[";
    for (int32_t i = 0; i < rank; ++i) {
      s += fmt::format("{}{}", i > 0 ? ", " : "", shape[static_cast<size_t>(i)]);
    }
    return s + fmt::format("] {}", NameOf(dtype));
  }
};

}  // namespace quire
