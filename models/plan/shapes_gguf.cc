#include "models/plan/shapes_gguf.h"

#include <algorithm>

#include "models/config_reader.h"
#include "models/plan/shape_builder.h"
#include "models/weights/main_format.h"

namespace quire {
namespace {

enum class Recurrent : uint8_t { kNone, kMamba1, kMamba2, kBeside };

// Values of general.architecture. Every `interval`-th layer is full where attention.sliding_window
// is set; 0: all have the window, 1: the key means nothing for the cache.
struct GgufForm {
  std::string_view name;
  int64_t interval = 1;
  Recurrent recurrent = Recurrent::kNone;
  bool mlp_layers = false;  // some layers neither attend nor recur
};

constexpr GgufForm kForms[] = {
    {"llama", 0},
    {"phi3", 0},
    {"gemma"},
    {"gemma2", 2},
    {"gemma3", 6},
    {"gemma3n", 5},
    {"cohere2", 4},
    {"exaone4", 4},
    {"olmo2", 4},
    {"gpt-oss", 2},
    {"qwen2"},
    {"qwen2moe"},
    {"qwen3"},
    {"qwen3moe"},
    {"smollm3"},
    {"starcoder2"},
    {"glm4moe"},
    {"minimax-m2"},
    {"deepseek2"},
    {"gpt2"},
    {"gptneox"},
    {"falcon"},
    {"starcoder"},
    {"mamba", 1, Recurrent::kMamba1},
    {"mamba2", 1, Recurrent::kMamba2},
    {"jamba", 1, Recurrent::kMamba1},
    {"granitehybrid", 1, Recurrent::kMamba2},
    {"nemotron_h", 1, Recurrent::kMamba2, true},
    {"falcon-h1", 1, Recurrent::kBeside},
};

absl::StatusOr<const GgufForm*> FindForm(const std::string& file, const std::string& name) {
  std::string known;
  for (const GgufForm& form : kForms) {
    if (form.name == name) return &form;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", form.name);
  }
  return Error(absl::StatusCode::kUnimplemented,
               "{}: general.architecture=\"{}\" is not known; known: {}", file, Printable(name),
               known);
}

absl::StatusOr<CachePart> StateOf(const GgufFields& fields, Recurrent kind) {
  ASSIGN_OR_RETURN(const int64_t inner, fields.Int("ssm.inner_size", std::nullopt, 1, kMaxWidth));
  ASSIGN_OR_RETURN(const int64_t state, fields.Int("ssm.state_size", std::nullopt, 1, kMaxWidth));
  ASSIGN_OR_RETURN(const int64_t kernel, fields.Int("ssm.conv_kernel", std::nullopt, 1, 1024));
  ASSIGN_OR_RETURN(const int64_t groups, fields.Int("ssm.group_count", 1, 0, kMaxHeads));
  const int64_t extra = kind == Recurrent::kMamba1 ? 0 : 2 * groups * state;
  return StatePart(SaturatingProduct({inner, state}), inner + extra, kernel);
}

struct Dims {
  int64_t key = 0;
  int64_t value = 0;
  int64_t latent = 0;
  int64_t rope = 0;
  int64_t latent_heads_dim = 0;  // key and value of one head, expanded
};

absl::StatusOr<Dims> DimsOf(const GgufFields& fields, int64_t hidden, int64_t heads) {
  Dims d;
  const int64_t fallback = heads > 0 ? hidden / heads : 0;
  ASSIGN_OR_RETURN(d.key, fields.Int("attention.key_length", fallback, 0, kMaxWidth));
  ASSIGN_OR_RETURN(d.value, fields.Int("attention.value_length", d.key, 0, kMaxWidth));
  ASSIGN_OR_RETURN(d.latent, fields.Int("attention.kv_lora_rank", 0, 0, kMaxWidth));
  ASSIGN_OR_RETURN(d.rope, fields.Int("rope.dimension_count", d.key, 0, kMaxWidth));
  if (d.latent > 0) {
    // Newer files give the sizes of the absorbed form there and the heads' own in these two.
    ASSIGN_OR_RETURN(const int64_t key,
                     fields.Int("attention.key_length_mla", d.key, 0, kMaxWidth));
    ASSIGN_OR_RETURN(const int64_t value,
                     fields.Int("attention.value_length_mla", d.value, 0, kMaxWidth));
    d.latent_heads_dim = key + value;
  }
  return d;
}

}  // namespace

absl::StatusOr<ModelShape> ReadGgufShape(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::string name, file.GetString("general.architecture"));
  ASSIGN_OR_RETURN(const GgufForm* const form, FindForm(file.file_name(), name));
  const GgufFields fields(file, name);
  ModelShape shape;
  shape.name = file.file_name();
  shape.architecture = name;
  ASSIGN_OR_RETURN(const int64_t hidden,
                   fields.Int("embedding_length", std::nullopt, 1, kMaxWidth));
  ASSIGN_OR_RETURN(const int64_t num_layers,
                   fields.Int("block_count", std::nullopt, 1, kMaxLayers));
  const auto n = static_cast<size_t>(num_layers);
  ASSIGN_OR_RETURN(shape.max_position, fields.Int("context_length", 0, 0, kMaxPosition));
  const std::vector<int64_t> none(n, 0);
  ASSIGN_OR_RETURN(const std::vector<int64_t> heads,
                   fields.PerLayer("attention.head_count", none, n, 0, kMaxHeads));
  ASSIGN_OR_RETURN(const std::vector<int64_t> kv_heads,
                   fields.PerLayer("attention.head_count_kv", heads, n, 0, kMaxHeads));
  ASSIGN_OR_RETURN(const std::vector<int64_t> mlp,
                   fields.PerLayer("feed_forward_length", none, n, 0, kMaxWidth));
  ASSIGN_OR_RETURN(const int64_t window,
                   fields.Int("attention.sliding_window", 0, 0, kMaxPosition));
  ASSIGN_OR_RETURN(const std::vector<bool> full,
                   fields.Exceptions("attention.sliding_window_pattern", form->interval, n));
  ASSIGN_OR_RETURN(const int64_t shared,
                   fields.Int("attention.shared_kv_layers", 0, 0, num_layers));
  shape.num_heads = *std::max_element(heads.begin(), heads.end());
  ASSIGN_OR_RETURN(const Dims dims, DimsOf(fields, hidden, shape.num_heads));
  CachePart state;
  if (form->recurrent != Recurrent::kNone) {
    ASSIGN_OR_RETURN(state, StateOf(fields, form->recurrent));
  }
  ActivationShape& a = shape.activations;
  for (size_t i = 0; i < n; ++i) {
    LayerShape layer;
    const bool attends = kv_heads[i] > 0;
    if (attends && static_cast<int64_t>(i) < num_layers - shared) {
      CachePart part{.kind = PartKind::kFull,
                     .kv_heads = kv_heads[i],
                     .key_dim = dims.key,
                     .value_dim = dims.value};
      if (dims.latent > 0) {
        part = {.kind = PartKind::kLatent,
                .latent_dim = dims.latent,
                .rope_dim = dims.rope,
                .plain_elements = SaturatingProduct({heads[i], dims.latent_heads_dim})};
      } else if (window > 0 && !full[i]) {
        part.kind = PartKind::kSliding;
        part.window = window;
      }
      layer.parts.push_back(part);
    } else if (attends) {
      for (size_t j = i; j-- > 0 && layer.shared_from < 0;) {
        if (!shape.layers[j].parts.empty() && full[j] == full[i]) {
          layer.shared_from = static_cast<int32_t>(j);
        }
      }
    }
    // Hybrids mark their other layers by 0 heads.
    const bool recurs =
        form->recurrent == Recurrent::kBeside ||
        (form->recurrent != Recurrent::kNone && !attends && !(form->mlp_layers && mlp[i] > 0));
    if (recurs) layer.parts.push_back(state);
    a.q_dim = std::max(a.q_dim, heads[i] * dims.key);
    a.kv_dim = std::max(a.kv_dim, kv_heads[i] * std::max(dims.key, dims.value));
    a.mlp_dim = std::max(a.mlp_dim, mlp[i]);
    shape.layers.push_back(std::move(layer));
  }
  a.hidden_dim = hidden;
  a.rotary_dims = {dims.rope};
  const std::optional<TensorView> embedding = file.Find("token_embd.weight");
  a.vocab_size = embedding && embedding->rank == 2 ? embedding->shape[0] : 0;
  for (const std::string& tensor : file.Names()) {
    if (const std::optional<TensorView> view = file.Find(tensor)) {
      shape.parameters = SaturatingSum({shape.parameters, view->num_elements()});
    }
  }
  shape.weight_bytes = static_cast<int64_t>(file.bytes());
  shape.weight_type = MainFormat(file);
  RETURN_IF_ERROR(CheckShape(shape));
  return shape;
}

}  // namespace quire
