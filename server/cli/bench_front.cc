#include "server/cli/bench_front.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <vector>

#include "clients/cpp/generation_client.h"
#include "quire/v1/quire.grpc.pb.h"
#include "server/cli/commands.h"
#include "server/cli/send_all.h"

namespace quire {
namespace {

namespace pb = ::quire::v1;

// Prose, so that the tokenizer has words to split; equal for all, so that the cache spares the
// engine most of the prompt.
std::string Prose(int32_t bytes) {
  const std::string sentence =
      "When the tide had gone out, the children walked along the shore and counted 27 boats. ";
  std::string text;
  while (text.size() < static_cast<size_t>(bytes)) text += sentence;
  text.resize(static_cast<size_t>(bytes));
  return text;
}

std::vector<pb::GenerateRequest> Requests(int32_t count, const pb::GenerateRequest& prompt,
                                          int32_t max_tokens, bool token_ids) {
  pb::GenerateRequest r = prompt;
  r.mutable_sampling()->set_temperature(0);
  r.mutable_stopping()->set_max_tokens(max_tokens);
  r.mutable_stopping()->set_ignore_eos(true);
  r.mutable_response()->set_text(!token_ids);
  r.mutable_response()->set_token_ids(token_ids);
  return {static_cast<size_t>(count), r};
}

struct Cpu {
  double front_ms = 0;
  double engine_ms = 0;
};

}  // namespace

void BenchFront::AddOptions(CLI::App& app) {
  address_.AddAdminOptions(app);
  app.add_option("--streams", streams_,
                 "open at once; the server's --max-num-seqs should be so many")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--requests", requests_, "of one token each, for the cost of a request")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--prompt-bytes", prompt_bytes_, "of text in each of these")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--new-tokens", new_tokens_, "of each stream, for the cost of a token")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_flag("--token-ids", token_ids_, "tokens in and out instead of text");
}

int BenchFront::Run() {
  const std::shared_ptr<grpc::Channel> channel = address_.Connect();
  const std::unique_ptr<pb::Generation::Stub> stub = pb::Generation::NewStub(channel);
  const std::unique_ptr<pb::Admin::Stub> admin = pb::Admin::NewStub(address_.ConnectAdmin());
  std::string failure;
  const auto cpu = [&] {
    grpc::ClientContext context;
    pb::ServerInfo info;
    const grpc::Status status = admin->GetServerInfo(&context, {}, &info);
    if (!status.ok()) failure = Explain(ToStatus(status), address_.AdminTarget());
    Cpu now{.front_ms = info.cpu_ms()};
    for (const pb::ThreadCpu& t : info.threads()) {
      static const std::set<std::string> kComputes = {"quire-engine", "quire-kernel", "quire-files",
                                                      "quire-pool"};
      if (kComputes.contains(t.name())) now.engine_ms += t.cpu_ms();
    }
    now.front_ms -= now.engine_ms;
    return now;
  };
  pb::GenerateRequest prompt;
  prompt.set_text(Prose(prompt_bytes_));
  if (token_ids_) {
    const absl::StatusOr<std::vector<TokenId>> ids =
        GenerationClient(channel).Tokenize(prompt.text());
    if (!ids.ok()) return Fail(kExitFailed, Explain(ids.status(), address_).c_str());
    prompt.mutable_token_ids()->mutable_ids()->Add(ids->begin(), ids->end());
  }
  pb::GenerateRequest short_prompt;
  if (token_ids_) {
    short_prompt.mutable_token_ids()->mutable_ids()->Add(prompt.token_ids().ids(0));
  } else {
    short_prompt.set_text("Once");
  }

  const auto measure = [&](const std::vector<pb::GenerateRequest>& requests, RunTotals& totals) {
    const Cpu before = cpu();
    totals = SendAll(*stub, requests, streams_);
    const Cpu after = cpu();
    if (failure.empty()) failure = totals.error;
    return Cpu{after.front_ms - before.front_ms, after.engine_ms - before.engine_ms};
  };
  RunTotals warm, one, many, few;
  measure(Requests(streams_, prompt, 1, token_ids_), warm);  // connections, caches, arenas
  const Cpu of_requests = measure(Requests(requests_, prompt, 1, token_ids_), one);
  const Cpu of_short = measure(Requests(requests_, short_prompt, 1, token_ids_), few);
  const Cpu of_streams = measure(Requests(streams_, short_prompt, new_tokens_, token_ids_), many);
  if (!failure.empty()) return Fail(kExitFailed, failure.c_str());

  const double request_ms = of_requests.front_ms / requests_;
  const double short_ms = of_short.front_ms / requests_;
  const double tokens = static_cast<double>(many.output_tokens - static_cast<uint64_t>(streams_));
  const double token_us = 1e3 * (of_streams.front_ms - short_ms * streams_) / tokens;
  fmt::print("{} streams at once, {} in and out; CPU time of the server\n", streams_,
             token_ids_ ? "tokens" : "text");
  fmt::print("{:<38}{:>12}{:>12}\n", "", "front end", "engine");
  fmt::print("{:<38}{:>9.3f} ms{:>9.3f} ms\n",
             fmt::format("a request, prompt of {} bytes", prompt_bytes_), request_ms,
             of_requests.engine_ms / requests_);
  fmt::print("{:<38}{:>9.3f} ms{:>9.3f} ms\n", "a request, prompt of one word", short_ms,
             of_short.engine_ms / requests_);
  fmt::print(
      "{:<38}{:>9.2f} us{:>9.2f} us\n",
      fmt::format("a token ({:.2f} tokens a message)",
                  static_cast<double>(many.output_tokens) /
                      static_cast<double>(many.events - 2 * static_cast<uint64_t>(streams_))),
      token_us, 1e3 * of_streams.engine_ms / static_cast<double>(many.output_tokens));
  return 0;
}

}  // namespace quire
