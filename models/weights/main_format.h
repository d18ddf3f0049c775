// models/weights/main_format.h -- one word for a checkpoint whose tensors have several types.
#pragma once

#include <string>

#include "models/weights/weight_source.h"

namespace quire {

// The type that most bytes have: "Q4_1". "?" without tensors.
std::string MainFormat(const WeightSource& weights);

}  // namespace quire
