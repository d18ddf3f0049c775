#include "models/decoder.h"

#include <algorithm>

#include "kernels/attention_choice.h"
#include "kernels/for_rows.h"
#include "kernels/ops.h"
#include "models/rope_config.h"

namespace quire {

using kernels::LinearJob;
using kernels::Op;

// One step's buffers, taken once; a dry arena counts them. T = num_tokens, R = logit rows.
struct Decoder::Activations {
  int64_t num_tokens = 0;
  int64_t num_rows = 0;
  std::span<float> x;                      // [T, hidden] residual stream
  std::span<float> normed;                 // [T, hidden]
  std::span<float> q;                      // [T, num_heads * head_dim]
  std::span<float> k, v;                   // [T, num_kv_heads * head_dim]
  std::span<float> attended;               // [T, num_heads * head_dim]
  std::span<float> gate, up;               // [T, mlp_dim]
  std::vector<std::span<float>> cos, sin;  // per rope: [T, rotary_dim / 2]
  std::span<float> rows;                   // [R, hidden]
  std::span<float> logits;                 // [R, vocab]
  std::span<std::byte> workspace;          // attention's partial results
  std::span<std::byte> scratch;            // linear layers' rounded inputs
};

namespace {

absl::StatusOr<std::vector<float>> ToFloats(const TensorView& view) {
  std::vector<float> out(static_cast<size_t>(view.num_elements()));
  kernels::Dequantize(view.dtype, static_cast<const std::byte*>(view.data), view.num_elements(),
                      out.data());
  return out;
}

kernels::AttentionShape ShapeOf(const LayerConfig& layer, const DecoderOptions& options,
                                const kernels::AttentionBackend& attention) {
  kernels::AttentionShape shape{
      .num_heads = layer.num_heads,
      .num_kv_heads = layer.num_kv_heads,
      .head_dim = layer.head_dim,
      .head_dim_v = layer.head_dim,
      .window = layer.attention == AttentionKind::kSliding ? layer.window : 0,
      .softmax_scale = layer.softmax_scale,
      .logit_softcap = layer.score_softcap,
      .kv_dtype = options.kv_dtype,
      .dot = options.attention_dot};
  if (!CheckSupport(attention, shape, options.block_size).ok()) shape.dot = DType::kF32;
  return shape;
}

bool SameShape(const kernels::AttentionShape& a, const kernels::AttentionShape& b) {
  return a.num_heads == b.num_heads && a.num_kv_heads == b.num_kv_heads &&
         a.head_dim == b.head_dim && a.head_dim_v == b.head_dim_v && a.window == b.window &&
         a.chunk == b.chunk && a.softmax_scale == b.softmax_scale &&
         a.logit_softcap == b.logit_softcap && a.kv_dtype == b.kv_dtype && a.dot == b.dot;
}

const float* OrNull(const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); }

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const ModelConfig& config,
                                                         const ModelWeights& weights,
                                                         const DecoderOptions& options,
                                                         ThreadPool& pool) {
  std::unique_ptr<Decoder> decoder(new Decoder(config, pool));
  RETURN_IF_ERROR(decoder->PlanCache(options));
  RETURN_IF_ERROR(decoder->Load(weights, options));
  return decoder;
}

absl::StatusOr<Decoder::Projection> Decoder::LoadProjection(const TensorView& weight,
                                                            const std::optional<TensorView>& bias,
                                                            const DecoderOptions& options) {
  Projection p;
  ASSIGN_OR_RETURN(
      p.weight, kernels::PackedWeight::Pack(weight, pool_, options.compute, options.quantization));
  weight_bytes_ += p.weight.bytes();
  if (bias) {
    ASSIGN_OR_RETURN(p.bias, ToFloats(*bias));
  }
  return p;
}

