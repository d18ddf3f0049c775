// server/cli/generate.cc -- `quire generate`: sends one prompt and prints the answer as it streams.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/status.h"
#include "clients/cpp/generation_client.h"
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
  std::optional<int32_t> top_k, n, best_of;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  std::optional<int32_t> beam_width, num_return_sequences;
  std::optional<float> length_penalty;
  std::string json_schema_file, regex, grammar_file;
  std::vector<std::string> choice;
  std::string speculation;
  std::optional<int32_t> priority, prompt_logprobs, truncate_prompt_tokens;
  std::string tenant;
  double timeout_s = 0;
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return Error(absl::StatusCode::kNotFound, "{} can't be read, or is empty", path);
  }
  return text.str();
}

absl::Status SetGuided(const GenerateOptions& o, pb::GenerateRequest& request) {
  if (!o.json_schema_file.empty()) {
    ASSIGN_OR_RETURN(*request.mutable_guided()->mutable_json_schema(),
                     ReadFile(o.json_schema_file));
  }
  if (!o.regex.empty()) request.mutable_guided()->set_regex(o.regex);
  if (!o.grammar_file.empty()) {
    ASSIGN_OR_RETURN(*request.mutable_guided()->mutable_grammar(), ReadFile(o.grammar_file));
  }
  for (const std::string& text : o.choice) {
    request.mutable_guided()->mutable_choice()->add_texts(text);
  }
  return absl::OkStatus();
}

void SetBeam(const GenerateOptions& o, pb::GenerateRequest& request) {
  if (o.beam_width) request.mutable_beam()->set_beam_width(*o.beam_width);
  if (o.num_return_sequences) {
    request.mutable_beam()->set_num_return_sequences(*o.num_return_sequences);
  }
  if (o.length_penalty) request.mutable_beam()->set_length_penalty(*o.length_penalty);
}

void SetSpeculation(const std::string& method, pb::GenerateRequest& request) {
  if (method.empty()) return;
  request.mutable_spec()->set_method(method == "none"     ? pb::SPECULATION_METHOD_NONE
                                     : method == "ngram"  ? pb::SPECULATION_METHOD_NGRAM
                                     : method == "suffix" ? pb::SPECULATION_METHOD_SUFFIX
                                                          : pb::SPECULATION_METHOD_DRAFT);
}

absl::StatusOr<pb::GenerateRequest> ToRequest(const GenerateOptions& o) {
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
  if (o.best_of) sampling.set_best_of(*o.best_of);
  if (o.seed) sampling.set_seed(*o.seed);
  if (o.max_tokens > 0) request.mutable_stopping()->set_max_tokens(o.max_tokens);
  if (o.ignore_eos) request.mutable_stopping()->set_ignore_eos(true);
  for (const std::string& stop : o.stop) request.mutable_stopping()->add_stop(stop);
  SetBeam(o, request);
  SetSpeculation(o.speculation, request);
  RETURN_IF_ERROR(SetGuided(o, request));
  if (o.priority) request.mutable_scheduling()->set_priority(*o.priority);
  request.mutable_scheduling()->set_tenant(o.tenant);
  if (o.truncate_prompt_tokens) request.set_truncate_prompt_tokens(*o.truncate_prompt_tokens);
  if (o.prompt_logprobs) request.mutable_response()->set_prompt_logprobs(*o.prompt_logprobs);
  return request;
}

void PrintStats(const pb::GenerateEvent& last) {
  const pb::Usage& usage = last.usage();
  const pb::Timings& t = last.timings();
  const double rate =
      t.decode_ms() > 0 ? (usage.completion_tokens() - 1) / (t.decode_ms() / 1e3) : 0.0;
  fmt::print(stderr,
             "prompt {} tokens ({} cached), answer {} tokens, first token after {:.1f} ms "
             "(queue {:.1f}, prefill {:.1f}), then {:.1f} tokens/s, preempted {} times, "
             "{} of {} guesses right\n",
             usage.prompt_tokens(), usage.cached_tokens(), usage.completion_tokens(),
             t.first_token_ms(), t.queue_ms(), t.prefill_ms(), rate, usage.preemptions(),
             usage.accepted_draft_tokens(), usage.draft_tokens());
}

