#include "models/weights/gguf_types.h"

#include <fmt/format.h>

namespace quire {
namespace {

struct GgmlType {
  uint32_t number;
  std::string_view name;
  std::optional<DType> dtype;
};

constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", DType::kF32},
    {1, "F16", DType::kF16},
    {30, "BF16", DType::kBF16},
    {2, "Q4_0", DType::kQ4_0},
    {3, "Q4_1", DType::kQ4_1},
    {6, "Q5_0", DType::kQ5_0},
    {7, "Q5_1", DType::kQ5_1},
    {8, "Q8_0", DType::kQ8_0},
    {12, "Q4_K", DType::kQ4_K},
    {13, "Q5_K", DType::kQ5_K},
    {14, "Q6_K", DType::kQ6_K},
    // Known by name only.
    {4, "Q4_2", {}},
    {5, "Q4_3", {}},
    {9, "Q8_1", {}},
    {10, "Q2_K", {}},
    {11, "Q3_K", {}},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", {}},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", {}},
    {24, "I8", {}},
    {25, "I16", {}},
    {26, "I32", {}},
    {27, "I64", {}},
    {28, "F64", {}},
    {29, "IQ1_M", {}},
    {31, "Q4_0_4_4", {}},
    {32, "Q4_0_4_8", {}},
    {33, "Q4_0_8_8", {}},
    {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},
    {36, "IQ4_NL_4_4", {}},
    {37, "IQ4_NL_4_8", {}},
    {38, "IQ4_NL_8_8", {}},
    {39, "MXFP4", {}},
    {40, "NVFP4", {}},
    {41, "Q1_0", {}},
};

const GgmlType* FindGgmlType(uint32_t number) {
  for (const GgmlType& t : kGgmlTypes) {
    if (t.number == number) return &t;
  }
  return nullptr;
}

}  // namespace

std::optional<GgufType> GgufTypeFromNumber(uint32_t number) {
  if (number > static_cast<uint32_t>(GgufType::kFloat64)) return std::nullopt;
  return static_cast<GgufType>(number);
}

std::string_view NameOf(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
      return "uint8";
    case GgufType::kInt8:
      return "int8";
    case GgufType::kUint16:
      return "uint16";
    case GgufType::kInt16:
      return "int16";
    case GgufType::kUint32:
      return "uint32";
    case GgufType::kInt32:
      return "int32";
    case GgufType::kFloat32:
      return "float32";
    case GgufType::kBool:
      return "bool";
    case GgufType::kString:
      return "string";
    case GgufType::kArray:
      return "array";
    case GgufType::kUint64:
      return "uint64";
    case GgufType::kInt64:
      return "int64";
    case GgufType::kFloat64:
      return "float64";
  }
  return "?";
}

size_t FixedSize(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

std::string GgmlTypeName(uint32_t number) {
  if (const GgmlType* t = FindGgmlType(number)) return std::string(t->name);
  return fmt::format("type {}", number);
}

std::optional<DType> DTypeFromGgml(uint32_t number) {
  const GgmlType* t = FindGgmlType(number);
  return t != nullptr ? t->dtype : std::nullopt;
}

std::string SupportedGgmlTypes() {
  std::string names;
  for (const GgmlType& t : kGgmlTypes) {
    if (t.dtype) names += fmt::format("{}{}", names.empty() ? "" : ", ", t.name);
  }
  return names;
}

}  // namespace quire