absl::Status Decoder::Load(const ModelWeights& weights, const DecoderOptions& options) {
  for (const RopeConfig& rope : config_.ropes) {
    ropes_.push_back(IsLengthDependent(rope) ? RopeFrequencies{}
                                             : ComputeRope(rope, config_.max_position, 0));
  }
  const auto norm = [](const std::optional<TensorView>& view, Norm& out) -> absl::Status {
    if (!view) return absl::OkStatus();
    ASSIGN_OR_RETURN(out.weight, ToFloats(*view));
    return absl::OkStatus();
  };
  const auto projection = [this, &options](const std::optional<TensorView>& view,
                                           const std::optional<TensorView>& bias,
                                           Projection& out) -> absl::Status {
    if (!view) return absl::OkStatus();
    ASSIGN_OR_RETURN(out, LoadProjection(*view, bias, options));
    return absl::OkStatus();
  };
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerWeights& w = weights.layers[i];
    Layer& layer = layers_[i];
    RETURN_IF_ERROR(norm(w.attn_norm, layer.attn_norm));
    RETURN_IF_ERROR(norm(w.attn_post_norm, layer.attn_post_norm));
    RETURN_IF_ERROR(norm(w.mlp_norm, layer.mlp_norm));
    RETURN_IF_ERROR(norm(w.mlp_post_norm, layer.mlp_post_norm));
    RETURN_IF_ERROR(norm(w.q_norm, layer.q_norm));
    RETURN_IF_ERROR(norm(w.k_norm, layer.k_norm));
    RETURN_IF_ERROR(projection(w.q, w.q_bias, layer.q));
    RETURN_IF_ERROR(projection(w.k, w.k_bias, layer.k));
    RETURN_IF_ERROR(projection(w.v, w.v_bias, layer.v));
    RETURN_IF_ERROR(projection(w.o, w.o_bias, layer.o));
    RETURN_IF_ERROR(projection(w.gate, w.gate_bias, layer.gate));
    RETURN_IF_ERROR(projection(w.up, w.up_bias, layer.up));
    RETURN_IF_ERROR(projection(w.down, w.down_bias, layer.down));
  }
  RETURN_IF_ERROR(norm(weights.final_norm, final_norm_));
  const bool tied = !weights.lm_head.has_value();
  // Four bits cost the head's many close logits more than its bytes are worth.
  DecoderOptions of_head = options;
  if (options.quantization == kernels::Quantization::kInt4) {
    of_head.quantization = kernels::Quantization::kInt8;
  }
  ASSIGN_OR_RETURN(head_,
                   LoadProjection(tied ? weights.embed : *weights.lm_head, std::nullopt, of_head));
  if (!tied) {
    ASSIGN_OR_RETURN(embedding_, kernels::PackedWeight::Pack(weights.embed, pool_));
    weight_bytes_ += embedding_.bytes();
  }
  PlanScratch();
  return absl::OkStatus();
}

std::vector<const kernels::PackedWeight*> Decoder::LinearWeights() const {
  std::vector<const kernels::PackedWeight*> all = {&head_.weight};
  for (const Layer& l : layers_) {
    for (const Projection* p : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) {
      if (p->weight.n() > 0) all.push_back(&p->weight);
    }
  }
  return all;
}

kernels::ComputeType Decoder::compute() const {
  kernels::ComputeType most = kernels::ComputeType::kF32;
  for (const kernels::PackedWeight* w : LinearWeights()) most = std::max(most, w->compute());
  return most;
}

void Decoder::PlanScratch() {
  bool bf16 = false, int8 = false;
  for (const kernels::PackedWeight* w : LinearWeights()) {
    bf16 = bf16 || w->compute() == kernels::ComputeType::kBF16;
    int8 = int8 || w->compute() == kernels::ComputeType::kI8;
    if (w != &head_.weight) scratch_depth_ = std::max(scratch_depth_, w->k());
  }
  // Jobs of one call share their input, which may be needed in both forms.
  scratch_forms_ = (bf16 ? 1u : 0u) + (int8 ? 1u : 0u);
}

size_t Decoder::ScratchBytes(int64_t tokens, int64_t rows) const {
  return scratch_forms_ * std::max(kernels::LinearScratchBytes(tokens, scratch_depth_),
                                   kernels::LinearScratchBytes(rows, head_.weight.k()));
}

