// models/weights/scale_tensors.h -- tensors of a checkpoint that scale other numbers.
//
// Two kinds. Calibrated scales of a KV cache (one for a layer's keys, one for its values, or one
// for both) under any of the names that tools give them: not used, since an int8 cache takes scales
// of its own from each token's keys and values. All others belong to weights or activations: a
// model that leaves one out computes nonsense, so one that nobody binds is refused.
#pragma once

#include <string_view>

namespace quire {

// By the last part of its name: "scale", "weight_scale", "weight_scale_inv", "k_scale" ...
bool IsScaleTensor(std::string_view name);
bool IsCacheScale(std::string_view name);

}  // namespace quire
