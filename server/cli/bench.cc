// server/cli/bench.cc -- `quire bench serve`: sends a workload over gRPC and sums up latencies.
//
// Tokens in, tokens out, greedy, ends of sequence ignored: what is measured is the server, not the
// tokenizer. Times are the client's. All requests share one connection.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "bench/workloads.h"
#include "clients/cpp/generation_client.h"
#include "quire/v1/quire.grpc.pb.h"
#include "server/cli/bench_front.h"
#include "server/cli/bench_ops.h"
#include "server/cli/client.h"
#include "server/cli/commands.h"
#include "server/cli/send_all.h"

namespace quire {
namespace {

namespace pb = ::quire::v1;

struct BenchOptions {
  ServerAddress address;
  std::vector<std::string> workloads = {"W1", "W2", "W3", "W4"};
  int32_t runs = 1;
  uint64_t seed = 1234;
  int32_t own_tokens = 5;  // of each prompt after the shared prefix; `sharing` only
  bool json = false;
};

std::vector<pb::GenerateRequest> MakeRequests(const Workload& workload) {
  std::vector<pb::GenerateRequest> requests;
  for (const std::vector<TokenId>& prompt : workload.prompts) {
    pb::GenerateRequest& r = requests.emplace_back();
    r.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
    r.mutable_sampling()->set_temperature(0);
    r.mutable_stopping()->set_max_tokens(workload.max_tokens);
    r.mutable_stopping()->set_ignore_eos(true);
    r.mutable_response()->set_text(false);
    r.mutable_response()->set_token_ids(true);
  }
  return requests;
}

RunTotals Execute(pb::Generation::Stub& stub, const Workload& workload) {
  return SendAll(stub, MakeRequests(workload), workload.concurrency);
}

void PrintTable(const std::string& name, int run, const LatencySummary& s, const RunTotals& t) {
  fmt::print(
      "{} run {}: {} requests, {} prompt + {} output tokens in {:.3f} s, {} prompt tokens cached, "
      "{} "
      "preemptions\n",
      name, run, s.requests, s.prompt_tokens, s.output_tokens, s.duration_s, t.cached_tokens,
      t.preemptions);
  fmt::print("  {:<26}{:>10.1f}   (prompt too {:.1f}; one stream {:.1f})\n", "output tokens/s",
             s.output_tokens_per_s, s.total_tokens_per_s, s.decode_tokens_per_s);
  const auto line = [](const char* what, const Percentiles& p) {
    fmt::print("  {:<26}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}\n", what, p.mean, p.p50,
               p.p90, p.p99, p.max);
  };
  fmt::print("  {:<26}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "ms", "mean", "p50", "p90", "p99", "max");
  line("time to first token", s.ttft_ms);
  line("between tokens", s.itl_ms);
  line("whole request", s.e2e_ms);
}

void WriteJson(const std::string& name, int run, const LatencySummary& s, const RunTotals& t,
               JsonWriter& w) {
  const auto percentiles = [&w](const char* key, const Percentiles& p) {
    w.Key(key);
    w.BeginObject();
    for (const auto& [label, value] : {std::pair{"mean", p.mean},
                                       {"p50", p.p50},
                                       {"p90", p.p90},
                                       {"p99", p.p99},
                                       {"max", p.max}}) {
      w.Key(label);
      w.Double(value);
    }
    w.EndObject();
  };
  w.BeginObject();
  w.Key("workload");
  w.String(name);
  for (const auto& [key, value] : {std::pair<const char*, int64_t>{"run", run},
                                   {"requests", s.requests},
                                   {"empty", s.empty},
                                   {"prompt_tokens", s.prompt_tokens},
                                   {"output_tokens", s.output_tokens},
                                   {"cached_tokens", static_cast<int64_t>(t.cached_tokens)},
                                   {"preemptions", static_cast<int64_t>(t.preemptions)}}) {
    w.Key(key);
    w.Int(value);
  }
  for (const auto& [key, value] : {std::pair<const char*, double>{"duration_s", s.duration_s},
                                   {"output_tokens_per_s", s.output_tokens_per_s},
                                   {"total_tokens_per_s", s.total_tokens_per_s},
                                   {"decode_tokens_per_s", s.decode_tokens_per_s}}) {
    w.Key(key);
    w.Double(value);
  }
  percentiles("ttft_ms", s.ttft_ms);
  percentiles("itl_ms", s.itl_ms);
  percentiles("e2e_ms", s.e2e_ms);
  w.EndObject();
}

int RunBench(const BenchOptions& o) {
  const std::shared_ptr<grpc::Channel> channel = o.address.Connect();
  const std::unique_ptr<pb::Generation::Stub> stub = pb::Generation::NewStub(channel);
  pb::ModelInfo model;
  grpc::ClientContext context;
  const grpc::Status status =
      pb::Admin::NewStub(o.address.ConnectAdmin())->GetModelInfo(&context, {}, &model);
  if (!status.ok()) {
    return Fail(kExitFailed, Explain(ToStatus(status), o.address.AdminTarget()).c_str());
  }
  JsonWriter json;
  json.BeginArray();
  for (const std::string& name : o.workloads) {
    for (int run = 0; run < o.runs; ++run) {
      const absl::StatusOr<Workload> workload =
          MakeWorkload(name, run, static_cast<int32_t>(model.vocab_size()), o.seed);
      if (!workload.ok()) return Fail(kExitUsage, Message(workload.status()).c_str());
      const RunTotals totals = Execute(*stub, *workload);
      if (!totals.error.empty()) return Fail(kExitFailed, totals.error.c_str());
      const LatencySummary summary = Summarize(totals.traces);
      if (o.json) {
        WriteJson(name, run, summary, totals, json);
      } else {
        PrintTable(name, run, summary, totals);
      }
    }
  }
  json.EndArray();
  if (o.json) fmt::print("{}\n", json.text());
  return 0;
}

// What 64 clients wait that come at once with one prefix that nobody has: the prefix must be
// computed once, and nobody may wait longer than for that and for what the warmed case takes.
int RunSharing(const BenchOptions& o) {
  const std::shared_ptr<grpc::Channel> channel = o.address.Connect();
  const std::unique_ptr<pb::Generation::Stub> stub = pb::Generation::NewStub(channel);
  pb::ModelInfo model;
  grpc::ClientContext context;
  const grpc::Status status =
      pb::Admin::NewStub(o.address.ConnectAdmin())->GetModelInfo(&context, {}, &model);
  if (!status.ok()) {
    return Fail(kExitFailed, Explain(ToStatus(status), o.address.AdminTarget()).c_str());
  }
  constexpr size_t kPrefix = 512;
  std::vector<double> ratios;
  fmt::print("{:>4}{:>14}{:>14}{:>14}{:>12}{:>24}\n", "run", "prefix ms", "warm p50 ms",
             "cold p50 ms", "cold hits", "cold / (prefix + warm)");
  for (int run = 0; run < o.runs; ++run) {
    std::vector<Workload> parts;  // one for each prefix or set of own parts that is needed
    for (int i = 0; i < 3; ++i) {
      absl::StatusOr<Workload> w =
          MakeWorkload("W4", 3 * run + i, static_cast<int32_t>(model.vocab_size()), o.seed);
      if (!w.ok()) return Fail(kExitUsage, Message(w.status()).c_str());
      parts.push_back(*std::move(w));
    }
    Workload prefix = parts[0];
    prefix.prompts.resize(1);
    prefix.prompts[0].resize(kPrefix);
    prefix.max_tokens = 1;
    for (Workload& w : parts) {
      for (std::vector<TokenId>& prompt : w.prompts) {
        prompt.resize(kPrefix + static_cast<size_t>(o.own_tokens));
      }
    }
    const Workload& cold = parts[1];
    Workload warm = parts[2];  // the cold ones' prefix, other own parts
    for (std::vector<TokenId>& prompt : warm.prompts) {
      std::copy_n(cold.prompts[0].begin(), kPrefix, prompt.begin());
    }
    LatencySummary summaries[3];
    uint64_t cold_hits = 0;
    const Workload* const order[] = {&prefix, &cold, &warm};
    for (size_t i = 0; i < 3; ++i) {
      const RunTotals totals = Execute(*stub, *order[i]);
      if (!totals.error.empty()) return Fail(kExitFailed, totals.error.c_str());
      summaries[i] = Summarize(totals.traces);
      if (i == 1) cold_hits = totals.cached_tokens / kPrefix;
    }
    const double bound = summaries[0].ttft_ms.p50 + summaries[2].ttft_ms.p50;
    ratios.push_back(summaries[1].ttft_ms.p50 / bound);
    fmt::print("{:>4}{:>14.1f}{:>14.1f}{:>14.1f}{:>12}{:>24.3f}\n", run, summaries[0].ttft_ms.p50,
               summaries[2].ttft_ms.p50, summaries[1].ttft_ms.p50, cold_hits, ratios.back());
  }
  fmt::print("median ratio {:.3f}\n", Summarize(ratios).p50);
  return 0;
}

}  // namespace

Subcommand MakeBench(CLI::App& parent) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App* const bench =
      parent.add_subcommand("bench", "measure a running server, or a model's operations");
  bench->require_subcommand(1);
  CLI::App* const app =
      bench->add_subcommand("serve", "send workloads over gRPC; print latencies and rates");
  o->address.AddAdminOptions(*app);
  app->add_option("--workload", o->workloads,
                  "W1 one stream, W2 prefill, W3 64 at once, W4 64 with a shared prefix")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--runs", o->runs, "of each workload, with fresh prompts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--seed", o->seed, "of the prompts")->capture_default_str();
  app->add_flag("--json", o->json, "print a JSON array instead of tables");
  CLI::App* const sharing = bench->add_subcommand(
      "sharing", "64 requests at once with one cold prefix: what they wait against a warm one");
  o->address.AddAdminOptions(*sharing);
  sharing->add_option("--runs", o->runs, "with fresh prompts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sharing->add_option("--own", o->own_tokens, "tokens of each prompt after the prefix of 512")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  sharing->add_option("--seed", o->seed, "of the prompts")->capture_default_str();
  auto ops = std::make_shared<BenchOps>();
  CLI::App* const ops_app = bench->add_subcommand(
      "ops", "load a model in this process; print what each operation of its steps takes");
  ops->AddOptions(*ops_app);
  auto front = std::make_shared<BenchFront>();
  CLI::App* const front_app = bench->add_subcommand(
      "front", "CPU time of a running server outside its engine, per request and per token");
  front->AddOptions(*front_app);
  return {bench, [o, sharing, ops, ops_app, front, front_app] {
            if (front_app->parsed()) return front->Run();
            if (ops_app->parsed()) return ops->Run();
            return sharing->parsed() ? RunSharing(*o) : RunBench(*o);
          }};
}

}  // namespace quire