absl::Status Decoder::PlanCache(const DecoderOptions& options) {
  const auto attention_of = [&options](const LayerConfig& layer) {
    const bool other = layer.attention == AttentionKind::kSliding && options.sliding_attention;
    return other ? options.sliding_attention : options.attention;
  };
  layers_.resize(config_.layers.size());
  std::vector<LayerCacheSpec> specs;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const kernels::AttentionBackend& attention = *attention_of(config_.layers[i]);
    const kernels::AttentionShape shape = ShapeOf(config_.layers[i], options, attention);
    if (absl::Status s = CheckSupport(attention, shape, options.block_size); !s.ok()) {
      return Annotate(s, fmt::format("attention={}: layer {}", attention.name, i));
    }
    // A window that no sequence can outgrow gives nothing back.
    const bool windowed = shape.window > 0 && shape.window < LongestSequence(config_);
    specs.push_back({.layer = static_cast<int32_t>(i),
                     .kind = windowed ? CacheKind::kSlidingWindow : CacheKind::kFull,
                     .window = windowed ? shape.window : 0,
                     .key_bytes_per_page = kernels::KeyPageBytes(shape, options.block_size),
                     .value_bytes_per_page = kernels::ValuePageBytes(shape, options.block_size)});
  }
  ASSIGN_OR_RETURN(
      layout_, MakeCacheLayout(static_cast<int32_t>(layers_.size()), options.block_size, specs));
  for (size_t i = 0; i < layers_.size(); ++i) {
    const kernels::AttentionBackend* const attention = attention_of(config_.layers[i]);
    const kernels::AttentionShape shape = ShapeOf(config_.layers[i], options, *attention);
    const int32_t group = layout_.layers[i].group;
    const auto same = [&](const Plan& p) {
      return p.group == group && p.attention == attention && SameShape(p.shape, shape);
    };
    auto it = std::find_if(plans_.begin(), plans_.end(), same);
    if (it == plans_.end()) {
      it = plans_.insert(it, Plan{.group = group, .attention = attention, .shape = shape});
    }
    layers_[i].plan = static_cast<int32_t>(it - plans_.begin());
  }
  return absl::OkStatus();
}

