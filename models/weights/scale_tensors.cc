#include "models/weights/scale_tensors.h"

namespace quire {
namespace {

// Below `self_attn` (or the like): "kv_scale" of older files, the pair of newer ones, either of
// them inside the attention or its projections; "output_scale" of a projection says the same. The
// scales of queries and weights go with a cache of fp8 and mean nothing without it.
constexpr std::string_view kCacheScales[] = {
    ".kv_scale",     ".k_scale",        ".v_scale", ".k_proj.output_scale", ".v_proj.output_scale",
    ".attn.q_scale", ".attn.prob_scale"};

}  // namespace

bool IsScaleTensor(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return last.ends_with("scale") || last.ends_with("scale_inv");
}

bool IsCacheScale(std::string_view name) {
  if (name.find("attn.") == std::string_view::npos) return false;
  for (const std::string_view end : kCacheScales) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

}  // namespace quire
