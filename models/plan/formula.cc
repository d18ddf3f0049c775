#include "models/plan/formula.h"

#include <algorithm>

#include "models/plan/units.h"

namespace quire {
namespace {

constexpr int64_t kStateBytes = 4;  // recurrent matrices and buffers are float32

std::string Elements(const CachePart& p) {
  const std::string heads =
      p.kv_heads == 1 ? std::string() : fmt::format("{} heads x ", p.kv_heads);
  if (p.kind == PartKind::kLatent) {
    return p.rope_dim > 0 ? fmt::format("({} latent + {} rope)", p.latent_dim, p.rope_dim)
                          : fmt::format("{} latent", p.latent_dim);
  }
  if (p.kind == PartKind::kIndexer) return fmt::format("{} (key)", p.key_dim);
  if (p.value_dim == 0) return fmt::format("{}{} (k = v)", heads, p.key_dim);
  if (p.value_dim == p.key_dim) {
    return fmt::format("2 (k, v) x {} heads x {}", p.kv_heads, p.key_dim);
  }
  return fmt::format("{}({} k + {} v)", heads, p.key_dim, p.value_dim);
}

std::string StateFormula(const CachePart& p, const KvFormat& kv) {
  std::string s;
  if (p.recurrent_elements > 0) s = fmt::format("{} x 4 B", WithCommas(p.recurrent_elements));
  if (p.conv_channels > 0) {
    s += fmt::format("{}{} x {} columns x {} B", s.empty() ? "" : " + ",
                     WithCommas(p.conv_channels), std::max<int64_t>(p.conv_kernel - 1, 0),
                     std::max<int64_t>(kv.element_bytes, 2));
  }
  return fmt::format("({})", s);
}

std::string Formula(const PartPlan& plan, const KvFormat& kv) {
  const CachePart& p = plan.part;
  const std::string layers =
      fmt::format("{} layer{} x ", plan.num_layers, plan.num_layers == 1 ? "" : "s");
  if (p.kind == PartKind::kState) return layers + StateFormula(p, kv) + " per sequence";
  std::string s = layers + Elements(p);
  if (kv.scale_bytes > 0) {
    s += fmt::format(" x {} B + {} scales x {} B", kv.element_bytes,
                     WithCommas(SaturatingProduct({plan.num_layers, VectorsPerEntry(p)})),
                     kv.scale_bytes);
  } else {
    s += fmt::format(" x {} B", kv.element_bytes);
  }
  if (p.tokens_per_entry > 1) s += fmt::format(" / {} tokens", p.tokens_per_entry);
  return s;
}

int64_t BytesOf(int64_t entries, const PartPlan& plan) {
  return SaturatingProduct({entries, plan.entry_bytes});
}

}  // namespace

int64_t FixedBytes(const CachePart& p, const KvFormat& kv) {
  const int64_t columns = std::max<int64_t>(p.conv_kernel - 1, 0);
  return SaturatingSum(
      {SaturatingProduct({p.recurrent_elements, kStateBytes}),
       SaturatingProduct({p.conv_channels, columns, std::max<int64_t>(kv.element_bytes, 2)}),
       SaturatingProduct(
           {p.buffer_elements, std::max<int64_t>(p.tokens_per_entry - 1, 0), kStateBytes}),
       SaturatingProduct({p.overlap_elements, kStateBytes})});
}

PartPlan PlanPart(const PartGroup& group, const KvFormat& kv, int64_t context) {
  const CachePart& p = group.part;
  PartPlan plan{.part = p, .num_layers = group.num_layers};
  const int64_t entry = SaturatingSum({SaturatingProduct({ElementsPerEntry(p), kv.element_bytes}),
                                       SaturatingProduct({VectorsPerEntry(p), kv.scale_bytes})});
  plan.entry_bytes = SaturatingProduct({entry, group.num_layers});
  plan.fixed_bytes = SaturatingProduct({FixedBytes(p, kv), group.num_layers});
  plan.bytes_per_token =
      static_cast<double>(plan.entry_bytes) / static_cast<double>(p.tokens_per_entry);
  plan.plain_per_token = p.plain_elements > 0
                             ? static_cast<double>(SaturatingProduct(
                                   {p.plain_elements, kv.element_bytes, group.num_layers}))
                             : plan.bytes_per_token;
  plan.published =
      p.kind != PartKind::kIndexer && p.kind != PartKind::kState && !p.beside_compressed;
  plan.held = SaturatingSum({BytesOf(EntriesAt(p, context), plan), plan.fixed_bytes});
  plan.uncapped = SaturatingSum({BytesOf(EntriesAt(p, context, false), plan), plan.fixed_bytes});
  plan.formula = Formula(plan, kv);
  return plan;
}

std::string PlainFormula(const PartPlan& plan, int64_t num_heads, const KvFormat& kv) {
  const CachePart& p = plan.part;
  if (p.plain_elements == 0) return {};
  const bool by_head =
      p.kind == PartKind::kLatent && num_heads > 0 && p.plain_elements % num_heads == 0;
  const std::string elements =
      by_head ? fmt::format("{} heads x {} (k + v)", num_heads, p.plain_elements / num_heads)
              : fmt::format("{}", p.plain_elements);
  return fmt::format("{} layers x {} x {} B", plan.num_layers, elements, kv.element_bytes);
}

}  // namespace quire