absl::StatusOr<ForwardOutput> Decoder::Forward(const ForwardBatch& batch, PageStorage& storage,
                                               Arena& arena) {
  BeginOp(profile_, Op::kPlan);
  Activations a;
  a.num_tokens = batch.num_tokens;
  a.num_rows = static_cast<int64_t>(batch.logit_rows.size());
  const auto tokens = static_cast<size_t>(a.num_tokens);
  const auto rows = static_cast<size_t>(a.num_rows);
  const auto hidden = static_cast<size_t>(config_.hidden_dim);
  size_t q_dim = 0, kv_dim = 0, mlp_dim = 0;
  for (const LayerConfig& l : config_.layers) {
    q_dim = std::max(q_dim, static_cast<size_t>(l.num_heads) * static_cast<size_t>(l.head_dim));
    kv_dim =
        std::max(kv_dim, static_cast<size_t>(l.num_kv_heads) * static_cast<size_t>(l.head_dim));
    mlp_dim = std::max(mlp_dim, static_cast<size_t>(l.mlp_dim));
  }
  arena.Purpose("residual");
  a.x = arena.Take<float>(tokens * hidden);
  a.normed = arena.Take<float>(tokens * hidden);
  arena.Purpose("qkv");
  a.q = arena.Take<float>(tokens * q_dim);
  a.k = arena.Take<float>(tokens * kv_dim);
  a.v = arena.Take<float>(tokens * kv_dim);
  arena.Purpose("attention");
  a.attended = arena.Take<float>(tokens * q_dim);
  arena.Purpose("mlp");
  a.gate = arena.Take<float>(tokens * mlp_dim);
  a.up = arena.Take<float>(tokens * mlp_dim);
  arena.Purpose("linear");
  const size_t scratch = ScratchBytes(a.num_tokens, a.num_rows);
  if (scratch > 0) a.scratch = arena.Take<std::byte>(scratch);
  arena.Purpose("rope");
  for (const RopeConfig& rope : config_.ropes) {
    const size_t half = static_cast<size_t>(rope.rotary_dim) / 2;
    a.cos.push_back(arena.Take<float>(tokens * half));
    a.sin.push_back(arena.Take<float>(tokens * half));
  }
  arena.Purpose("logits");
  a.rows = arena.Take<float>(rows * hidden);
  a.logits = arena.Take<float>(rows * static_cast<size_t>(config_.vocab_size));
  size_t workspace = 0;
  for (Plan& p : plans_) {
    const kernels::AttentionMetadata& m = batch.groups[static_cast<size_t>(p.group)];
    p.attention->plan(m, p.shape, pool_.num_threads(), p.plan);
    workspace = std::max(workspace, p.plan.workspace_bytes);
  }
  arena.Purpose("attention");
  a.workspace = arena.Take<std::byte>(workspace);
  if (arena.dry()) return ForwardOutput{a.logits};

  BeginOp(profile_, Op::kEmbed, kernels::RowWork{a.num_tokens, config_.hidden_dim, 1, 1});
  Embed(batch, a.x.data());
  if (tap_) tap_(-1, a.x);
  BeginOp(profile_, Op::kRopeAngles);
  FillRope(batch, a);
  for (size_t i = 0; i < layers_.size(); ++i) {
    RunLayer(i, batch, storage, a);
    if (tap_) tap_(static_cast<int32_t>(i), a.x);
  }
  Head(batch, a);
  return ForwardOutput{a.logits};
}

void Decoder::Embed(const ForwardBatch& batch, float* out) const {
  const kernels::PackedWeight& table = embedding_.n() > 0 ? embedding_ : head_.weight;
  const int64_t hidden = config_.hidden_dim;
  // Gathering a value from its panel costs as much as ten of a plain row.
  kernels::ForRows(batch.num_tokens, 10 * hidden, pool_, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      float* const row = out + t * hidden;
      table.Row(batch.token_ids[static_cast<size_t>(t)], row);
      if (config_.embedding_scale == 1.0f) continue;
      for (int64_t i = 0; i < hidden; ++i) row[i] *= config_.embedding_scale;
    }
  });
}

void Decoder::FillRope(const ForwardBatch& batch, Activations& a) {
  for (size_t r = 0; r < config_.ropes.size(); ++r) {
    const RopeConfig& rope = config_.ropes[r];
    const int64_t half = rope.rotary_dim / 2;
    if (half == 0) continue;
    const bool by_length = IsLengthDependent(rope);
    // A cosine and a sine cost as much as twenty values of a plain row.
    kernels::ForRows(batch.num_tokens, 20 * half, pool_, [&](int64_t first, int64_t count) {
      RopeFrequencies of_length;
      const RopeFrequencies& f = by_length ? of_length : ropes_[r];
      int32_t length = 0;  // that of_length is of
      for (int64_t t = first; t < first + count; ++t) {
        const auto token = static_cast<size_t>(t);
        if (by_length && batch.rope_lengths[token] != length) {
          length = batch.rope_lengths[token];
          of_length = ComputeRope(rope, config_.max_position, length);
        }
        kernels::RopeAngles(batch.positions[token], f.inv_freq, f.attention_scaling,
                            a.cos[r].data() + t * half, a.sin[r].data() + t * half);
      }
    });
  }
}

void Decoder::RunLayer(size_t index, const ForwardBatch& batch, PageStorage& storage,
                       Activations& a) {
  Attention(index, batch, storage, a);
  Mlp(index, batch, a);
}

