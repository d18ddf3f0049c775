#include "kernels/attention_features.h"

#include <algorithm>

namespace quire::kernels {
namespace {

constexpr int32_t kHeadDims[] = {16, 32, 40, 48, 64, 72, 80, 96, 100, 112, 128, 160, 192, 256, 512};
constexpr int32_t kPageSizes[] = {8, 16, 32, 64, 128};
constexpr int32_t kRatios[] = {1, 3, 4, 8, 64};
constexpr DType kKvTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kI8};

AttentionShape Plain() {
  return {
      .num_heads = 4, .num_kv_heads = 4, .head_dim = 64, .head_dim_v = 64, .softmax_scale = 0.125f};
}

template <typename Change>
bool Can(const AttentionBackend& backend, const Change& change, int32_t page_size = 16) {
  AttentionShape shape = Plain();
  change(shape);
  return backend.supports(shape, page_size).ok();
}

std::string Join(const std::vector<int32_t>& numbers) {
  std::string text;
  for (const int32_t n : numbers) text += fmt::format("{}{}", text.empty() ? "" : " ", n);
  return text.empty() ? "none" : text;
}

}  // namespace

AttentionFeatures FeaturesOf(const AttentionBackend& backend) {
  AttentionFeatures f;
  for (const DType type : kKvTypes) {
    if (Can(backend, [type](AttentionShape& s) { s.kv_dtype = type; })) f.kv_dtypes.push_back(type);
  }
  for (const int32_t size : kPageSizes) {
    if (Can(
            backend, [](AttentionShape&) {}, size))
      f.page_sizes.push_back(size);
  }
  f.all_head_dims = true;
  for (const int32_t dim : kHeadDims) {
    const bool can = Can(backend, [dim](AttentionShape& s) { s.head_dim = s.head_dim_v = dim; });
    if (can) f.head_dims.push_back(dim);
    f.all_head_dims = f.all_head_dims && can;
  }
  f.any_ratio = std::all_of(std::begin(kRatios), std::end(kRatios), [&](int32_t ratio) {
    return Can(backend, [ratio](AttentionShape& s) {
      s.num_heads = 2 * ratio;
      s.num_kv_heads = 2;
    });
  });
  const auto latent = [&](int32_t keys, int32_t values) {
    return Can(backend, [keys, values](AttentionShape& s) {
      s.head_dim = keys;
      s.head_dim_v = values;
    });
  };
  f.latent_dims = latent(192, 128) && latent(576, 512);
  f.window = Can(backend, [](AttentionShape& s) { s.window = 100; });
  f.chunk = Can(backend, [](AttentionShape& s) { s.chunk = 100; });
  f.bidirectional = Can(backend, [](AttentionShape& s) { s.bidirectional = true; });
  f.softcap = Can(backend, [](AttentionShape& s) { s.logit_softcap = 50.0f; });
  return f;
}

std::string Describe(const AttentionFeatures& f) {
  std::string types;
  for (const DType type : f.kv_dtypes) types += fmt::format(" {}", NameOf(type));
  std::string masks = "causal";
  for (const auto& [name, has] : {std::pair<const char*, bool>{"window", f.window},
                                  {"chunk", f.chunk},
                                  {"bidirectional", f.bidirectional}}) {
    if (has) masks += fmt::format(", {}", name);
  }
  return fmt::format(
      "cache{}; head_dim {}{}; {} heads per kv head; pages of {}; masks {}; soft-cap {}",
      types.empty() ? " none" : types, f.all_head_dims ? "any" : Join(f.head_dims),
      f.latent_dims ? ", 192/128 and 576/512" : "", f.any_ratio ? "any number of" : "some",
      Join(f.page_sizes), masks, f.softcap ? "yes" : "no");
}

}  // namespace quire::kernels
