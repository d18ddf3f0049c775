// server/cli/generate.cc -- `quire generate`: sends one prompt and prints the answer as it streams.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quire/v1/quire.grpc.pb.h"
#include "server/cli/client.h"
#include "server/cli/commands.h"

namespace quire {
namespace {

namespace pb = ::quire::v1;

struct GenerateOptions {
  ServerAddress address;
  std::string prompt;
  std::string system;
  bool raw = false;
  bool stats = false;
  bool ignore_eos = false;
  // A person at a terminal wants the same short answer each time; the API's own defaults differ.
  float temperature = 0;
  int32_t max_tokens = 256;
  std::optional<float> top_p, min_p;
  std::optional<int32_t> top_k, n;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  double timeout_s = 0;
};

pb::GenerateRequest ToRequest(const GenerateOptions& o) {
  pb::GenerateRequest request;
  if (o.raw) {
    request.set_text(o.prompt);
  } else {
    if (!o.system.empty()) {
      pb::ChatMessage& message = *request.mutable_chat()->add_messages();
      message.set_role("system");
      message.set_content(o.system);
    }
    pb::ChatMessage& message = *request.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content(o.prompt);
  }
  pb::SamplingParams& sampling = *request.mutable_sampling();
  sampling.set_temperature(o.temperature);
  if (o.top_p) sampling.set_top_p(*o.top_p);
  if (o.min_p) sampling.set_min_p(*o.min_p);
  if (o.top_k) sampling.set_top_k(*o.top_k);
  if (o.n) sampling.set_n(*o.n);
  if (o.seed) sampling.set_seed(*o.seed);
  if (o.max_tokens > 0) request.mutable_stopping()->set_max_tokens(o.max_tokens);
  if (o.ignore_eos) request.mutable_stopping()->set_ignore_eos(true);
  for (const std::string& stop : o.stop) request.mutable_stopping()->add_stop(stop);
  return request;
}

void PrintStats(const pb::GenerateEvent& last) {
  const pb::Usage& usage = last.usage();
  const pb::Timings& t = last.timings();
  const double rate =
      t.decode_ms() > 0 ? (usage.completion_tokens() - 1) / (t.decode_ms() / 1e3) : 0.0;
  fmt::print(stderr,
             "prompt {} tokens ({} cached), answer {} tokens, first token after {:.1f} ms "
             "(queue {:.1f}, prefill {:.1f}), then {:.1f} tokens/s, preempted {} times\n",
             usage.prompt_tokens(), usage.cached_tokens(), usage.completion_tokens(),
             t.first_token_ms(), t.queue_ms(), t.prefill_ms(), rate, usage.preemptions());
}

int RunGenerate(GenerateOptions& o) {
  if (o.prompt == "-") {
    o.prompt.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  const std::unique_ptr<pb::Generation::Stub> stub = pb::Generation::NewStub(o.address.Connect());
  grpc::ClientContext context;
  if (o.timeout_s > 0) {
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(static_cast<int64_t>(o.timeout_s * 1e3)));
  }
  const std::unique_ptr<grpc::ClientReader<pb::GenerateEvent>> reader =
      stub->Generate(&context, ToRequest(o));
  const size_t n = static_cast<size_t>(std::max(1, o.n.value_or(1)));
  std::vector<std::string> outputs;  // several are printed one after the other, at the end
  pb::GenerateEvent event;
  pb::GenerateEvent last;
  while (reader->Read(&event)) {
    if (event.has_delta()) {
      if (n == 1) {
        std::fwrite(event.delta().text().data(), 1, event.delta().text().size(), stdout);
        std::fflush(stdout);
      } else {
        outputs.resize(std::max(outputs.size(), size_t{event.delta().output_index()} + 1));
        outputs[event.delta().output_index()] += event.delta().text();
      }
    }
    if (event.has_usage()) last = event;
  }
  for (size_t i = 0; i < outputs.size(); ++i) fmt::print("[{}] {}\n", i, outputs[i]);
  if (n == 1) std::fputc('\n', stdout);
  const grpc::Status status = reader->Finish();
  if (o.stats && last.has_usage()) PrintStats(last);
  if (!status.ok()) return Fail(kExitFailed, Explain(status, o.address).c_str());
  return 0;
}

}  // namespace

Subcommand MakeGenerate(CLI::App& parent) {
  auto o = std::make_shared<GenerateOptions>();
  CLI::App* const app = parent.add_subcommand("generate", "send a prompt, print the answer");
  app->add_option("prompt", o->prompt, "the question; - reads standard input")->required();
  o->address.AddOptions(*app);
  app->add_flag("--raw", o->raw, "continue the text itself, without the chat template");
  app->add_option("--system", o->system, "system message before the prompt");
  app->add_option("--temperature", o->temperature, "0 = always the most likely token")
      ->capture_default_str();
  app->add_option("--top-p", o->top_p, "probability mass kept");
  app->add_option("--top-k", o->top_k, "tokens kept; 0 = all");
  app->add_option("--min-p", o->min_p, "relative to the best token's probability");
  app->add_option("--seed", o->seed, "the same seed gives the same answer");
  app->add_option("--max-tokens", o->max_tokens, "new tokens per answer; 0 = the server's limit")
      ->capture_default_str();
  app->add_option("--stop", o->stop, "text that ends the answer; may be given several times");
  app->add_flag("--ignore-eos", o->ignore_eos, "go on after the model's end token");
  app->add_option("-n,--n", o->n, "answers")->check(CLI::Range(1, 128));
  app->add_option("--timeout", o->timeout_s, "seconds; 0 = none");
  app->add_flag("--stats", o->stats, "print counts and times to standard error");
  return {app, [o] { return RunGenerate(*o); }};
}

}  // namespace quire