void Decoder::Attention(size_t index, const ForwardBatch& batch, PageStorage& storage,
                        Activations& a) {
  const LayerConfig& c = config_.layers[index];
  const Layer& w = layers_[index];
  const Plan& p = plans_[static_cast<size_t>(w.plan)];
  const kernels::AttentionMetadata& m = batch.groups[static_cast<size_t>(p.group)];
  const int64_t tokens = a.num_tokens;
  const int64_t hidden = config_.hidden_dim;
  const int64_t q_dim = int64_t{c.num_heads} * c.head_dim;
  const int64_t kv_dim = int64_t{c.num_kv_heads} * c.head_dim;

  const float* in = a.normed.data();
  const LinearJob qkv[] = {
      {.w = &w.q.weight,
       .x = in,
       .ldx = hidden,
       .y = a.q.data(),
       .ldy = q_dim,
       .bias = OrNull(w.q.bias)},
      {.w = &w.k.weight,
       .x = in,
       .ldx = hidden,
       .y = a.k.data(),
       .ldy = kv_dim,
       .bias = OrNull(w.k.bias)},
      {.w = &w.v.weight,
       .x = in,
       .ldx = hidden,
       .y = a.v.data(),
       .ldy = kv_dim,
       .bias = OrNull(w.v.bias)},
  };
  BeginOp(profile_, Op::kQkv, qkv, tokens);
  RunNormed(w.attn_norm, qkv, a);
  RotateHeads(index, a);
  const LayerPlacement& place = layout_.layers[index];
  const int32_t pool_index = layout_.groups[static_cast<size_t>(place.group)].pool;
  std::byte* base = storage.base(pool_index);
  const auto stride = static_cast<int64_t>(storage.page_bytes(pool_index));
  BeginOp(profile_, Op::kWriteKv, kernels::RowWork{tokens, 2 * kv_dim, 2, 0});
  kernels::WriteKv(m, p.shape,
                   {.k = a.k.data(),
                    .v = a.v.data(),
                    .k_base = base + place.key_offset,
                    .v_base = base + place.value_offset,
                    .page_stride = stride},
                   pool_);
  BeginOp(profile_, Op::kAttention, m, p.shape);
  p.attention->run(p.plan, m, p.shape,
                   {.q = a.q.data(),
                    .k_base = base + place.key_offset,
                    .v_base = base + place.value_offset,
                    .page_stride = stride,
                    .out = a.attended.data()},
                   a.workspace.data(), pool_);
  AddToStream(Op::kO, w.o, w.attn_post_norm, a.attended.data(), {}, a);
}

// Norms of heads, where there are any, and the rotation.
void Decoder::RotateHeads(size_t index, Activations& a) {
  const LayerConfig& c = config_.layers[index];
  const Layer& w = layers_[index];
  const bool rotated = c.rope >= 0;
  if (!rotated && w.q_norm.weight.empty() && w.k_norm.weight.empty()) return;
  kernels::RopeArgs rope{
      .head_dim = c.head_dim, .norm_offset = config_.norm_offset, .norm_eps = config_.norm_eps};
  if (rotated) {
    const auto r = static_cast<size_t>(c.rope);
    rope.rotary_dim = config_.ropes[r].rotary_dim;
    rope.interleaved = config_.ropes[r].interleaved;
    rope.cos = a.cos[r].data();
    rope.sin = a.sin[r].data();
  }
  const kernels::Heads heads[] = {{a.q.data(), c.num_heads, OrNull(w.q_norm.weight)},
                                  {a.k.data(), c.num_kv_heads, OrNull(w.k_norm.weight)}};
  BeginOp(profile_, Op::kRope,
          kernels::RowWork{a.num_tokens, int64_t{c.num_heads + c.num_kv_heads} * c.head_dim});
  kernels::ApplyRope(rope, heads, a.num_tokens, pool_);
}

void Decoder::Normalize(const Norm& norm, const float* x, int64_t rows, float* out) const {
  const auto dim = static_cast<int64_t>(norm.weight.size());
  kernels::RmsNorm(x, dim, norm.weight.data(), config_.norm_offset, config_.norm_eps, rows, dim,
                   out, dim);
}

