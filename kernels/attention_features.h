// kernels/attention_features.h -- what an attention backend can do, found by asking it: its
// `supports` is the only claim there is. For `quire kernels`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/attention.h"

namespace quire::kernels {

struct AttentionFeatures {
  std::vector<DType> kv_dtypes;
  std::vector<int32_t> page_sizes;
  std::vector<int32_t> head_dims;  // of those that models have
  bool all_head_dims = false;      // of these
  bool any_ratio = false;          // of query heads to kv heads: 1, 3, 4, 8, 64
  bool latent_dims = false;        // keys wider than values: 192/128 and 576/512
  bool window = false;
  bool chunk = false;
  bool bidirectional = false;
  bool softcap = false;
};

AttentionFeatures FeaturesOf(const AttentionBackend& backend);
// "cache F32 BF16 F16; head_dim any; pages 8-128; window, chunk, ..."
std::string Describe(const AttentionFeatures& features);

}  // namespace quire::kernels
