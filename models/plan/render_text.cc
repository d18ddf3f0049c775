// models/plan/render_text.cc -- see render.h: the table.
#include <algorithm>
#include <cmath>

#include "models/plan/formula.h"
#include "models/plan/render.h"
#include "models/plan/units.h"

namespace quire {
namespace {

// One line: what it says, and how that was computed.
struct Cell {
  std::string label;
  std::string value;
  std::string formula;
};

// Lines under one heading, for one model.
struct Section {
  std::string heading;
  std::vector<Cell> cells;
};

std::string PerTokenText(double bytes) {
  if (bytes == std::floor(bytes)) return BytesText(static_cast<int64_t>(bytes));
  return fmt::format("{:.1f} B", bytes);
}

// "sliding", "sliding beside compressed"; distinct parts of one kind are numbered.
std::vector<std::string> PartLabels(const ModelPlan& plan) {
  std::vector<std::string> labels;
  for (const PartPlan& part : plan.parts) {
    std::string label(NameOf(part.part.kind));
    if (part.part.tokens_per_entry > 1) label += fmt::format(" 1/{}", part.part.tokens_per_entry);
    if (part.part.window > 0) label += fmt::format(" {}", part.part.window);
    if (part.part.beside_compressed) label += " beside";
    const std::string first = label;
    for (int n = 2; std::find(labels.begin(), labels.end(), label) != labels.end(); ++n) {
      label = fmt::format("{} ({})", first, n);
    }
    labels.push_back(label);
  }
  return labels;
}

Section ModelSection(const ModelPlan& plan) {
  const ModelShape& s = plan.shape;
  Section out{"", {}};
  out.cells.push_back({"architecture", s.architecture, ""});
  int64_t shared = 0;
  for (const LayerShape& layer : s.layers) shared += layer.shared_from >= 0 ? 1 : 0;
  out.cells.push_back({"layers", fmt::format("{}", s.layers.size()),
                       shared > 0 ? fmt::format("{} read another layer's cache", shared) : ""});
  out.cells.push_back({"parameters", WithCommas(s.parameters), ""});
  out.cells.push_back({"weights",
                       fmt::format("{} ({})", DecimalText(plan.weights), BinaryText(plan.weights)),
                       plan.weight_formula});
  for (const std::string& note : s.notes) out.cells.push_back({"note", note, ""});
  return out;
}

Section PerTokenSection(const ModelPlan& plan, const std::vector<std::string>& labels) {
  Section out{
      fmt::format("cache of one token ({}, {} B per element)", plan.kv.name, plan.kv.element_bytes),
      {}};
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    const PartPlan& p = plan.parts[i];
    const bool state = p.part.kind == PartKind::kState;
    std::string value = state ? "0 B" : PerTokenText(p.bytes_per_token);
    if (!p.published && !state) value += " *";
    out.cells.push_back({labels[i], value, p.formula});
  }
  std::string sum;
  for (const PartPlan& p : plan.parts) {
    if (p.published) sum += fmt::format("{}{:g}", sum.empty() ? "" : " + ", p.bytes_per_token);
  }
  out.cells.push_back({"bytes per token", PerTokenText(plan.published_per_token),
                       plan.parts.size() > 1 ? sum : std::string()});
  if (plan.growth_per_token != plan.published_per_token) {
    out.cells.push_back({"growth per token", PerTokenText(plan.growth_per_token),
                         "of a long sequence: windows are full, all else grows"});
  }
  if (plan.plain_per_token != plan.published_per_token) {
    std::string formula;
    for (const PartPlan& p : plan.parts) {
      if (!p.published) continue;
      const std::string plain = PlainFormula(p, plan.shape.num_heads, plan.kv);
      formula +=
          fmt::format("{}{}", formula.empty() ? "" : " + ", plain.empty() ? p.formula : plain);
    }
    out.cells.push_back({"uncompressed", PerTokenText(plan.plain_per_token), formula});
  }
  return out;
}

std::string HeldFormula(const PartPlan& p, int64_t context) {
  const CachePart& part = p.part;
  if (part.kind == PartKind::kState) return p.formula;
  const int64_t entries = EntriesAt(part, context);
  const bool windowed = part.kind == PartKind::kSliding || part.kind == PartKind::kChunked;
  std::string s = fmt::format("{}{} x {} B", WithCommas(entries),
                              windowed                    ? " past tokens"
                              : part.tokens_per_entry > 1 ? " entries"
                                                          : " tokens",
                              WithCommas(p.entry_bytes));
  if (p.fixed_bytes > 0) s += fmt::format(" + {} of buffers", BinaryText(p.fixed_bytes));
  return s;
}

Section SequenceSection(const ModelPlan& plan, const std::vector<std::string>& labels) {
  Section out{fmt::format("one sequence of {} tokens", WithCommas(plan.context)), {}};
  int64_t published_capped = 0;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    const PartPlan& p = plan.parts[i];
    out.cells.push_back({"held: " + labels[i], BytesText(p.held), HeldFormula(p, plan.context)});
    if (p.part.kind != PartKind::kIndexer && p.part.kind != PartKind::kState) {
      published_capped = SaturatingSum({published_capped, p.held - p.fixed_bytes});
    }
  }
  if (plan.parts.size() > 1) {
    out.cells.push_back({"keys and values", BytesText(published_capped),
                         "windows capped; no indexer, state or buffers"});
    out.cells.push_back({"held in all", BytesText(plan.held_at_context), "everything"});
  }
  out.cells.push_back({"uncapped", BytesText(plan.published_at_context),
                       fmt::format("{} B x {}: as papers count, windows at full length",
                                   plan.published_per_token == std::floor(plan.published_per_token)
                                       ? WithCommas(static_cast<int64_t>(plan.published_per_token))
                                       : fmt::format("{:.2f}", plan.published_per_token),
                                   WithCommas(plan.context))});
  out.cells.push_back(
      {"in pages", BytesText(plan.paged_at_context),
       fmt::format("whole blocks of {} tokens; states with their snapshots",
                   plan.options.rule == PlanRule::kTransformers ? 16 : plan.block_size)});
  if (plan.options.concurrency > 0) {
    out.cells.push_back(
        {"all sequences",
         BytesText(SaturatingProduct({plan.paged_at_context, plan.options.concurrency})),
         fmt::format("{} of them, in pages", plan.options.concurrency)});
  }
  if (plan.outgrown_at > 0) {
    out.cells.push_back({"outgrows weights",
                         fmt::format("at {} tokens", WithCommas(plan.outgrown_at)),
                         fmt::format("{} B / {:g} B per token, all sequences together",
                                     WithCommas(plan.weights), plan.growth_per_token)});
  } else {
    out.cells.push_back({"outgrows weights", "never", "nothing grows with the sequence"});
  }
  return out;
}

