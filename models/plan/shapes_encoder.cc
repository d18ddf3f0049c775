// models/plan/shapes_encoder.cc -- encoder-decoders: a cache for the decoder's own tokens, and one
// for the encoder's, written once.
#include <algorithm>

#include "models/plan/shape_builder.h"
#include "models/plan/shape_readers.h"

namespace quire {
namespace {

LayerShape DecoderLayer(const AttentionSizes& sizes) {
  CachePart cross = FullPart(sizes);
  cross.kind = PartKind::kCross;
  return {.parts = {FullPart(sizes), cross}};
}

}  // namespace

absl::StatusOr<ModelShape> T5Shape(const JsonFields& fields) {
  ShapeBuilder b(fields);
  ConfigKeys& k = b.keys;
  b.hidden = k.Need("d_model");
  b.vocab = k.Need("vocab_size", kMaxVocab);
  const int64_t encoder_layers = k.Need("num_layers", kMaxLayers);
  b.num_layers = k.Get("num_decoder_layers", encoder_layers, kMaxLayers);
  b.attention = {k.Need("num_heads", kMaxHeads), 0, k.Need("d_kv")};
  b.attention.num_kv_heads = b.attention.num_heads;
  const int64_t inner = k.Need("d_ff");
  const bool gated = k.Text("feed_forward_proj", "relu").substr(0, 6) == "gated-";
  ParameterCount attention, block;
  CountAttention(attention, b.hidden, {.sizes = b.attention});
  attention.Norm(b.hidden);
  CountMlp(block, b.hidden, inner, gated);
  block.Norm(b.hidden);
  b.count.Add(attention, encoder_layers + 2 * b.num_layers);
  b.count.Add(block, encoder_layers + b.num_layers);
  b.count.Norm(2 * b.hidden);
  // Both stacks learn a bias by distance, in their first layer.
  b.count.Linear(k.Get("relative_attention_num_buckets", 32), 2 * b.attention.num_heads);
  b.CountEmbedding(true);
  b.shape.layers.assign(static_cast<size_t>(b.num_layers), DecoderLayer(b.attention));
  b.shape.activations.rotary_dims = {0};
  return b.Finish(inner);
}

absl::StatusOr<ModelShape> BartShape(const JsonFields& fields) {
  ShapeBuilder b(fields);
  ConfigKeys& k = b.keys;
  b.hidden = k.Need("d_model");
  b.vocab = k.Need("vocab_size", kMaxVocab);
  b.num_layers = k.Need("decoder_layers", kMaxLayers);
  b.shape.max_position = k.Need("max_position_embeddings", kMaxPosition);
  const int64_t encoder_layers = k.Need("encoder_layers", kMaxLayers);
  const int64_t heads = k.Need("decoder_attention_heads", kMaxHeads);
  if (b.hidden % heads != 0) {
    k.Refuse("d_model", fmt::format("must be a multiple of decoder_attention_heads={}", heads));
  }
  b.attention = {heads, heads, b.hidden / heads};
  const auto attention = [&] {
    ParameterCount c;
    CountAttention(c, b.hidden, {.sizes = b.attention, .qkv_bias = true, .o_bias = true});
    c.Norm(b.hidden, true);
    return c;
  }();
  const auto block = [&](int64_t inner) {
    ParameterCount c;
    CountMlp(c, b.hidden, inner, false, true);
    c.Norm(b.hidden, true);
    return c;
  };
  const int64_t inner = k.Need("decoder_ffn_dim");
  b.count.Add(attention, encoder_layers + 2 * b.num_layers);
  b.count.Add(block(k.Need("encoder_ffn_dim")), encoder_layers);
  b.count.Add(block(inner), b.num_layers);
  // Positions of both stacks begin at two.
  b.count.Linear(2 * (b.shape.max_position + 2), b.hidden);
  b.count.Norm(b.hidden, true);
  b.count.Norm(b.hidden, true);
  // One table for both stacks and the head, or one each and the shared one.
  b.count.Linear(b.vocab, b.hidden * (k.Flag("tie_word_embeddings", true) ? 1 : 4));
  b.shape.layers.assign(static_cast<size_t>(b.num_layers), DecoderLayer(b.attention));
  b.shape.activations.rotary_dims = {0};
  return b.Finish(inner);
}

}  // namespace quire
