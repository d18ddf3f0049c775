// models/plan/shape_builder.h -- the building blocks that the shape readers share: what every
// config names alike, and how many parameters the usual blocks have.
//
// Load time only. Parameters are what a checkpoint's float tensors hold, tied ones once; buffers
// that are not trained (routing biases) are left out, as transformers counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/plan/cache_shape.h"
#include "models/plan/config_keys.h"

namespace quire {

inline constexpr int64_t kMaxExperts = 1 << 20;

// Adds up parameters.
class ParameterCount {
 public:
  // [out, in] and, with a bias, [out].
  void Linear(int64_t in, int64_t out, bool bias = false);
  void Vector(int64_t size);
  void Norm(int64_t size, bool bias = false) { Vector(bias ? 2 * size : size); }
  void Add(const ParameterCount& other, int64_t times = 1);
  int64_t total() const { return total_; }

 private:
  int64_t total_ = 0;
};

struct AttentionSizes {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
};

enum class QkNorm : uint8_t { kNone, kPerHead, kWhole };

// q, k, v and o with their biases and norms. `q_width` > 0 replaces num_heads * head_dim for q
// alone: gated attention has a gate beside each query.
struct AttentionBlock {
  AttentionSizes sizes;
  bool qkv_bias = false;
  bool o_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool output_gate = false;
  bool shares_kv = false;  // reads another layer's cache: no k, no v
  bool k_is_v = false;     // one projection makes both
};
void CountAttention(ParameterCount& count, int64_t hidden, const AttentionBlock& block);
// up and down, and a gate; with biases.
void CountMlp(ParameterCount& count, int64_t hidden, int64_t inner, bool gated, bool bias = false);
// A router and `experts` gated blocks.
void CountExperts(ParameterCount& count, int64_t hidden, int64_t inner, int64_t experts);

CachePart FullPart(const AttentionSizes& sizes);
// kSliding if window > 0, else kFull.
CachePart SlidingPart(const AttentionSizes& sizes, int64_t window);
CachePart StatePart(int64_t recurrent_elements, int64_t conv_channels, int64_t conv_kernel);

// What all of a reader's layers have in common, read by StartShape.
struct ShapeBuilder {
  ConfigKeys keys;
  ModelShape shape;
  ParameterCount count;
  int64_t hidden = 1;
  int64_t num_layers = 1;
  int64_t vocab = 1;
  AttentionSizes attention;

  explicit ShapeBuilder(const JsonFields& fields) : keys(fields) {}
  // Embedding and, unless tied, the head.
  void CountEmbedding(bool tied_by_default);
  // `layer_types`, or the default where the config has none. Names that are not in `allowed` are
  // refused. Old names ("mamba", "attention") become today's.
  std::vector<std::string> LayerTypes(std::string_view key, std::vector<std::string> fallback,
                                      std::initializer_list<std::string_view> allowed);
  // Sets the widths that size activations; parameters; the first error of all keys.
  absl::StatusOr<ModelShape> Finish(int64_t mlp_dim);
};

// hidden_size, num_hidden_layers, vocab_size, num_attention_heads, num_key_value_heads, head_dim.
// `with_attention` false: the model has no heads.
ShapeBuilder StartShape(const JsonFields& fields, bool with_attention = true);

// "name" for every layer but each `interval`-th, which is "other".
std::vector<std::string> EveryNth(int64_t num_layers, int64_t interval, std::string_view name,
                                  std::string_view other);

}  // namespace quire
