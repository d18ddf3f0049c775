#include "models/plan/shape_builder.h"

#include <algorithm>

namespace quire {

void ParameterCount::Linear(int64_t in, int64_t out, bool bias) {
  total_ = SaturatingSum({total_, SaturatingProduct({in, out}), bias ? out : 0});
}

void ParameterCount::Vector(int64_t size) { total_ = SaturatingSum({total_, size}); }

void ParameterCount::Add(const ParameterCount& other, int64_t times) {
  total_ = SaturatingSum({total_, SaturatingProduct({other.total_, times})});
}

void CountAttention(ParameterCount& count, int64_t hidden, const AttentionBlock& b) {
  const int64_t q_dim = b.sizes.num_heads * b.sizes.head_dim;
  const int64_t kv_dim = b.sizes.num_kv_heads * b.sizes.head_dim;
  count.Linear(hidden, b.output_gate ? 2 * q_dim : q_dim, b.qkv_bias);
  if (!b.shares_kv) {
    count.Linear(hidden, kv_dim, b.qkv_bias);
    if (!b.k_is_v) count.Linear(hidden, kv_dim, b.qkv_bias);
  }
  count.Linear(q_dim, hidden, b.o_bias);
  if (b.qk_norm == QkNorm::kNone) return;
  const bool per_head = b.qk_norm == QkNorm::kPerHead;
  count.Vector(per_head ? b.sizes.head_dim : q_dim);
  if (!b.shares_kv) count.Vector(per_head ? b.sizes.head_dim : kv_dim);
}

void CountMlp(ParameterCount& count, int64_t hidden, int64_t inner, bool gated, bool bias) {
  if (gated) count.Linear(hidden, inner, bias);
  count.Linear(hidden, inner, bias);
  count.Linear(inner, hidden, bias);
}

void CountExperts(ParameterCount& count, int64_t hidden, int64_t inner, int64_t experts) {
  count.Linear(hidden, experts);
  ParameterCount expert;
  CountMlp(expert, hidden, inner, true);
  count.Add(expert, experts);
}

CachePart FullPart(const AttentionSizes& s) {
  return {.kind = PartKind::kFull,
          .kv_heads = s.num_kv_heads,
          .key_dim = s.head_dim,
          .value_dim = s.head_dim};
}

CachePart SlidingPart(const AttentionSizes& s, int64_t window) {
  CachePart part = FullPart(s);
  if (window > 0) {
    part.kind = PartKind::kSliding;
    part.window = window;
  }
  return part;
}

CachePart StatePart(int64_t recurrent_elements, int64_t conv_channels, int64_t conv_kernel) {
  return {.kind = PartKind::kState,
          .recurrent_elements = recurrent_elements,
          .conv_channels = conv_channels,
          .conv_kernel = conv_kernel};
}

void ShapeBuilder::CountEmbedding(bool tied_by_default) {
  count.Linear(vocab, hidden);
  if (!keys.Flag("tie_word_embeddings", tied_by_default)) count.Linear(vocab, hidden);
}

std::vector<std::string> ShapeBuilder::LayerTypes(std::string_view key,
                                                  std::vector<std::string> fallback,
                                                  std::initializer_list<std::string_view> allowed) {
  std::vector<std::string> types = keys.Names(key, num_layers);
  if (types.empty()) types = std::move(fallback);
  types.resize(static_cast<size_t>(num_layers), "full_attention");
  for (std::string& type : types) {
    if (type == "mamba" || type == "mamba2") type = "linear_attention";
    if (type == "attention") type = "full_attention";
    if (std::find(allowed.begin(), allowed.end(), type) == allowed.end()) {
      std::string known;
      for (const std::string_view name : allowed) {
        known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
      }
      keys.Keep(InvalidArgument("{}: {} has \"{}\", this architecture knows {}",
                                keys.fields().file(), key, Printable(type), known));
      break;
    }
  }
  return types;
}

absl::StatusOr<ModelShape> ShapeBuilder::Finish(int64_t mlp_dim) {
  RETURN_IF_ERROR(keys.status());
  shape.parameters = count.total();
  shape.num_heads = attention.num_heads;
  ActivationShape& a = shape.activations;
  a.hidden_dim = hidden;
  a.vocab_size = vocab;
  a.mlp_dim = mlp_dim;
  a.q_dim = std::max(a.q_dim, attention.num_heads * attention.head_dim);
  a.kv_dim = std::max(a.kv_dim, attention.num_kv_heads * attention.head_dim);
  if (a.rotary_dims.empty() && attention.head_dim > 0) a.rotary_dims = {attention.head_dim};
  return std::move(shape);
}

ShapeBuilder StartShape(const JsonFields& fields, bool with_attention) {
  ShapeBuilder b(fields);
  b.hidden = b.keys.Need("hidden_size");
  b.num_layers = b.keys.NeedAny({"num_hidden_layers", "num_layers"}, kMaxLayers);
  b.vocab = b.keys.Need("vocab_size", kMaxVocab);
  b.shape.max_position = b.keys.Get("max_position_embeddings", 0, kMaxPosition);
  if (!with_attention) return b;
  AttentionSizes& a = b.attention;
  a.num_heads = b.keys.Need("num_attention_heads", kMaxHeads);
  a.num_kv_heads = b.keys.Get("num_key_value_heads", a.num_heads, kMaxHeads);
  if (a.num_kv_heads < 1 || a.num_heads % a.num_kv_heads != 0) {
    b.keys.Refuse("num_key_value_heads",
                  fmt::format("must divide num_attention_heads={}", a.num_heads));
    a.num_kv_heads = 1;
  }
  if (!b.keys.Has("head_dim") && b.hidden % a.num_heads != 0) {
    b.keys.Refuse("hidden_size",
                  fmt::format("must be a multiple of num_attention_heads={}, or head_dim given",
                              a.num_heads));
  }
  a.head_dim = b.keys.Get("head_dim", b.hidden / a.num_heads);
  return b;
}

std::vector<std::string> EveryNth(int64_t num_layers, int64_t interval, std::string_view name,
                                  std::string_view other) {
  std::vector<std::string> types;
  for (int64_t i = 0; i < num_layers; ++i) {
    const bool nth = interval > 0 && (i + 1) % interval == 0;
    types.emplace_back(nth ? other : name);
  }
  return types;
}

}  // namespace quire
