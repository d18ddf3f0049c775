// server/cli/plan.cc -- `quire plan`: what models take and what fits, from their configs alone.
#include "models/plan/plan.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "models/plan/render.h"
#include "models/plan/shape_source.h"
#include "models/plan/units.h"
#include "server/cli/commands.h"

namespace quire {
namespace {

struct PlanArguments {
  std::vector<std::string> models;
  std::string memory;
  std::string context;
  std::string rule = "quire";
  PlanOptions options;
  bool json = false;
  bool list = false;
};

absl::StatusOr<PlanRule> RuleOf(const std::string& name) {
  if (name == "quire") return PlanRule::kQuire;
  if (name == "transformers") return PlanRule::kTransformers;
  if (name == "none") return PlanRule::kNone;
  return InvalidArgument("rule={} is not one of quire, transformers, none", name);
}

absl::StatusOr<std::string> Plan(PlanArguments& a) {
  if (!a.memory.empty()) {
    ASSIGN_OR_RETURN(a.options.memory, ParseBytes("memory", a.memory));
  }
  if (!a.context.empty()) {
    ASSIGN_OR_RETURN(a.options.context, ParseTokens("context", a.context));
  }
  ASSIGN_OR_RETURN(a.options.rule, RuleOf(a.rule));
  std::vector<ModelPlan> plans;
  for (const std::string& model : a.models) {
    ASSIGN_OR_RETURN(const ModelShape shape, LoadShape(model));
    ASSIGN_OR_RETURN(ModelPlan plan, PlanModel(shape, a.options));
    plans.push_back(std::move(plan));
  }
  return a.json ? PlanJson(plans) : PlanText(plans);
}

int RunPlan(PlanArguments& a) {
  if (a.list) {
    for (const BuiltInConfig& config : BuiltInConfigs()) fmt::print("{}\n", config.name);
    return 0;
  }
  if (a.models.empty()) {
    return Fail(kExitUsage, "name at least one model: a path, or one that --list prints");
  }
  const absl::StatusOr<std::string> text = Plan(a);
  if (!text.ok()) {
    const absl::StatusCode code = text.status().code();
    return Fail(code == absl::StatusCode::kInvalidArgument ? kExitUsage : kExitFailed,
                Message(text.status()).c_str());
  }
  fmt::print("{}", *text);
  return 0;
}

}  // namespace

Subcommand MakePlan(CLI::App& parent) {
  auto a = std::make_shared<PlanArguments>();
  PlanOptions& o = a->options;
  CLI::App* const app = parent.add_subcommand(
      "plan", "what models' caches and weights take, and how much a memory holds");
  app->add_option("models", a->models,
                  "config.json, folder with one, .gguf file, or a name that --list prints; several "
                  "are shown side by side");
  app->add_flag("--list", a->list, "print the names of the configs that are built in");
  app->add_option("--memory", a->memory, "of the card or host: 24GiB, 80GB");
  app->add_option("--context", a->context,
                  "tokens of one sequence: 4096, 256K; default 4096 or the model's limit");
  app->add_option("--concurrency", o.concurrency, "sequences of that length; says if they fit");
  app->add_option("--kv-dtype", o.kv_dtype, "bf16, f16, f32, fp8, int8")->capture_default_str();
  app->add_option("--weight-dtype", o.weight_dtype,
                  "bf16, f16, f32, fp8, int8, int4; default: as the config says");
  app->add_option("--block-size", o.block_size,
                  "tokens per block; default 16, by transformers 256");
  app->add_option("--max-num-batched-tokens", o.max_num_batched_tokens, "of the worst-case step")
      ->capture_default_str();
  app->add_option("--max-num-seqs", o.max_num_seqs, "of the worst-case step")
      ->capture_default_str();
  app->add_option("--num-threads", o.num_threads, "kernel threads, each with its scratch")
      ->capture_default_str();
  app->add_option("--memory-utilization", o.memory_utilization,
                  "share of the memory that may be used; a host shared with others: 0.8")
      ->capture_default_str();
  app->add_option("--rule", a->rule, "quire, transformers or none")->capture_default_str();
  app->add_flag("--json", a->json, "print JSON");
  return {app, [a] { return RunPlan(*a); }};
}

}  // namespace quire
