// models/bind_weights.cc -- BindWeights: tensors by role, every shape against the config.
#include <cstring>

#include "models/model_weights.h"
#include "models/registry.h"
#include "models/weights/scale_tensors.h"

namespace quire {
namespace {

constexpr size_t kMaxListed = 20;

std::optional<TensorView> LayerWeights::*MemberOf(TensorRole role) {
  switch (role) {
    case TensorRole::kAttnNorm:
      return &LayerWeights::attn_norm;
    case TensorRole::kAttnPostNorm:
      return &LayerWeights::attn_post_norm;
    case TensorRole::kMlpNorm:
      return &LayerWeights::mlp_norm;
    case TensorRole::kMlpPostNorm:
      return &LayerWeights::mlp_post_norm;
    case TensorRole::kQ:
      return &LayerWeights::q;
    case TensorRole::kK:
      return &LayerWeights::k;
    case TensorRole::kV:
      return &LayerWeights::v;
    case TensorRole::kO:
      return &LayerWeights::o;
    case TensorRole::kQBias:
      return &LayerWeights::q_bias;
    case TensorRole::kKBias:
      return &LayerWeights::k_bias;
    case TensorRole::kVBias:
      return &LayerWeights::v_bias;
    case TensorRole::kOBias:
      return &LayerWeights::o_bias;
    case TensorRole::kGate:
      return &LayerWeights::gate;
    case TensorRole::kUp:
      return &LayerWeights::up;
    case TensorRole::kDown:
      return &LayerWeights::down;
    case TensorRole::kGateBias:
      return &LayerWeights::gate_bias;
    case TensorRole::kUpBias:
      return &LayerWeights::up_bias;
    case TensorRole::kDownBias:
      return &LayerWeights::down_bias;
    case TensorRole::kQNorm:
      return &LayerWeights::q_norm;
    case TensorRole::kKNorm:
      return &LayerWeights::k_norm;
  }
  return nullptr;
}

// [outer, inner], or [n] with inner = 0.
struct Shape {
  int64_t outer;
  int64_t inner;
};

Shape ShapeOf(TensorRole role, const ModelConfig& config, const LayerConfig& layer) {
  const int64_t hidden = config.hidden_dim;
  const int64_t mlp = layer.mlp_dim;
  const int64_t q = int64_t{layer.num_heads} * layer.head_dim;
  const int64_t kv = int64_t{layer.num_kv_heads} * layer.head_dim;
  switch (role) {
    case TensorRole::kAttnNorm:
    case TensorRole::kAttnPostNorm:
    case TensorRole::kMlpNorm:
    case TensorRole::kMlpPostNorm:
    case TensorRole::kOBias:
    case TensorRole::kDownBias:
      return {hidden, 0};
    case TensorRole::kQ:
      return {q, hidden};
    case TensorRole::kK:
    case TensorRole::kV:
      return {kv, hidden};
    case TensorRole::kO:
      return {hidden, q};
    case TensorRole::kQBias:
      return {q, 0};
    case TensorRole::kKBias:
    case TensorRole::kVBias:
      return {kv, 0};
    case TensorRole::kGate:
    case TensorRole::kUp:
      return {mlp, hidden};
    case TensorRole::kDown:
      return {hidden, mlp};
    case TensorRole::kGateBias:
    case TensorRole::kUpBias:
      return {mlp, 0};
    case TensorRole::kQNorm:
    case TensorRole::kKNorm:
      return {layer.head_dim, 0};
  }
  return {0, 0};
}

bool IsAttentionBias(TensorRole role) {
  return role == TensorRole::kQBias || role == TensorRole::kKBias || role == TensorRole::kVBias ||
         role == TensorRole::kOBias;
}
bool IsMlpBias(TensorRole role) {
  return role == TensorRole::kGateBias || role == TensorRole::kUpBias ||
         role == TensorRole::kDownBias;
}

bool SameBytes(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.num_bytes() == b.num_bytes() &&
         std::memcmp(a.data, b.data, a.num_bytes()) == 0;
}

std::string LayerName(std::string_view pattern, size_t layer) {
  const size_t at = pattern.find("{}");
  CHECK(at != std::string_view::npos, "{}", pattern);
  return fmt::format("{}{}{}", pattern.substr(0, at), layer, pattern.substr(at + 2));
}

// Finds and checks tensors; remembers what is missing, so that one error lists it all.
class Binder {
 public:
  explicit Binder(const WeightSource& weights) : weights_(weights) {}

  absl::StatusOr<std::optional<TensorView>> Optional(const std::string& name, Shape wanted) const {
    const std::optional<TensorView> view = weights_.Find(name);
    if (!view) {
      const std::string why = weights_.WhyUnusable(name);
      if (why.empty()) return std::optional<TensorView>();
      return Error(absl::StatusCode::kUnimplemented, "{}: tensor {}: {}", weights_.FileOf(name),
                   Printable(name), why);
    }
    const bool good = wanted.inner == 0 ? view->rank == 1 && view->shape[0] == wanted.outer
                                        : view->rank == 2 && view->shape[0] == wanted.outer &&
                                              view->shape[1] == wanted.inner;
    if (!good) {
      const std::string text = wanted.inner == 0
                                   ? fmt::format("[{}]", wanted.outer)
                                   : fmt::format("[{}, {}]", wanted.outer, wanted.inner);
      return InvalidArgument("{}: tensor {} is {}, but the configuration asks for {}",
                             weights_.FileOf(name), Printable(name), view->ToString(), text);
    }
    return view;
  }