std::string FitText(const RoomPlan& room, const ModelPlan& plan) {
  if (plan.options.concurrency == 0) return fmt::format("{}", room.sequences);
  return fmt::format("{}: {} {}", room.sequences, plan.options.concurrency,
                     room.sequences >= plan.options.concurrency ? "fit" : "do not fit");
}

void AddRoom(const RoomPlan& room, const ModelPlan& plan, Section& out) {
  for (size_t p = 0; p < room.pools.size(); ++p) {
    const RoomPlan::Pool& pool = room.pools[p];
    out.cells.push_back({p == 0 ? std::string("blocks") : fmt::format("blocks, pool {}", p + 1),
                         WithCommas(pool.num_blocks),
                         fmt::format("{} each, {} a sequence", BinaryText(pool.block_bytes),
                                     WithCommas(pool.per_sequence))});
  }
  const int64_t each = room.pools.empty() ? plan.held_at_context : plan.paged_at_context;
  out.cells.push_back(
      {"sequences", FitText(room, plan),
       fmt::format("of {} each; {} tokens in all", BinaryText(each), WithCommas(room.tokens))});
}

std::vector<Section> MemorySections(const ModelPlan& plan) {
  std::vector<Section> out;
  if (!plan.nothing_reserved) return out;
  const RoomPlan& plain = *plan.nothing_reserved;
  Section& first = out.emplace_back(
      Section{fmt::format("{} with nothing reserved", BinaryText(plan.options.memory)), {}});
  first.cells.push_back(
      {"left", BytesText(plain.pool),
       fmt::format("{} - {} of weights", BinaryText(plain.budget), BinaryText(plain.weights))});
  AddRoom(plain, plan, first);
  if (plan.by_quire) {
    const RoomPlan& room = *plan.by_quire;
    Section& s = out.emplace_back(
        Section{fmt::format("{} by Quire's rule", BinaryText(plan.options.memory)), {}});
    s.cells.push_back({"budget", BinaryText(room.budget),
                       fmt::format("memory x {}", plan.options.memory_utilization)});
    s.cells.push_back({"- weights", BinaryText(room.weights), ""});
    std::string parts;
    for (const RoomPlan::Named& part : room.activation_parts) {
      parts += fmt::format(", {} {}", part.what, BinaryText(part.bytes));
    }
    s.cells.push_back(
        {"- activations", BinaryText(room.activations),
         fmt::format("a step of {} tokens and {} sequences{}", plan.options.max_num_batched_tokens,
                     std::min(plan.options.max_num_seqs, plan.options.max_num_batched_tokens),
                     parts)});
    s.cells.push_back(
        {"- reserve", BinaryText(room.reserve),
         fmt::format("64 MiB + {} threads x vocabulary x 16 B", plan.options.num_threads)});
    s.cells.push_back({"= pool", BinaryText(room.pool), ""});
    AddRoom(room, plan, s);
  }
  if (plan.by_transformers) {
    const absl::StatusOr<TransformersPlan>& r = *plan.by_transformers;
    const TransformersInputs& in = plan.transformers_inputs;
    Section& s = out.emplace_back(
        Section{fmt::format("{} by transformers' rule", BinaryText(plan.options.memory)), {}});
    if (!r.ok()) {
      s.cells.push_back({"refused", Message(r.status()), ""});
      return out;
    }
    s.cells.push_back({"available", BinaryText(in.available_memory),
                       fmt::format("(memory - weights) x {}", plan.options.memory_utilization)});
    s.cells.push_back({"batch tokens", WithCommas(r->max_batch_tokens), ""});
    s.cells.push_back({"blocks", WithCommas(r->num_blocks),
                       fmt::format("of {} tokens; {} groups of {} layers, {} masks", in.block_size,
                                   in.num_groups, in.group_size, in.num_masks)});
    s.cells.push_back({"footprint", BinaryText(r->footprint), "m M + n N + c (M N + M^2)"});
  }
  return out;
}