// One line for each token of the prompt, to standard error like all that isn't the answer.
void PrintPromptLogprobs(const pb::PromptLogprobs& logprobs) {
  uint32_t position = logprobs.first_position();
  for (const pb::Logprobs& entry : logprobs.logprobs()) {
    fmt::print(stderr, "prompt {}: token {} logprob {:.4f} rank {}", position++, entry.token_id(),
               entry.logprob(), entry.rank());
    for (const pb::TokenLogprob& top : entry.top()) {
      fmt::print(stderr, ", {} {:.4f}", top.token_id(), top.logprob());
    }
    fmt::print(stderr, "\n");
  }
}

int RunGenerate(GenerateOptions& o) {
  if (o.prompt == "-") {
    o.prompt.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  const absl::StatusOr<pb::GenerateRequest> request = ToRequest(o);
  if (!request.ok()) return Fail(kExitFailed, Message(request.status()).c_str());
  GenerationClient client(o.address.Connect());
  GenerationClient::Timeout timeout;
  if (o.timeout_s > 0) {
    timeout = std::chrono::milliseconds(static_cast<int64_t>(o.timeout_s * 1e3));
  }
  const int32_t n = std::max(o.n.value_or(1), o.num_return_sequences.value_or(1));
  std::vector<std::string> outputs;  // several are printed one after the other, at the end
  std::vector<std::string> scores;
  pb::GenerateEvent last;
  const auto print = [&](const pb::GenerateEvent& event) {
    if (event.has_delta()) {
      if (n <= 1) {
        std::fwrite(event.delta().text().data(), 1, event.delta().text().size(), stdout);
        std::fflush(stdout);
      } else {
        outputs.resize(std::max(outputs.size(), size_t{event.delta().output_index()} + 1));
        outputs[event.delta().output_index()] += event.delta().text();
      }
    }
    if (event.has_prompt_logprobs()) PrintPromptLogprobs(event.prompt_logprobs());
    if (event.has_finished() && event.finished().has_score()) {
      scores.push_back(fmt::format("{:.4f}", event.finished().score()));
    }
    if (event.has_usage()) last = event;
    return true;
  };
  const absl::Status status = client.Stream(*request, print, timeout);
  for (size_t i = 0; i < outputs.size(); ++i) fmt::print("[{}] {}\n", i, outputs[i]);
  if (n <= 1) std::fputc('\n', stdout);
  if (o.stats && last.has_usage()) PrintStats(last);
  if (o.stats && !scores.empty()) fmt::print(stderr, "scores {}\n", fmt::join(scores, ", "));
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
  app->add_option("--stop", o->stop, "text that ends the answer; may be given several times")
      ->allow_extra_args(false);  // else it would take the prompt, too
  app->add_flag("--ignore-eos", o->ignore_eos, "go on after the model's end token");
  app->add_option("-n,--n", o->n, "answers")->check(CLI::Range(1, 128));
  app->add_option("--best-of", o->best_of, "answers made, of which the n likeliest are printed");
  app->add_option("--beam-width", o->beam_width, "beam search with so many beams");
  app->add_option("--num-return-sequences", o->num_return_sequences, "answers of a beam search");
  app->add_option("--length-penalty", o->length_penalty,
                  "of a beam search; above 0 prefers long answers");
  auto* const guide = app->add_option_group("guide", "what the answer must look like");
  guide->add_option("--json-schema", o->json_schema_file, "file with a JSON schema");
  guide->add_option("--regex", o->regex, "regular expression for the whole answer");
  guide->add_option("--grammar", o->grammar_file, "file with an EBNF grammar; its root is `root`");
  guide->add_option("--choice", o->choice, "one of these texts; to be given several times")
      ->allow_extra_args(false);
  guide->require_option(0, 1);
  app->add_option("--speculation", o->speculation, "who guesses tokens ahead; changes no answer")
      ->check(CLI::IsMember({"none", "ngram", "suffix", "draft"}));
  app->add_option("--priority", o->priority, "higher = sooner");
  app->add_option("--tenant", o->tenant, "for policies that share fairly");
  app->add_option("--prompt-logprobs", o->prompt_logprobs,
                  "print what the model thought of the prompt's tokens, and of so many others");
  app->add_option("--truncate-prompt-tokens", o->truncate_prompt_tokens,
                  "keep the last so many tokens of the prompt; -1: what the model takes");
  app->add_option("--timeout", o->timeout_s, "seconds; 0 = none");
  app->add_flag("--stats", o->stats, "print counts and times to standard error");
  return {app, [o] { return RunGenerate(*o); }};
}

}  // namespace quire
