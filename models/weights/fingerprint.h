// models/weights/fingerprint.h -- a name for a checkpoint's weights that follows from their bytes.
#pragma once

#include <string>

#include "models/weights/weight_source.h"

namespace quire {

// 32 hex digits of XXH3-128 over names, types, shapes and bytes of all tensors, in the order of
// their names. Reads all of them: some seconds for tens of gigabytes.
std::string WeightsFingerprint(const WeightSource& weights);

}  // namespace quire
