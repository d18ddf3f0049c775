// models/plan/render_json.cc -- see render.h: JSON.
#include "base/json.h"
#include "models/plan/formula.h"
#include "models/plan/render.h"

namespace quire {
namespace {

void Number(JsonWriter& w, std::string_view key, int64_t value) {
  w.Key(key);
  w.Int(value);
}

void Text(JsonWriter& w, std::string_view key, std::string_view value) {
  w.Key(key);
  w.String(value);
}

void Real(JsonWriter& w, std::string_view key, double value) {
  w.Key(key);
  w.Double(value);
}

void Part(JsonWriter& w, const ModelPlan& plan, const PartPlan& p) {
  w.BeginObject();
  Text(w, "kind", NameOf(p.part.kind));
  Number(w, "layers", p.num_layers);
  Text(w, "formula", p.formula);
  Real(w, "bytes_per_token", p.bytes_per_token);
  Number(w, "fixed_bytes", p.fixed_bytes);
  if (p.part.window > 0) Number(w, "window", p.part.window);
  if (p.part.tokens_per_entry > 1) Number(w, "tokens_per_entry", p.part.tokens_per_entry);
  w.Key("published");
  w.Bool(p.published);
  if (p.part.plain_elements > 0) {
    Real(w, "uncompressed_bytes_per_token", p.plain_per_token);
    Text(w, "uncompressed_formula", PlainFormula(p, plan.shape.num_heads, plan.kv));
  }
  Number(w, "held_bytes", p.held);
  Number(w, "uncapped_bytes", p.uncapped);
  w.EndObject();
}

void Room(JsonWriter& w, std::string_view key, const RoomPlan& room, const ModelPlan& plan) {
  w.Key(key);
  w.BeginObject();
  Number(w, "budget", room.budget);
  Number(w, "weights", room.weights);
  if (!room.activation_parts.empty()) {
    Number(w, "activations", room.activations);
    w.Key("activation_parts");
    w.BeginObject();
    for (const RoomPlan::Named& part : room.activation_parts) Number(w, part.what, part.bytes);
    w.EndObject();
    Number(w, "reserve", room.reserve);
  }
  Number(w, "pool", room.pool);
  if (!room.pools.empty()) {
    Number(w, "num_blocks", room.pools[0].num_blocks);
    w.Key("pools");
    w.BeginArray();
    for (const RoomPlan::Pool& pool : room.pools) {
      w.BeginObject();
      Number(w, "num_blocks", pool.num_blocks);
      Number(w, "block_bytes", pool.block_bytes);
      Number(w, "blocks_per_sequence", pool.per_sequence);
      w.EndObject();
    }
    w.EndArray();
  }
  Number(w, "sequences", room.sequences);
  Number(w, "tokens", room.tokens);
  if (plan.options.concurrency > 0) {
    w.Key("fits");
    w.Bool(room.sequences >= plan.options.concurrency);
  }
  w.EndObject();
}

void Model(JsonWriter& w, const ModelPlan& plan) {
  w.BeginObject();
  Text(w, "model", plan.shape.name);
  Text(w, "architecture", plan.shape.architecture);
  Number(w, "layers", static_cast<int64_t>(plan.shape.layers.size()));
  Number(w, "parameters", plan.shape.parameters);
  Number(w, "weight_bytes", plan.weights);
  Text(w, "weight_formula", plan.weight_formula);
  w.Key("notes");
  w.BeginArray();
  for (const std::string& note : plan.shape.notes) w.String(note);
  w.EndArray();
  Text(w, "kv_dtype", plan.kv.name);
  w.Key("parts");
  w.BeginArray();
  for (const PartPlan& part : plan.parts) Part(w, plan, part);
  w.EndArray();
  Real(w, "bytes_per_token", plan.published_per_token);
  Real(w, "growth_bytes_per_token", plan.growth_per_token);
  Real(w, "uncompressed_bytes_per_token", plan.plain_per_token);
  Number(w, "context", plan.context);
  Number(w, "sequence_bytes", plan.held_at_context);
  Number(w, "sequence_bytes_uncapped", plan.published_at_context);
  Number(w, "sequence_bytes_in_pages", plan.paged_at_context);
  if (plan.options.concurrency > 0) {
    Number(w, "concurrency", plan.options.concurrency);
    Number(w, "all_sequences_bytes",
           SaturatingProduct({plan.paged_at_context, plan.options.concurrency}));
  }
  Number(w, "block_size", plan.block_size);
  w.Key("outgrows_weights_at_tokens");
  if (plan.outgrown_at > 0) {
    w.Int(plan.outgrown_at);
  } else {
    w.Null();
  }
  if (plan.nothing_reserved) {
    Number(w, "memory", plan.options.memory);
    Real(w, "memory_utilization", plan.options.memory_utilization);
    Room(w, "nothing_reserved", *plan.nothing_reserved, plan);
  }
  if (plan.by_quire) {
    Number(w, "max_num_batched_tokens", plan.options.max_num_batched_tokens);
    Number(w, "max_num_seqs", plan.options.max_num_seqs);
    Number(w, "num_threads", plan.options.num_threads);
    Room(w, "quire", *plan.by_quire, plan);
  }
  if (plan.by_transformers) {
    const absl::StatusOr<TransformersPlan>& r = *plan.by_transformers;
    w.Key("transformers");
    w.BeginObject();
    if (r.ok()) {
      Number(w, "available_memory", plan.transformers_inputs.available_memory);
      Number(w, "block_size", plan.transformers_inputs.block_size);
      Number(w, "num_groups", plan.transformers_inputs.num_groups);
      Number(w, "group_size", plan.transformers_inputs.group_size);
      Number(w, "num_attention_masks", plan.transformers_inputs.num_masks);
      Number(w, "max_batch_tokens", r->max_batch_tokens);
      Number(w, "num_blocks", r->num_blocks);
      Number(w, "footprint", r->footprint);
    } else {
      Text(w, "error", Message(r.status()));
    }
    w.EndObject();
  }
  w.EndObject();
}

}  // namespace

std::string PlanJson(const std::vector<ModelPlan>& plans) {
  JsonWriter w;
  w.BeginArray();
  for (const ModelPlan& plan : plans) Model(w, plan);
  w.EndArray();
  return w.text() + "\n";
}

}  // namespace quire