std::vector<Section> SectionsOf(const ModelPlan& plan) {
  const std::vector<std::string> labels = PartLabels(plan);
  std::vector<Section> out{ModelSection(plan), PerTokenSection(plan, labels),
                           SequenceSection(plan, labels)};
  for (Section& section : MemorySections(plan)) out.push_back(std::move(section));
  return out;
}

// All labels of the models' k-th sections, each after the one that it follows in its own model.
std::vector<std::string> MergeLabels(const std::vector<std::vector<Section>>& models, size_t k) {
  std::vector<std::string> labels;
  for (const std::vector<Section>& sections : models) {
    if (k >= sections.size()) continue;
    size_t at = 0;
    for (const Cell& cell : sections[k].cells) {
      const auto it = std::find(labels.begin(), labels.end(), cell.label);
      if (it != labels.end()) {
        at = static_cast<size_t>(it - labels.begin()) + 1;
      } else {
        labels.insert(labels.begin() + static_cast<std::ptrdiff_t>(at), cell.label);
        ++at;
      }
    }
  }
  return labels;
}

std::string OneModel(const ModelPlan& plan) {
  std::string out = plan.shape.name + "\n";
  for (const Section& section : SectionsOf(plan)) {
    if (!section.heading.empty()) out += fmt::format("\n{}\n", section.heading);
    for (const Cell& cell : section.cells) {
      out += fmt::format("  {:<26}{}{}\n", cell.label, cell.value,
                         cell.formula.empty() ? "" : "   = " + cell.formula);
    }
  }
  return out;
}

std::string SideBySide(const std::vector<ModelPlan>& plans) {
  std::vector<std::vector<Section>> models;
  std::vector<size_t> widths;
  for (const ModelPlan& plan : plans) {
    models.push_back(SectionsOf(plan));
    size_t width = plan.shape.name.size();
    for (const Section& section : models.back()) {
      for (const Cell& cell : section.cells) width = std::max(width, cell.value.size());
    }
    widths.push_back(std::min<size_t>(width, 48) + 2);
  }
  const auto row = [&](const std::string& label, const std::vector<std::string>& values) {
    std::string line = fmt::format("{:<28}", label);
    for (size_t m = 0; m < values.size(); ++m) line += fmt::format("{:<{}}", values[m], widths[m]);
    line.resize(line.find_last_not_of(' ') + 1);
    return line + "\n";
  };
  std::vector<std::string> names;
  for (const ModelPlan& plan : plans) names.push_back(plan.shape.name);
  std::string out = row("", names);
  size_t num_sections = 0;
  for (const auto& sections : models) num_sections = std::max(num_sections, sections.size());
  for (size_t k = 0; k < num_sections; ++k) {
    // Where models differ in a heading (contexts by default), each column has its own.
    std::vector<std::string> headings;
    for (const auto& sections : models)
      headings.push_back(k < sections.size() ? sections[k].heading : "");
    const bool same = std::all_of(headings.begin(), headings.end(),
                                  [&](const std::string& h) { return h == headings[0]; });
    if (k > 0) out += same ? fmt::format("\n{}\n", headings[0]) : "\n" + row("", headings);
    for (const std::string& label : MergeLabels(models, k)) {
      std::vector<std::string> values;
      for (const auto& sections : models) {
        std::string value = "-";
        if (k < sections.size()) {
          for (const Cell& cell : sections[k].cells) {
            if (cell.label == label) value = cell.value;
          }
        }
        values.push_back(value);
      }
      out += row("  " + label, values);
    }
  }
  out += "\nformulas\n";
  for (size_t m = 0; m < plans.size(); ++m) {
    out += fmt::format("  {}: weights {}\n", plans[m].shape.name, plans[m].weight_formula);
    const std::vector<std::string> labels = PartLabels(plans[m]);
    for (size_t i = 0; i < labels.size(); ++i) {
      out += fmt::format("    {:<24}{}\n", labels[i], plans[m].parts[i].formula);
    }
  }
  return out;
}

}  // namespace

std::string PlanText(const std::vector<ModelPlan>& plans) {
  std::string out = plans.size() == 1 ? OneModel(plans[0]) : SideBySide(plans);
  for (const ModelPlan& plan : plans) {
    const bool starred = std::any_of(plan.parts.begin(), plan.parts.end(), [](const PartPlan& p) {
      return !p.published && p.part.kind != PartKind::kState;
    });
    if (starred) {
      out +=
          "\n* held, but not in what papers count per token: indexer keys and windows beside "
          "compressed entries\n";
      break;
    }
  }
  return out;
}

}  // namespace quire
