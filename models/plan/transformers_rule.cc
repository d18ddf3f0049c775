#include "models/plan/transformers_rule.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace quire {
namespace {

// m M + n N + c (M N + M^2)
struct Footprint {
  int64_t m = 0;
  int64_t n = 0;
  int64_t c = 0;

  int64_t At(int64_t tokens, int64_t slots) const {
    return SaturatingSum({SaturatingProduct({m, tokens}), SaturatingProduct({n, slots}),
                          SaturatingProduct({c, tokens, slots}),
                          SaturatingProduct({c, tokens, tokens})});
  }
};

std::vector<Footprint> Peaks(const TransformersInputs& in) {
  const int64_t a = in.element_bytes;
  const int64_t p = in.num_kv_heads * in.head_dim;
  const int64_t io = in.async_batching ? 2 : 1;
  const int64_t rows = in.logprobs ? 2 : 1;
  const int64_t m =
      io * (28 + 4 * rows + 4 * in.num_groups * in.max_blocks_per_request + 16 * in.num_groups);
  const int64_t n = 2 * in.group_size * p * a + 8 * io * in.num_groups;
  const int64_t c = io * in.num_masks * a;
  return {{m + in.hidden_dim * a + 4 * in.vocab_size, n, c},
          {m + a * (in.hidden_dim + in.num_heads * in.head_dim + 2 * p), n + 2 * p * a, c}};
}

// Largest root of a x^2 + b x = budget, rounded down; negative if there is none.
double Root(double a, double b, double budget) {
  if (a == 0) return b == 0 ? -1 : std::trunc(budget / b);
  const double discriminant = b * b + 4 * a * budget;
  return discriminant < 0 ? -1 : std::floor((-b + std::sqrt(discriminant)) / (2 * a));
}

int64_t Whole(double x) {
  return static_cast<int64_t>(std::clamp(x, -1.0, static_cast<double>(kTooLarge)));
}

struct Solution {
  int64_t tokens = kTooLarge;
  int64_t blocks = kTooLarge;
};

// Whichever of M and N is not given, for both peaks; the smaller ones.
Solution Solve(const TransformersInputs& in, int64_t tokens, int64_t blocks) {
  const auto budget = static_cast<double>(in.available_memory);
  Solution best;
  for (const Footprint& f : Peaks(in)) {
    const auto m = static_cast<double>(f.m);
    const auto n = static_cast<double>(f.n);
    const auto c = static_cast<double>(f.c);
    Solution s{tokens, blocks};
    if (tokens == 0 && blocks == 0) {  // a batch that fills a tenth of the cache
      constexpr double kFill = 0.1;
      const double slots = Root(c * kFill + c * kFill * kFill, n + m * kFill, budget);
      s.tokens = Whole(std::trunc(slots * kFill));
      s.blocks = Whole(slots) / in.block_size;
    } else if (blocks == 0) {
      const auto t = static_cast<double>(tokens);
      const double slots = std::floor((budget - m * t - c * t * t) / (n + c * t));
      s.blocks = slots < 0 ? -1 : Whole(slots) / in.block_size;
    } else if (tokens == 0) {
      const double slots = static_cast<double>(blocks * in.block_size);
      s.tokens = Whole(Root(c, m + c * slots, budget - n * slots));
    }
    best.tokens = std::min(best.tokens, s.tokens);
    best.blocks = std::min(best.blocks, s.blocks);
  }
  return best;
}

}  // namespace

absl::StatusOr<TransformersPlan> PlanByTransformers(const TransformersInputs& in) {
  Solution s{in.max_batch_tokens, in.num_blocks};
  if (s.tokens == 0 && s.blocks == 0) {
    constexpr int64_t kDefaultTokens = 8192;
    constexpr int64_t kFewestTokens = 256;
    const Solution both = Solve(in, 0, 0);
    s.tokens = std::max(std::min(kDefaultTokens, both.tokens), kFewestTokens);
  }
  if (s.tokens == 0 || s.blocks == 0) s = Solve(in, s.tokens, s.blocks);
  TransformersPlan plan{s.tokens, s.blocks, 0};
  if (s.tokens > 0 && s.blocks > 0) {
    for (const Footprint& f : Peaks(in)) {
      plan.footprint =
          std::max(plan.footprint, f.At(s.tokens, SaturatingProduct({s.blocks, in.block_size})));
    }
  }
  if (s.tokens <= 0 || s.blocks <= 0 || plan.footprint > in.available_memory) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "max_batch_tokens={} and num_blocks={} take {} bytes, available_memory={}",
                 s.tokens, s.blocks, plan.footprint, in.available_memory);
  }
  return plan;
}

absl::StatusOr<TransformersInputs> TransformersInputsOf(const ModelShape& shape) {
  TransformersInputs in;
  std::vector<int64_t> counts(2, 0);  // full, sliding
  const CachePart* first = nullptr;
  for (const LayerShape& layer : shape.layers) {
    for (const CachePart& part : layer.parts) {
      const bool paged = part.kind == PartKind::kFull || part.kind == PartKind::kSliding;
      const bool alike =
          first == nullptr || (part.kv_heads == first->kv_heads && part.key_dim == first->key_dim);
      if (!paged || !alike || layer.parts.size() > 1 || part.value_dim != part.key_dim) {
        return Error(absl::StatusCode::kUnimplemented,
                     "{}: transformers pages full and sliding layers of equal heads only, not {}",
                     shape.name, alike ? NameOf(part.kind) : "heads that differ");
      }
      if (first == nullptr) first = &part;
      ++counts[part.kind == PartKind::kSliding ? 1 : 0];
    }
  }
  if (first == nullptr) {
    return Error(absl::StatusCode::kUnimplemented, "{}: no layer has keys and values", shape.name);
  }
  in.group_size = std::gcd(counts[0], counts[1]);
  in.num_groups = (counts[0] + counts[1]) / in.group_size;
  in.num_masks = counts[1] > 0 ? 2 : 1;
  in.num_heads = shape.num_heads;
  in.num_kv_heads = first->kv_heads;
  in.head_dim = first->key_dim;
  in.hidden_dim = shape.activations.hidden_dim;
  in.vocab_size = shape.activations.vocab_size;
  return in;
}

}  // namespace quire
