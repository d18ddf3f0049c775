#include "kernels/compute_type.h"

#include "kernels/cpu_isa.h"

namespace quire::kernels {
namespace {

constexpr ComputeType kAll[] = {ComputeType::kAuto, ComputeType::kF32, ComputeType::kBF16,
                                ComputeType::kI8};

}  // namespace

std::string_view NameOf(ComputeType type) {
  switch (type) {
    case ComputeType::kAuto:
      return "auto";
    case ComputeType::kF32:
      return "float32";
    case ComputeType::kBF16:
      return "bf16";
    case ComputeType::kI8:
      return "int8";
  }
  return "?";
}

ComputeType ResolveCompute(ComputeType want, DType stored) {
  if (want != ComputeType::kAuto) return want;
  if (stored == DType::kF32 || stored == DType::kF16 || ActiveIsa() < CpuIsa::kAvx2) {
    return ComputeType::kF32;
  }
  if (stored != DType::kBF16) return ComputeType::kI8;
  // Without tiles bf16 costs what float32 does.
  return ActiveIsa() == CpuIsa::kAmx ? ComputeType::kBF16 : ComputeType::kF32;
}

absl::StatusOr<ComputeType> FindCompute(std::string_view name) {
  std::string names;
  for (const ComputeType type : kAll) {
    if (name == NameOf(type)) return type;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", NameOf(type));
  }
  return InvalidArgument("compute={} must be one of {}", name, names);
}

}  // namespace quire::kernels
