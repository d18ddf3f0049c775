// models/decoder.h -- the one forward function: a decoder-only transformer driven by LayerConfig.
//
// Thread: engine thread; kernels fan out over the pool and join before they return.
// Exactness (C1): every operation works on one token row at a time or through the kernels' fixed
// orders, so a row's result depends on nothing but its own sequence.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/profile/op_profile.h"
#include "models/config.h"
#include "models/model.h"
#include "models/model_weights.h"
#include "models/rope_config.h"

namespace quire {

struct DecoderOptions {
  const kernels::AttentionBackend* attention = nullptr;
  const kernels::AttentionBackend* sliding_attention = nullptr;  // null: `attention`
  kernels::ComputeType compute = kernels::ComputeType::kF32;     // of linear layers
  kernels::Quantization quantization = kernels::Quantization::kNone;
  DType kv_dtype = DType::kF32;
  // What attention's products are computed in, where its kernel offers that; else float32.
  DType attention_dot = DType::kF32;
  int32_t block_size = 16;
};

class Decoder : public Model {
 public:
  // Packs the weights; `weights` may be dropped afterwards. `pool` outlives the decoder.
  // ERRORS: kUnimplemented if the attention kernel lacks a feature that the model needs.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const ModelConfig& config,
                                                         const ModelWeights& weights,
                                                         const DecoderOptions& options,
                                                         ThreadPool& pool);

  const CacheLayout& cache_layout() const override { return layout_; }
  int32_t vocab_size() const override { return config_.vocab_size; }
  size_t weight_bytes() const override { return weight_bytes_; }
  // Of the linear layers: the coarsest of any.
  kernels::ComputeType compute() const;
  absl::StatusOr<ForwardOutput> Forward(const ForwardBatch& batch, PageStorage& storage,
                                        Arena& arena) override;

  // Test hook: called with the embedding (-1), each layer's output and the final norm's
  // (num_layers), [num_tokens or num_rows, hidden_dim].
  using Tap = std::function<void(int32_t layer, std::span<const float> hidden)>;
  void set_tap(Tap tap) { tap_ = std::move(tap); }
  // Null: no profile. It outlives the decoder.
  void set_profile(kernels::OpProfile* profile) { profile_ = profile; }

 private:
  struct Norm {
    std::vector<float> weight;  // empty = absent
  };
  struct Projection {
    kernels::PackedWeight weight;
    std::vector<float> bias;  // empty = absent
  };
  struct Layer {
    Norm attn_norm, attn_post_norm, mlp_norm, mlp_post_norm, q_norm, k_norm;
    Projection q, k, v, o, gate, up, down;
    int32_t plan = 0;  // index into plans_
  };
  // Layers with equal masks and tables share a plan.
  struct Plan {
    int32_t group = 0;
    const kernels::AttentionBackend* attention = nullptr;
    kernels::AttentionShape shape;
    kernels::AttentionPlan plan;
  };
  struct Activations;

  Decoder(const ModelConfig& config, ThreadPool& pool) : config_(config), pool_(pool) {}
  absl::Status Load(const ModelWeights& weights, const DecoderOptions& options);
  absl::Status PlanCache(const DecoderOptions& options);
  absl::StatusOr<Projection> LoadProjection(const TensorView& weight,
                                            const std::optional<TensorView>& bias,
                                            const DecoderOptions& options);
  std::vector<const kernels::PackedWeight*> LinearWeights() const;
  void PlanScratch();
  // Scratch of RunLinear for `tokens` rows of any layer and `rows` of the head.
  size_t ScratchBytes(int64_t tokens, int64_t rows) const;

  void Embed(const ForwardBatch& batch, float* out) const;
  void FillRope(const ForwardBatch& batch, Activations& a);
  void RunLayer(size_t index, const ForwardBatch& batch, PageStorage& storage, Activations& a);
  void Attention(size_t index, const ForwardBatch& batch, PageStorage& storage, Activations& a);
  void RotateHeads(size_t index, Activations& a);
  void Mlp(size_t index, const ForwardBatch& batch, Activations& a);
  void Head(const ForwardBatch& batch, Activations& a);
  // out[r] = norm(x[r]) over `rows` contiguous rows; out may be x.
  void Normalize(const Norm& norm, const float* x, int64_t rows, float* out) const;
  // a.normed = norm(a.x), row by row where the jobs need it, then the jobs.
  void RunNormed(const Norm& norm, std::span<const kernels::LinearJob> jobs, Activations& a);
  // The residual stream a.x gains w * in, normed first if `post` is there. in: [T, w's columns],
  // not a.normed. maker: of `in`.
  void AddToStream(kernels::Op op, const Projection& w, const Norm& post, const float* in,
                   kernels::RowMaker maker, Activations& a);

  const ModelConfig config_;
  ThreadPool& pool_;
  CacheLayout layout_;
  std::vector<Layer> layers_;
  std::vector<Plan> plans_;
  std::vector<RopeFrequencies> ropes_;  // of config_.ropes; those that depend on the length: empty
  Norm final_norm_;
  Projection head_;                  // packed; also the embedding if tied
  kernels::PackedWeight embedding_;  // empty if tied
  size_t weight_bytes_ = 0;
  size_t scratch_forms_ = 0;   // in which some linear layer needs its input
  int64_t scratch_depth_ = 0;  // the deepest layer's
  Tap tap_;
  kernels::OpProfile* profile_ = nullptr;
};

}  // namespace quire
