#include "kernels/compute_type.h"

namespace quire::kernels {
namespace {

constexpr ComputeType kAll[] = {ComputeType::kAuto, ComputeType::kF32, ComputeType::kBF16};

}  // namespace

std::string_view NameOf(ComputeType type) {
  switch (type) {
    case ComputeType::kAuto:
      return "auto";
    case ComputeType::kF32:
      return "float32";
    case ComputeType::kBF16:
      return "bf16";
  }
  return "?";
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
