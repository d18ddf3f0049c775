// models/plan/shapes_classic.cc -- decoders from before key-value heads had a key of their own:
// fused projections, biases everywhere, learned positions.
#include <algorithm>

#include "models/plan/shape_builder.h"
#include "models/plan/shape_readers.h"

namespace quire {
namespace {

// n_embd, n_layer, n_head. `multi_query`: one key-value head.
absl::StatusOr<ModelShape> ReadGpt(const JsonFields& fields, bool multi_query) {
  ShapeBuilder b(fields);
  ConfigKeys& k = b.keys;
  b.hidden = k.Need("n_embd");
  b.num_layers = k.Need("n_layer", kMaxLayers);
  b.vocab = k.Need("vocab_size", kMaxVocab);
  b.shape.max_position = k.Need("n_positions", kMaxPosition);
  const int64_t heads = k.Need("n_head", kMaxHeads);
  if (b.hidden % heads != 0)
    k.Refuse("n_embd", fmt::format("must be a multiple of n_head={}", heads));
  b.attention = {heads, multi_query ? 1 : heads, b.hidden / heads};
  b.shape.layers.assign(static_cast<size_t>(b.num_layers), {.parts = {FullPart(b.attention)}});
  const int64_t inner = k.Get("n_inner", 4 * b.hidden);
  ParameterCount layer;
  CountAttention(layer, b.hidden, {.sizes = b.attention, .qkv_bias = true, .o_bias = true});
  CountMlp(layer, b.hidden, inner, false, true);
  layer.Norm(b.hidden, true);
  layer.Norm(b.hidden, true);
  b.CountEmbedding(true);
  b.count.Linear(b.shape.max_position, b.hidden);
  b.count.Add(layer, b.num_layers);
  b.count.Norm(b.hidden, true);
  b.shape.activations.rotary_dims = {0};
  return b.Finish(inner);
}

}  // namespace

absl::StatusOr<ModelShape> Gpt2Shape(const JsonFields& f) { return ReadGpt(f, false); }

absl::StatusOr<ModelShape> GptBigCodeShape(const JsonFields& f) {
  return ReadGpt(f, f.json()["multi_query"].as_bool().value_or(true));
}

absl::StatusOr<ModelShape> GptNeoxShape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields);
  b.attention.num_kv_heads = b.attention.num_heads;
  b.shape.layers.assign(static_cast<size_t>(b.num_layers), {.parts = {FullPart(b.attention)}});
  const bool bias = b.keys.Flag("attention_bias", true);
  const int64_t inner = b.keys.Need("intermediate_size");
  ParameterCount layer;
  CountAttention(layer, b.hidden, {.sizes = b.attention, .qkv_bias = bias, .o_bias = bias});
  CountMlp(layer, b.hidden, inner, false, true);
  layer.Norm(b.hidden, true);
  layer.Norm(b.hidden, true);
  b.CountEmbedding(false);
  b.count.Add(layer, b.num_layers);
  b.count.Norm(b.hidden, true);
  return b.Finish(inner);
}

absl::StatusOr<ModelShape> FalconShape(const JsonFields& fields) {
  ShapeBuilder b = StartShape(fields);
  ConfigKeys& k = b.keys;
  const bool new_form = k.Flag("new_decoder_architecture", false);
  const int64_t kv_heads = k.Get("num_kv_heads", b.attention.num_heads, kMaxHeads);
  b.attention.num_kv_heads = new_form                      ? std::max<int64_t>(kv_heads, 1)
                             : k.Flag("multi_query", true) ? 1
                                                           : b.attention.num_heads;
  b.shape.layers.assign(static_cast<size_t>(b.num_layers), {.parts = {FullPart(b.attention)}});
  const bool bias = k.Flag("bias", false);
  const int64_t inner = k.Get("ffn_hidden_size", 4 * b.hidden);
  ParameterCount layer;
  CountAttention(layer, b.hidden, {.sizes = b.attention, .qkv_bias = bias, .o_bias = bias});
  CountMlp(layer, b.hidden, inner, false, bias);
  layer.Norm(b.hidden, true);
  const int64_t norms = k.Get("num_ln_in_parallel_attn", new_form ? 2 : 1, 2);
  if (!k.Flag("parallel_attn", true) || (new_form && norms == 2)) layer.Norm(b.hidden, true);
  b.CountEmbedding(true);
  b.count.Add(layer, b.num_layers);
  b.count.Norm(b.hidden, true);
  return b.Finish(inner);
}

}  // namespace quire
