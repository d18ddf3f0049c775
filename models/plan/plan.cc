#include "models/plan/plan.h"

#include <algorithm>
#include <cmath>

#include "base/arena.h"
#include "kernels/attention.h"
#include "models/memory_profile.h"
#include "models/plan/formula.h"
#include "models/plan/plan_layout.h"
#include "models/plan/units.h"
#include "models/pool_sizes.h"
#include "models/weights/byte_reader.h"

namespace quire {
namespace {

constexpr KvFormat kKvFormats[] = {
    {"bf16", 2, 0}, {"f16", 2, 0}, {"f32", 4, 0}, {"fp8", 1, 0}, {"int8", 1, 2},
};
constexpr WeightFormat kWeightFormats[] = {
    {"bf16", 64}, {"f16", 64}, {"f32", 128}, {"fp8", 32}, {"int8", 34}, {"int4", 18},
};

// What configs and people also write.
std::string_view Canonical(std::string_view name) {
  if (name == "bfloat16") return "bf16";
  if (name == "float16" || name == "half") return "f16";
  if (name == "float32" || name == "float") return "f32";
  if (name == "float8_e4m3fn" || name == "fp8_e4m3") return "fp8";
  return name;
}

template <typename Format, size_t N>
absl::StatusOr<Format> Find(const Format (&formats)[N], std::string_view field,
                            std::string_view name) {
  std::string known;
  for (const Format& format : formats) {
    if (format.name == Canonical(name)) return format;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", format.name);
  }
  return InvalidArgument("{}={} is not known; known: {}", field, Printable(name), known);
}

absl::Status CheckOptions(const PlanOptions& o) {
  const auto check = [](const char* field, int64_t value, int64_t min, int64_t max) {
    if (value >= min && value <= max) return absl::OkStatus();
    return InvalidArgument("{}={} must be in [{}, {}]", field, value, min, max);
  };
  RETURN_IF_ERROR(check("memory", o.memory, 0, 1000000000000000));
  RETURN_IF_ERROR(check("context", o.context, 0, 1 << 30));
  RETURN_IF_ERROR(check("concurrency", o.concurrency, 0, 1 << 20));
  RETURN_IF_ERROR(check("block_size", o.block_size, 0, 4096));
  RETURN_IF_ERROR(check("max_num_batched_tokens", o.max_num_batched_tokens, 1, 1 << 20));
  RETURN_IF_ERROR(check("max_num_seqs", o.max_num_seqs, 1, 1 << 20));
  RETURN_IF_ERROR(check("num_threads", o.num_threads, 1, 1024));
  if (!(o.memory_utilization >= 0.01 && o.memory_utilization <= 1)) {
    return InvalidArgument("memory_utilization={} must be in [0.01, 1]", o.memory_utilization);
  }
  return absl::OkStatus();
}

absl::Status CountWeights(ModelPlan& plan) {
  const ModelShape& shape = plan.shape;
  if (shape.weight_bytes > 0 && plan.options.weight_dtype.empty()) {
    plan.weights = shape.weight_bytes;
    plan.weight_formula = fmt::format("as in the file ({})", shape.weight_type);
    return absl::OkStatus();
  }
  std::string_view type = plan.options.weight_dtype;
  if (type.empty()) type = shape.weight_type.empty() ? "bf16" : std::string_view(shape.weight_type);
  ASSIGN_OR_RETURN(const WeightFormat format, FindWeightFormat(type));
  plan.weights = SaturatingProduct({shape.parameters, format.bytes_per_32}) / 32;
  const bool whole = format.bytes_per_32 % 32 == 0;
  plan.weight_formula =
      fmt::format("{} parameters x {} B ({})", WithCommas(shape.parameters),
                  whole ? fmt::format("{}", format.bytes_per_32 / 32)
                        : fmt::format("{}", static_cast<double>(format.bytes_per_32) / 32),
                  format.name);
  return absl::OkStatus();
}

int32_t Tokens(int64_t n) { return static_cast<int32_t>(n); }

// Blocks of every pool as the daemon would take them, and how many sequences they hold at once.
void FillRoom(const ModelPlan& plan, const CacheLayout& layout, RoomPlan& room) {
  room.pool = std::max<int64_t>(room.budget - room.weights - room.activations - room.reserve, 0);
  if (layout.pools.empty()) return;  // nothing is cached
  const PlanOptions& o = plan.options;
  const int64_t seqs = o.concurrency > 0 ? o.concurrency : o.max_num_seqs;
  const PoolMix mix{.max_model_len = Tokens(plan.context),
                    .max_num_seqs = Tokens(seqs),
                    .max_step_tokens = Tokens(o.max_num_batched_tokens)};
  const std::vector<int32_t> pages = PoolPages(layout, mix, MainBlocksIn(layout, mix, room.pool));
  const std::vector<int32_t> each = PagesOfSequence(layout, mix.max_model_len, 1);
  const auto main = static_cast<size_t>(MainPool(layout));
  room.sequences = kTooLarge;
  for (size_t p = 0; p < pages.size(); ++p) {
    room.pools.push_back({pages[p], static_cast<int64_t>(layout.pools[p].page_bytes), each[p]});
    if (each[p] > 0) room.sequences = std::min<int64_t>(room.sequences, pages[p] / each[p]);
  }
  if (room.sequences == kTooLarge) room.sequences = 0;
  if (main > 0) std::swap(room.pools[0], room.pools[main]);
  room.tokens = SaturatingProduct({room.sequences, plan.context});
}

// The bare quotient, without blocks: what is left over what one sequence holds.
void FillPlainRoom(const ModelPlan& plan, RoomPlan& room) {
  room.pool = std::max<int64_t>(room.budget - room.weights, 0);
  room.sequences = room.pool / std::max<int64_t>(plan.held_at_context, 1);
  room.tokens = SaturatingProduct({room.sequences, plan.context});
}

void PlanMemory(const CacheLayout& layout, ModelPlan& plan) {
  const PlanOptions& o = plan.options;
  if (o.memory == 0) return;
  RoomPlan& plain = plan.nothing_reserved.emplace();
  plain.budget = o.memory;
  plain.weights = plan.weights;
  FillPlainRoom(plan, plain);
  if (o.rule == PlanRule::kQuire) {
    RoomPlan& room = plan.by_quire.emplace();
    room.budget = static_cast<int64_t>(static_cast<double>(o.memory) * o.memory_utilization);
    room.weights = plan.weights;
    const int64_t rows = std::min(o.max_num_seqs, o.max_num_batched_tokens);
    room.activation_parts =
        ActivationParts(plan.shape, o.max_num_batched_tokens, rows, o.num_threads);
    for (const RoomPlan::Named& part : room.activation_parts) {
      room.activations = SaturatingSum({room.activations, part.bytes});
    }
    room.reserve = ReserveBytes(o.num_threads, plan.shape.activations.vocab_size);
    FillRoom(plan, layout, room);
  }
  if (o.rule == PlanRule::kTransformers) {
    absl::StatusOr<TransformersInputs> in = TransformersInputsOf(plan.shape);
    if (!in.ok()) {
      plan.by_transformers = in.status();
      return;
    }
    in->element_bytes = plan.kv.element_bytes;
    in->block_size = o.block_size > 0 ? o.block_size : 256;
    in->available_memory = static_cast<int64_t>(
        static_cast<double>(std::max<int64_t>(o.memory - plan.weights, 0)) * o.memory_utilization);
    plan.transformers_inputs = *in;
    plan.by_transformers = PlanByTransformers(*in);
  }
}

}  // namespace

absl::StatusOr<KvFormat> FindKvFormat(std::string_view name) {
  return Find(kKvFormats, "kv_dtype", name);
}

absl::StatusOr<WeightFormat> FindWeightFormat(std::string_view name) {
  return Find(kWeightFormats, "weight_dtype", name);
}

std::vector<RoomPlan::Named> ActivationParts(const ModelShape& shape, int64_t num_tokens,
                                             int64_t num_rows, int64_t num_threads) {
  const ActivationShape& a = shape.activations;
  const auto tokens = static_cast<size_t>(num_tokens);
  const auto rows = static_cast<size_t>(num_rows);
  const auto width = [](int64_t n) { return static_cast<size_t>(n); };
  // A dry arena rounds as the decoder's does (models/decoder.cc takes the same, in this order).
  Arena arena;
  arena.Purpose("residual");
  arena.Take<float>(tokens * width(a.hidden_dim));
  arena.Take<float>(tokens * width(a.hidden_dim));
  arena.Purpose("qkv");
  arena.Take<float>(tokens * width(a.q_dim));
  arena.Take<float>(tokens * width(a.kv_dim));
  arena.Take<float>(tokens * width(a.kv_dim));
  arena.Purpose("attention");
  arena.Take<float>(tokens * width(a.q_dim));
  arena.Purpose("mlp");
  arena.Take<float>(tokens * width(a.mlp_dim));
  arena.Take<float>(tokens * width(a.mlp_dim));
  arena.Purpose("rope");
  for (const int64_t dim : a.rotary_dims) {
    arena.Take<float>(tokens * width(dim / 2));
    arena.Take<float>(tokens * width(dim / 2));
  }
  arena.Purpose("logits");
  arena.Take<float>(rows * width(a.hidden_dim));
  arena.Take<float>(rows * width(a.vocab_size));
  arena.Purpose("attention");
  size_t workspace = 0;
  const kernels::AttentionBackend* const flash = *kernels::FindAttention("flash");
  for (const PartGroup& group : GroupParts(shape)) {
    const CachePart& p = group.part;
    if (p.kind == PartKind::kState || p.kind == PartKind::kIndexer || shape.num_heads < 1) continue;
    const bool latent = p.kind == PartKind::kLatent;
    const int64_t key_dim = latent ? p.latent_dim + p.rope_dim : p.key_dim;
    const int64_t value_dim = latent ? p.latent_dim : p.value_dim > 0 ? p.value_dim : p.key_dim;
    const kernels::AttentionShape attention{
        .num_heads = static_cast<int32_t>(shape.num_heads),
        .num_kv_heads = static_cast<int32_t>(latent ? 1 : p.kv_heads),
        .head_dim = static_cast<int32_t>(key_dim),
        .head_dim_v = static_cast<int32_t>(value_dim)};
    kernels::AttentionPlan work;
    flash->plan({}, attention, static_cast<int32_t>(num_threads), work);
    workspace = std::max(workspace, work.workspace_bytes);
  }
  arena.Take<std::byte>(workspace);
  std::vector<RoomPlan::Named> parts;
  for (const Arena::Part& part : arena.PeakParts()) {
    parts.push_back({part.what, static_cast<int64_t>(part.bytes)});
  }
  return parts;
}

absl::StatusOr<ModelPlan> PlanModel(const ModelShape& shape, const PlanOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  RETURN_IF_ERROR(CheckShape(shape));
  ModelPlan plan;
  plan.shape = shape;
  plan.options = options;
  ASSIGN_OR_RETURN(plan.kv, FindKvFormat(options.kv_dtype));
  RETURN_IF_ERROR(CountWeights(plan));
  constexpr int64_t kContext = 4096;
  plan.context = options.context > 0      ? options.context
                 : shape.max_position > 0 ? std::min(kContext, shape.max_position)
                                          : kContext;
  plan.block_size = options.block_size > 0 ? options.block_size : 16;
  double published = 0;
  for (const PartGroup& group : GroupParts(shape)) {
    PartPlan part = PlanPart(group, plan.kv, plan.context);
    const bool windowed =
        part.part.kind == PartKind::kSliding || part.part.kind == PartKind::kChunked;
    if (part.published) {
      plan.published_per_token += part.bytes_per_token;
      plan.plain_per_token += part.plain_per_token;
      published += part.bytes_per_token * static_cast<double>(plan.context);
    }
    if (!windowed) plan.growth_per_token += part.bytes_per_token;
    plan.held_at_context = SaturatingSum({plan.held_at_context, part.held});
    plan.parts.push_back(std::move(part));
  }
  plan.published_at_context =
      static_cast<int64_t>(std::min(published, static_cast<double>(kTooLarge)));
  if (plan.growth_per_token > 0) {
    plan.outgrown_at =
        static_cast<int64_t>(static_cast<double>(plan.weights) / plan.growth_per_token);
  }
  // transformers' blocks may have sizes that ours don't.
  const int64_t block_size = options.rule == PlanRule::kTransformers ? 16 : plan.block_size;
  const absl::StatusOr<CacheLayout> layout = PlanLayout(shape, plan.kv, block_size);
  if (!layout.ok()) return Annotate(layout.status(), shape.name);
  const std::vector<int32_t> pages = PagesOfSequence(*layout, Tokens(plan.context), 1);
  plan.paged_at_context = BytesOfPools(*layout, pages);
  PlanMemory(*layout, plan);
  return plan;
}

}  // namespace quire
