// models/weights/gguf_types.h -- the numbers that GGUF files use for types of values and tensors.
//
// Source: the GGUF specification (ggml's docs/gguf.md) and the enum of PyPI's gguf 0.19.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/dtype.h"

namespace quire {

enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// Nullopt for a number that the format does not define.
std::optional<GgufType> GgufTypeFromNumber(uint32_t number);
std::string_view NameOf(GgufType type);
// Bytes of one value; 0 for strings and arrays, whose length is in the file.
size_t FixedSize(GgufType type);

// "Q4_K", "IQ4_NL", "MXFP4"...; "type 99" for a number that nobody defined.
std::string GgmlTypeName(uint32_t number);
// Nullopt for types that we do not compute with, known by name or not.
std::optional<DType> DTypeFromGgml(uint32_t number);
// "F32, F16, ...": the names for which DTypeFromGgml gives a type.
std::string SupportedGgmlTypes();

}  // namespace quire