void Decoder::RunNormed(const Norm& norm, std::span<const LinearJob> jobs, Activations& a) {
  const int64_t hidden = config_.hidden_dim;
  const auto make = [&](int64_t first, int64_t count) {
    Normalize(norm, a.x.data() + first * hidden, count, a.normed.data() + first * hidden);
  };
  kernels::RunLinear(jobs, a.num_tokens, pool_, a.scratch, kernels::MakerOf(make));
}

void Decoder::AddToStream(Op op, const Projection& w, const Norm& post, const float* in,
                          kernels::RowMaker maker, Activations& a) {
  const int64_t hidden = config_.hidden_dim;
  const bool normed = !post.weight.empty();
  float* const y = normed ? a.normed.data() : a.x.data();
  const LinearJob job[] = {{.w = &w.weight,
                            .x = in,
                            .ldx = w.weight.k(),
                            .y = y,
                            .ldy = hidden,
                            .bias = OrNull(w.bias),
                            .residual = normed ? nullptr : a.x.data()}};
  BeginOp(profile_, op, job, a.num_tokens);
  kernels::RunLinear(job, a.num_tokens, pool_, a.scratch, maker);
  if (!normed) return;
  BeginOp(profile_, Op::kAddRows, kernels::RowWork{a.num_tokens, hidden, 5, 5});
  kernels::AddRmsNorm(post.weight.data(), config_.norm_offset, config_.norm_eps, a.num_tokens,
                      hidden, y, a.x.data(), pool_);
}

void Decoder::Mlp(size_t index, const ForwardBatch&, Activations& a) {
  const LayerConfig& c = config_.layers[index];
  const Layer& w = layers_[index];
  const int64_t tokens = a.num_tokens;
  const int64_t hidden = config_.hidden_dim;
  const float* in = a.normed.data();
  const LinearJob gate_up[] = {
      {.w = &w.gate.weight,
       .x = in,
       .ldx = hidden,
       .y = a.gate.data(),
       .ldy = c.mlp_dim,
       .bias = OrNull(w.gate.bias)},
      {.w = &w.up.weight,
       .x = in,
       .ldx = hidden,
       .y = a.up.data(),
       .ldy = c.mlp_dim,
       .bias = OrNull(w.up.bias)},
  };
  BeginOp(profile_, Op::kGateUp, gate_up, tokens);
  RunNormed(w.mlp_norm, gate_up, a);
  const auto activate = [&](int64_t first, int64_t count) {
    float* const gate = a.gate.data() + first * c.mlp_dim;
    kernels::GatedActivation(c.activation, gate, a.up.data() + first * c.mlp_dim, count * c.mlp_dim,
                             gate);
  };
  AddToStream(Op::kDown, w.down, w.mlp_post_norm, a.gate.data(), kernels::MakerOf(activate), a);
}

void Decoder::Head(const ForwardBatch& batch, Activations& a) {
  if (a.num_rows == 0) return;
  const int64_t hidden = config_.hidden_dim;
  const LinearJob head[] = {{.w = &head_.weight,
                             .x = a.rows.data(),
                             .ldx = hidden,
                             .y = a.logits.data(),
                             .ldy = config_.vocab_size}};
  BeginOp(profile_, Op::kHead, head, a.num_rows);
  const auto make = [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r) {
      const int64_t token = batch.logit_rows[static_cast<size_t>(r)];
      Normalize(final_norm_, a.x.data() + token * hidden, 1, a.rows.data() + r * hidden);
    }
  };
  kernels::RunLinear(head, a.num_rows, pool_, a.scratch, kernels::MakerOf(make));
  if (tap_) tap_(static_cast<int32_t>(layers_.size()), a.rows);
  if (config_.logit_softcap > 0.0f) {
    BeginOp(profile_, Op::kSoftCap, kernels::RowWork{a.num_rows, config_.vocab_size, 2, 20});
    kernels::SoftCap(config_.logit_softcap, a.num_rows, config_.vocab_size, a.logits.data(), pool_);
  }
}

}  // namespace quire