  absl::StatusOr<std::optional<TensorView>> Needed(const std::string& name, Shape wanted) {
    ASSIGN_OR_RETURN(const std::optional<TensorView> view, Optional(name, wanted));
    if (!view) AddMissing(name);
    return view;
  }

  void AddMissing(const std::string& name) {
    if (++num_missing_ > kMaxListed) return;
    missing_ += fmt::format("{}{}", missing_.empty() ? "" : ", ", name);
  }

  // The file has a tensor that the configuration rules out.
  absl::Status RefuseIfPresent(const std::string& name, std::string_view why) const {
    if (!weights_.Find(name)) return absl::OkStatus();
    return InvalidArgument("{}: tensor {} is in the file, but the configuration has {}",
                           weights_.FileOf(name), Printable(name), why);
  }

  absl::Status Missing() const {
    if (num_missing_ == 0) return absl::OkStatus();
    return Error(absl::StatusCode::kNotFound, "{}: {} needed tensors are missing: {}{}",
                 weights_.FileOf(""), num_missing_, missing_,
                 num_missing_ > kMaxListed ? ", ..." : "");
  }

 private:
  const WeightSource& weights_;
  std::string missing_;
  size_t num_missing_ = 0;
};

// What is tied depends on what is there, as in transformers 5: only one of the two tensors: it
// serves as both. Both, with equal bytes: tied. Both and different: the flag is wrong, they are not
// tied.
absl::Status BindEmbeddings(const ModelConfig& config, const TensorNames& names, Binder& binder,
                            ModelWeights& out) {
  const Shape shape{config.vocab_size, config.hidden_dim};
  const std::string embed_name(names.embed);
  const std::string head_name(names.lm_head);
  ASSIGN_OR_RETURN(std::optional<TensorView> embed, binder.Optional(embed_name, shape));
  ASSIGN_OR_RETURN(std::optional<TensorView> head, binder.Optional(head_name, shape));
  if (config.tie_embeddings && head) {
    if (!embed || SameBytes(*embed, *head)) {
      embed = head;
      head.reset();
    }
  }
  if (!embed) binder.AddMissing(embed_name);
  if (!head && !config.tie_embeddings) binder.AddMissing(head_name);
  if (embed) out.embed = *embed;
  out.lm_head = head;
  ASSIGN_OR_RETURN(const std::optional<TensorView> norm,
                   binder.Needed(std::string(names.final_norm), {config.hidden_dim, 0}));
  if (norm) out.final_norm = *norm;
  return absl::OkStatus();
}

// What scales a bound tensor must be bound too, or the bound one means something else.
absl::Status RefuseUnknownScales(const WeightSource& weights, const TensorNames& names,
                                 size_t num_layers) {
  for (const std::string& name : weights.Names()) {
    if (!IsScaleTensor(name) || IsCacheScale(name)) continue;
    bool bound = false;
    for (size_t i = 0; i < num_layers && !bound; ++i) {
      for (const LayerTensorName& row : names.layer)
        bound = bound || LayerName(row.name, i) == name;
    }
    if (bound) continue;
    return Error(absl::StatusCode::kUnimplemented,
                 "{}: tensor {} scales weights or activations in a way that is not supported; use "
                 "the checkpoint in bfloat16 or float32, or a GGUF of it",
                 weights.FileOf(name), Printable(name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelWeights> BindWeights(const ModelConfig& config, const WeightSource& weights) {
  ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(config.architecture));
  const TensorNames names = architecture->tensor_names(config.gguf_tensor_names);
  Binder binder(weights);
  ModelWeights out;
  RETURN_IF_ERROR(BindEmbeddings(config, names, binder, out));
  out.layers.resize(config.layers.size());
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const LayerConfig& layer = config.layers[i];
    for (const LayerTensorName& row : names.layer) {
      const std::string name = LayerName(row.name, i);
      const Shape shape = ShapeOf(row.role, config, layer);
      std::optional<TensorView>& slot = out.layers[i].*MemberOf(row.role);
      const bool attention_bias = IsAttentionBias(row.role);
      if (attention_bias || IsMlpBias(row.role)) {
        if (!(attention_bias ? layer.attention_bias : layer.mlp_bias)) {
          RETURN_IF_ERROR(binder.RefuseIfPresent(
              name, attention_bias ? "attention_bias=false" : "mlp_bias=false"));
          continue;
        }
        if (config.gguf_tensor_names) {  // no flag in the file: each bias speaks for itself
          ASSIGN_OR_RETURN(slot, binder.Optional(name, shape));
          continue;
        }
      }
      ASSIGN_OR_RETURN(slot, binder.Needed(name, shape));
    }
  }
  for (const LayerTensorName& row : names.layer) {
    RETURN_IF_ERROR(binder.RefuseIfPresent(LayerName(row.name, config.layers.size()),
                                           fmt::format("{} layers", config.layers.size())));
  }
  RETURN_IF_ERROR(binder.Missing());
  RETURN_IF_ERROR(RefuseUnknownScales(weights, names, config.layers.size()));
  return out;
}

}  // namespace quire
