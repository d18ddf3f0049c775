// The attention backends by name, and what all of them check.
#include <string>
#include <vector>

#include "kernels/attention_common.h"

namespace quire::kernels {
namespace {

// Added to at start-up only.
std::vector<const AttentionBackend*>& Backends() {
  static std::vector<const AttentionBackend*> backends = {&kFlashAttention, &kEagerAttention};
  return backends;
}

}  // namespace

absl::Status CheckAttentionShape(const AttentionShape& s, int32_t page_size) {
  if (page_size != 8 && page_size != 16 && page_size != 32 && page_size != 64 && page_size != 128) {
    return InvalidArgument("block_size={} must be one of 8, 16, 32, 64, 128", page_size);
  }
  if (s.num_heads <= 0 || s.num_kv_heads <= 0 || s.num_heads % s.num_kv_heads != 0) {
    return InvalidArgument("num_heads={} must be a positive multiple of num_kv_heads={}",
                           s.num_heads, s.num_kv_heads);
  }
  if (s.head_dim <= 0 || s.head_dim_v <= 0) {
    return InvalidArgument("head_dim={}, head_dim_v={} must be positive", s.head_dim, s.head_dim_v);
  }
  if (s.window < 0 || s.chunk < 0 || (s.window > 0 && s.chunk > 0)) {
    return InvalidArgument("window={} and chunk={} must not be negative, nor both be set", s.window,
                           s.chunk);
  }
  if (s.kv_dtype != DType::kF32 && s.kv_dtype != DType::kBF16 && s.kv_dtype != DType::kF16) {
    return Error(absl::StatusCode::kUnimplemented, "kv_dtype={} must be one of F32, BF16, F16",
                 NameOf(s.kv_dtype));
  }
  if (s.dot != DType::kF32 && (s.dot != DType::kBF16 || s.kv_dtype != DType::kBF16)) {
    return Error(absl::StatusCode::kUnimplemented,
                 "dot={} must be F32, or BF16 with a cache of BF16 (kv_dtype={})", NameOf(s.dot),
                 NameOf(s.kv_dtype));
  }
  return absl::OkStatus();
}

absl::Status CheckFloat32Shape(const AttentionShape& s, int32_t page_size) {
  RETURN_IF_ERROR(CheckAttentionShape(s, page_size));
  if (s.dot == DType::kF32) return absl::OkStatus();
  return Error(absl::StatusCode::kUnimplemented, "dot={} must be F32; flash offers BF16",
               NameOf(s.dot));
}

std::span<const AttentionBackend* const> AttentionBackends() { return Backends(); }

void AddAttention(const AttentionBackend& backend) { Backends().push_back(&backend); }

absl::StatusOr<const AttentionBackend*> FindAttention(std::string_view name) {
  std::string_view bare = name;
  if (bare.starts_with("paged|")) bare.remove_prefix(6);
  std::string names;
  for (const AttentionBackend* b : Backends()) {
    if (b->name == bare) return b;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", b->name);
  }
  return InvalidArgument("attention={} must be one of {} (with or without the prefix paged|)", name,
                         names);
}

}  // namespace quire::kernels
