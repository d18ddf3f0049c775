// models/plan/shapes_standard.cc -- decoders of today's common form: norms, attention with shared
// key-value heads, a gated block or experts; windows or chunks on some layers.
//
// Defaults for absent keys are those of transformers' config classes (5.16.1).
#include "models/plan/shape_builder.h"
#include "models/plan/shape_readers.h"

namespace quire {
namespace {

enum class Windows : uint8_t {
  kNone,
  kAll,        // every layer, if sliding_window is set
  kEveryNth,   // all but each `interval`-th layer
  kFromLayer,  // from max_window_layers on, if use_sliding_window
  kUnrotated,  // layers without rope, if use_sliding_window
  kChunks,     // chunks on layers with rope
};
enum class Experts : uint8_t {
  kNone,
  kAllLayers,    // num_local_experts of intermediate_size
  kSparseStep,   // num_experts of moe_intermediate_size, some layers dense
  kFirstDense,   // n_routed_experts after first_k_dense_replace dense layers, shared ones beside
  kBiased,       // router and experts with biases
  kInterleaved,  // every interleave_moe_layer_step-th layer, one shared expert beside
};
enum class Biases : uint8_t { kNone, kQkv, kQkvByKey, kAllByKey, kAllWithMlp };

// How one architecture differs from the others.
struct Traits {
  int64_t norms_per_layer = 2;
  bool norm_bias = false;
  Biases biases = Biases::kNone;
  bool mlp_bias_by_key = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool gated_mlp = true;
  bool tied = false;
  Windows windows = Windows::kNone;
  int64_t interval = 0;
  int64_t default_window = 0;
  Experts experts = Experts::kNone;
  bool shared_expert_gate = false;
};

std::vector<std::string> DefaultTypes(ShapeBuilder& b, const Traits& t) {
  const int64_t n = b.num_layers;
  switch (t.windows) {
    case Windows::kNone:
      return EveryNth(n, 0, "full_attention", "");
    case Windows::kAll:
      return EveryNth(n, 0, "sliding_attention", "");
    case Windows::kEveryNth: {
      const int64_t interval = b.keys.Has("sliding_window_pattern")
                                   ? b.keys.Need("sliding_window_pattern", kMaxLayers)
                                   : t.interval;
      return EveryNth(n, interval, "sliding_attention", "full_attention");
    }
    case Windows::kFromLayer: {
      std::vector<std::string> types = EveryNth(n, 0, "full_attention", "");
      if (!b.keys.Flag("use_sliding_window", false)) return types;
      const int64_t first = b.keys.Get("max_window_layers", 28, kMaxLayers);
      for (int64_t i = first; i < n; ++i) types[static_cast<size_t>(i)] = "sliding_attention";
      return types;
    }
    case Windows::kUnrotated:
    case Windows::kChunks: {
      std::vector<int64_t> rotated = b.keys.Numbers("no_rope_layers", n, 1);
      if (rotated.empty()) {
        const int64_t interval = b.keys.Get("no_rope_layer_interval", 4, kMaxLayers);
        for (int64_t i = 0; i < n; ++i) rotated.push_back(interval == 0 || (i + 1) % interval != 0);
      }
      const bool chunks = t.windows == Windows::kChunks;
      const bool slides = !chunks && b.keys.Flag("use_sliding_window", false);
      std::vector<std::string> types;
      for (const int64_t r : rotated) {
        types.emplace_back(chunks && r != 0              ? "chunked_attention"
                           : !chunks && slides && r == 0 ? "sliding_attention"
                                                         : "full_attention");
      }
      return types;
    }
  }
  return {};
}

void AddLayers(ShapeBuilder& b, const Traits& t) {
  const std::vector<std::string> types =
      b.LayerTypes("layer_types", DefaultTypes(b, t),
                   {"full_attention", "sliding_attention", "chunked_attention"});
  const bool windowed = t.windows != Windows::kNone && t.windows != Windows::kChunks;
  // A window that is null in the config means none; an absent one, the class's default.
  const bool null_window =
      b.keys.fields().HasKey("sliding_window") && !b.keys.Has("sliding_window");
  const int64_t window =
      windowed && !null_window ? b.keys.Get("sliding_window", t.default_window, kMaxPosition) : 0;
  const int64_t chunk =
      t.windows == Windows::kChunks ? b.keys.Get("attention_chunk_size", 8192, kMaxPosition) : 0;
  for (const std::string& type : types) {
    CachePart part = FullPart(b.attention);
    if (type == "sliding_attention") part = SlidingPart(b.attention, window);
    if (type == "chunked_attention" && chunk > 0) {
      part.kind = PartKind::kChunked;
      part.window = chunk;
    }
    b.shape.layers.push_back({.parts = {part}});
  }
}

// One layer's attention and norms, which all layers have alike.
ParameterCount AttentionAndNorms(ShapeBuilder& b, const Traits& t) {
  ParameterCount layer;
  const bool key = b.keys.Flag("attention_bias", t.biases == Biases::kAllWithMlp);
  const bool qkv = t.biases == Biases::kQkv || t.biases == Biases::kAllWithMlp ||
                   (t.biases != Biases::kNone && key);
  CountAttention(
      layer, b.hidden,
      {.sizes = b.attention,
       .qkv_bias = qkv,
       .o_bias = t.biases == Biases::kAllWithMlp || (t.biases == Biases::kAllByKey && key),
       .qk_norm = t.qk_norm});
  for (int64_t i = 0; i < t.norms_per_layer; ++i) layer.Norm(b.hidden, t.norm_bias);
  return layer;
}

// Feed-forward blocks of all layers. Returns the widest block that one token passes.
int64_t CountBlocks(ShapeBuilder& b, const Traits& t) {
  const auto dense = [&](int64_t inner) {
    ParameterCount c;
    const bool bias =
        t.biases == Biases::kAllWithMlp || (t.mlp_bias_by_key && b.keys.Flag("mlp_bias", false));
    CountMlp(c, b.hidden, inner, t.gated_mlp, bias);
    return c;
  };
  const int64_t n = b.num_layers;
  switch (t.experts) {
    case Experts::kNone: {
      const int64_t inner = b.keys.Need("intermediate_size");
      b.count.Add(dense(inner), n);
      return inner;
    }
    case Experts::kAllLayers: {
      const int64_t inner = b.keys.Need("intermediate_size");
      ParameterCount c;
      CountExperts(c, b.hidden, inner, b.keys.Need("num_local_experts", kMaxExperts));
      b.count.Add(c, n);
      return inner * b.keys.Get("num_experts_per_tok", 2, 1024);
    }
    case Experts::kBiased: {
      const int64_t inner = b.keys.Need("intermediate_size");
      const int64_t experts = b.keys.Need("num_local_experts", kMaxExperts);
      ParameterCount c;
      CountExperts(c, b.hidden, inner, experts);
      ParameterCount biases;
      biases.Vector(2 * inner);
      biases.Vector(b.hidden + 1);  // of down, of the router
      c.Add(biases, experts);
      c.Vector(b.attention.num_heads);  // sinks
      b.count.Add(c, n);
      return inner * b.keys.Get("num_experts_per_tok", 4, 1024);
    }
    case Experts::kSparseStep: {
      const int64_t experts = b.keys.NeedAny({"num_experts", "num_local_experts"}, kMaxExperts);
      const int64_t inner = b.keys.Need("moe_intermediate_size");
      const int64_t step = std::max<int64_t>(b.keys.Get("decoder_sparse_step", 1, kMaxLayers), 1);
      const std::vector<int64_t> dense_layers = b.keys.Numbers("mlp_only_layers", -1);
      ParameterCount c;
      CountExperts(c, b.hidden, inner, experts);
      if (t.shared_expert_gate) {
        CountMlp(c, b.hidden, b.keys.Need("shared_expert_intermediate_size"), true);
        c.Linear(b.hidden, 1);
      }
      for (int64_t i = 0; i < n; ++i) {
        const bool sparse =
            (i + 1) % step == 0 &&
            std::find(dense_layers.begin(), dense_layers.end(), i) == dense_layers.end();
        b.count.Add(sparse ? c : dense(b.keys.Need("intermediate_size")));
      }
      return inner * b.keys.Get("num_experts_per_tok", 8, 1024);
    }
    case Experts::kFirstDense: {
      const int64_t first = std::min(b.keys.Get("first_k_dense_replace", 1, kMaxLayers), n);
      const int64_t inner = b.keys.Need("moe_intermediate_size");
      ParameterCount c;
      CountExperts(c, b.hidden, inner, b.keys.Need("n_routed_experts", kMaxExperts));
      CountMlp(c, b.hidden, inner * b.keys.Get("n_shared_experts", 1, 1024), true);
      const int64_t wide = b.keys.Need("intermediate_size");
      b.count.Add(dense(wide), first);
      b.count.Add(c, n - first);
      return std::max(wide, inner * b.keys.Get("num_experts_per_tok", 8, 1024));
    }
    case Experts::kInterleaved: {
      const int64_t experts = b.keys.Need("num_local_experts", kMaxExperts);
      const int64_t inner = b.keys.Need("intermediate_size");
      const int64_t step = b.keys.Get("interleave_moe_layer_step", 1, kMaxLayers);
      std::vector<int64_t> sparse = b.keys.Numbers("moe_layers", -1);
      if (!b.keys.Has("moe_layers")) {
        for (int64_t i = step - 1; step > 0 && i < n; i += step) sparse.push_back(i);
      }
      ParameterCount c;
      CountExperts(c, b.hidden, inner, experts);
      CountMlp(c, b.hidden, inner, true);
      const auto num_sparse = std::min(static_cast<int64_t>(sparse.size()), n);
      const int64_t wide = b.keys.Need("intermediate_size_mlp");
      b.count.Add(c, num_sparse);
      b.count.Add(dense(wide), n - num_sparse);
      return wide;
    }
  }
  return 0;
}

absl::StatusOr<ModelShape> Read(const JsonFields& fields, const Traits& t) {
  ShapeBuilder b = StartShape(fields);
  b.CountEmbedding(t.tied);
  AddLayers(b, t);
  b.count.Add(AttentionAndNorms(b, t), b.num_layers);
  const int64_t mlp_dim = CountBlocks(b, t);
  b.count.Norm(b.hidden, t.norm_bias);
  return b.Finish(mlp_dim);
}

}  // namespace

absl::StatusOr<ModelShape> LlamaShape(const JsonFields& f) {
  return Read(f, {.biases = Biases::kAllByKey, .mlp_bias_by_key = true});
}
absl::StatusOr<ModelShape> MistralShape(const JsonFields& f) {
  return Read(f, {.windows = Windows::kAll, .default_window = 4096});
}
absl::StatusOr<ModelShape> MixtralShape(const JsonFields& f) {
  return Read(f, {.windows = Windows::kAll, .experts = Experts::kAllLayers});
}
absl::StatusOr<ModelShape> Qwen2Shape(const JsonFields& f) {
  return Read(f, {.biases = Biases::kQkv, .windows = Windows::kFromLayer, .default_window = 4096});
}
absl::StatusOr<ModelShape> Qwen2MoeShape(const JsonFields& f) {
  return Read(f, {.biases = Biases::kQkv,
                  .windows = Windows::kFromLayer,
                  .default_window = 4096,
                  .experts = Experts::kSparseStep,
                  .shared_expert_gate = true});
}
absl::StatusOr<ModelShape> Qwen3Shape(const JsonFields& f) {
  return Read(f, {.biases = Biases::kAllByKey,
                  .qk_norm = QkNorm::kPerHead,
                  .windows = Windows::kFromLayer,
                  .default_window = 4096});
}
absl::StatusOr<ModelShape> Qwen3MoeShape(const JsonFields& f) {
  return Read(f, {.biases = Biases::kAllByKey,
                  .qk_norm = QkNorm::kPerHead,
                  .windows = Windows::kFromLayer,
                  .default_window = 4096,
                  .experts = Experts::kSparseStep});
}
absl::StatusOr<ModelShape> GemmaShape(const JsonFields& f) {
  return Read(f, {.biases = Biases::kAllByKey, .tied = true});
}
absl::StatusOr<ModelShape> Gemma2Shape(const JsonFields& f) {
  return Read(f, {.norms_per_layer = 4,
                  .biases = Biases::kAllByKey,
                  .tied = true,
                  .windows = Windows::kEveryNth,
                  .interval = 2,
                  .default_window = 4096});
}
absl::StatusOr<ModelShape> Gemma3Shape(const JsonFields& f) {
  return Read(f, {.norms_per_layer = 4,
                  .biases = Biases::kAllByKey,
                  .qk_norm = QkNorm::kPerHead,
                  .tied = true,
                  .windows = Windows::kEveryNth,
                  .interval = 6,
                  .default_window = 4096});
}
absl::StatusOr<ModelShape> Phi3Shape(const JsonFields& f) {
  return Read(f, {.windows = Windows::kAll});
}
absl::StatusOr<ModelShape> SmolLm3Shape(const JsonFields& f) {
  return Read(f, {.biases = Biases::kAllByKey,
                  .mlp_bias_by_key = true,
                  .tied = true,
                  .windows = Windows::kUnrotated});
}
absl::StatusOr<ModelShape> Starcoder2Shape(const JsonFields& f) {
  return Read(f, {.norm_bias = true,
                  .biases = Biases::kAllWithMlp,
                  .gated_mlp = false,
                  .tied = true,
                  .windows = Windows::kAll});
}
absl::StatusOr<ModelShape> Olmo2Shape(const JsonFields& f) {
  return Read(f, {.biases = Biases::kAllByKey, .qk_norm = QkNorm::kWhole});
}
absl::StatusOr<ModelShape> Olmo3Shape(const JsonFields& f) {
  return Read(f, {.biases = Biases::kAllByKey,
                  .qk_norm = QkNorm::kWhole,
                  .windows = Windows::kEveryNth,
                  .interval = 4,
                  .default_window = 4096});
}
absl::StatusOr<ModelShape> Cohere2Shape(const JsonFields& f) {
  return Read(f, {.norms_per_layer = 1,
                  .biases = Biases::kAllByKey,
                  .tied = true,
                  .windows = Windows::kEveryNth,
                  .interval = 4,
                  .default_window = 4096});
}
absl::StatusOr<ModelShape> Exaone4Shape(const JsonFields& f) {
  return Read(f, {.qk_norm = QkNorm::kPerHead,
                  .windows = Windows::kEveryNth,
                  .interval = 4,
                  .default_window = 4096});
}
absl::StatusOr<ModelShape> Glm4MoeShape(const JsonFields& f) {
  return Read(f, {.biases = Biases::kQkvByKey,
                  .qk_norm = f.json()["use_qk_norm"].as_bool().value_or(false) ? QkNorm::kPerHead
                                                                               : QkNorm::kNone,
                  .experts = Experts::kFirstDense});
}
absl::StatusOr<ModelShape> MiniMaxM2Shape(const JsonFields& f) {
  return Read(f, {.qk_norm = QkNorm::kWhole, .experts = Experts::kAllLayers});
}
absl::StatusOr<ModelShape> GptOssShape(const JsonFields& f) {
  return Read(f, {.biases = Biases::kAllByKey,
                  .windows = Windows::kEveryNth,
                  .interval = 2,
                  .default_window = 128,
                  .experts = Experts::kBiased});
}
absl::StatusOr<ModelShape> Llama4Shape(const JsonFields& f) {
  return Read(
      f,
      {.biases = Biases::kAllByKey, .windows = Windows::kChunks, .experts = Experts::kInterleaved});
}

}  // namespace quire
