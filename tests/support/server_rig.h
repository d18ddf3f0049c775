// tests/support/server_rig.h -- the real daemon over a scripted executor, and clients of it.
//
// Everything but the model is what serves: tokenizer, scheduler, cache, engine, edge, gRPC over a
// TCP socket. The executor says whatever a test's script tells it to, when its gate is open.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "paged_cache/block_manager.h"
#include "quire/v1/quire.grpc.pb.h"
#include "scheduler/executor.h"
#include "scheduler/sequence.h"
#include "server/daemon.h"
#include "server/log.h"
#include "tokenizer/tokenizer.h"

namespace quire::server_test {

namespace pb = ::quire::v1;
using std::chrono::milliseconds;

// The token of `branch` after `num_output` ones, and its logprob.
using Script = std::function<TokenId(const Request&, int32_t branch, int32_t num_output)>;
using LogprobScript = std::function<float(const Request&, int32_t branch, int32_t num_output)>;

// Says the prompt again, from its first token, over and over.
inline TokenId Echo(const Request& request, int32_t, int32_t num_output) {
  return request.prompt[static_cast<size_t>(num_output) % request.prompt.size()];
}

class ScriptedExecutor final : public Executor {
 public:
  absl::StatusOr<StepOutput> Run(const ScheduledBatch& batch) override {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    --waiting_;
    if (!error_.ok()) return std::exchange(error_, absl::OkStatus());
    StepOutput output;
    for (size_t i = 0; i < batch.seqs.size(); ++i) {
      const ScheduledSeq& s = batch.seqs[i];
      const Request& request = *s.seq->request;
      const auto index = static_cast<int32_t>(i);
      for (int32_t k = 0; k < s.num_samples + s.num_drafts; ++k) {
        const int32_t draft = s.num_drafts > 0 ? k : 0;
        const int32_t branch = s.seq->branch + (s.num_drafts > 0 ? 0 : k);
        const int32_t num_output = s.seq->num_output_tokens() + draft;
        Sampled sampled{.token = script_(request, branch, num_output)};
        sampled.logprob = logprobs_(request, branch, num_output);
        for (int32_t t = 0; t < request.sampling.num_logprobs; ++t) {
          sampled.top.push_back({t, -1.0f - static_cast<float>(t)});
        }
        for (const TokenId id : request.sampling.logprob_token_ids) {
          sampled.asked.push_back({id, -0.01f * static_cast<float>(id)});
        }
        // Of a beam: the script's token is the likeliest, those after it follow.
        for (int32_t t = 0; t < s.num_candidates; ++t) {
          sampled.top.push_back({sampled.token + t, sampled.logprob - static_cast<float>(t)});
        }
        output.rows.push_back({index, branch, draft, std::move(sampled)});
      }
      for (int32_t k = 0; k < s.num_prompt_logprobs; ++k) {
        const int32_t position = s.first_prompt_logprob + k + 1;
        PromptRow row{.seq_index = index, .position = position};
        row.logprob.token = request.prompt[static_cast<size_t>(position)];
        row.logprob.logprob = -0.25f * static_cast<float>(position);
        for (int32_t t = 0; t < request.prompt_logprobs; ++t) {
          row.logprob.top.push_back({position + t, -1.0f - static_cast<float>(t)});
        }
        output.prompt_rows.push_back(std::move(row));
      }
    }
    ++steps_;
    const milliseconds pause = pause_;
    lock.unlock();
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    return output;
  }

  void Say(Script script) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(script);
  }
  void SayLogprobs(LogprobScript logprobs) {
    const std::lock_guard lock(mutex_);
    logprobs_ = std::move(logprobs);
  }
  void FailNext(absl::Status error) {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
  }
  // Each step takes at least that long.
  void Pause(milliseconds pause) {
    const std::lock_guard lock(mutex_);
    pause_ = pause;
  }
  // Closed: the next step waits before it computes.
  void SetOpen(bool open) {
    {
      const std::lock_guard lock(mutex_);
      open_ = open;
    }
    changed_.notify_all();
  }
  // Until a step waits at the closed gate.
  void WaitForStep() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ > 0; });
  }
  int64_t steps() const {
    const std::lock_guard lock(mutex_);
    return steps_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Script script_ = Echo;
  LogprobScript logprobs_ = [](const Request&, int32_t, int32_t) { return -0.5f; };
  absl::Status error_;
  milliseconds pause_{0};
  bool open_ = true;
  int waiting_ = 0;
  int64_t steps_ = 0;
};

struct RigOptions {
  ServerOptions server;
  int32_t num_blocks = 256;
  std::vector<TokenId> eos_token_ids = {};

  RigOptions() {
    server.model = "scripted";
    server.port = 0;
    server.http_port = 0;
    server.block_size = 8;
    server.max_num_seqs = 16;
    server.max_num_batched_tokens = 64;
    server.max_model_len = 512;
  }
};

// What a client saw of one streaming call.
struct Answer {
  grpc::Status status;
  int num_accepted = 0;
  int num_deltas = 0;
  std::map<uint32_t, std::string> texts;
  std::map<uint32_t, std::vector<uint32_t>> token_ids;
  std::map<uint32_t, std::vector<pb::Logprobs>> logprobs;
  std::vector<pb::PromptLogprobs> prompt_logprobs;  // as they came
  bool prompt_came_late = false;                    // after a delta
  std::map<uint32_t, pb::Finished> finished;
  std::map<uint32_t, int> num_finished;
  std::string failure;
  std::string request_id;
  bool has_usage = false;
  pb::Usage usage;

  void Take(const pb::GenerateEvent& event) {
    request_id = event.request_id();
    num_accepted += event.has_accepted();
    if (event.has_prompt_logprobs()) {
      prompt_logprobs.push_back(event.prompt_logprobs());
      prompt_came_late = prompt_came_late || num_deltas > 0;
    }
    if (event.has_delta()) {
      ++num_deltas;
      const pb::Delta& d = event.delta();
      texts[d.output_index()] += d.text();
      auto& ids = token_ids[d.output_index()];
      ids.insert(ids.end(), d.token_ids().begin(), d.token_ids().end());
      auto& probs = logprobs[d.output_index()];
      probs.insert(probs.end(), d.logprobs().begin(), d.logprobs().end());
    }
    if (event.has_finished()) {
      finished[event.finished().output_index()] = event.finished();
      ++num_finished[event.finished().output_index()];
    }
    if (event.has_failure()) failure = event.failure().message();
    if (event.has_usage()) {
      has_usage = true;
      usage = event.usage();
    }
  }
};

class Rig {
 public:
  explicit Rig(RigOptions options = {}) : options_(std::move(options)) {
    InitLog("error");
    auto tokenizer =
        Tokenizer::FromJson(ReadFile(QUIRE_TEST_REFERENCE "/tokenizers/gpt2/tokenizer.json"), "");
    CHECK(tokenizer.ok(), "{}", Message(tokenizer.status()));
    tokenizer_ = *std::move(tokenizer);
    layout_.block_size = options_.server.block_size;
    layout_.groups.resize(1);
    layout_.groups[0].group.page_size = layout_.block_size;
    layout_.pools.resize(1, PoolLayout{64});
    pools_.emplace_back(options_.num_blocks, layout_.block_size);
    BlockManagerOptions blocks;
    blocks.max_step_tokens = options_.server.max_num_batched_tokens;
    blocks_ = std::make_unique<BlockManager>(layout_, pools_, blocks);
    Daemon::Parts parts;
    parts.facts.options = options_.server;
    parts.facts.start = std::chrono::steady_clock::now();
    parts.model.name = "scripted";
    parts.model.tokenizer = tokenizer_;
    parts.model.no_chat = absl::UnimplementedError("no chat template");
    parts.model.vocab_size = tokenizer_->vocab_size();
    parts.model.max_model_len = options_.server.max_model_len;
    parts.model.default_max_tokens = options_.server.default_max_tokens;
    parts.model.max_message_bytes = static_cast<size_t>(options_.server.max_message_bytes);
    parts.model.eos_token_ids = options_.eos_token_ids;
    parts.blocks = blocks_.get();
    parts.executor = &executor;
    auto daemon = Daemon::Start(std::move(parts));
    CHECK(daemon.ok(), "{}", Message(daemon.status()));
    daemon_ = *std::move(daemon);
    channel_ = Connect();
    stub_ = pb::Generation::NewStub(channel_);
    admin_channel_ =
        grpc::CreateChannel(daemon_->admin_addresses().front(), grpc::InsecureChannelCredentials());
    admin_ = pb::Admin::NewStub(admin_channel_);
  }
  ~Rig() { executor.SetOpen(true); }

  Daemon& daemon() { return *daemon_; }
  pb::Generation::Stub& stub() { return *stub_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

  // A connection of its own.
  std::shared_ptr<grpc::Channel> Connect() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(daemon_->port()),
                                     grpc::InsecureChannelCredentials(), arguments);
  }
  std::shared_ptr<grpc::Channel> channel() const { return channel_; }
  std::shared_ptr<grpc::Channel> admin_channel() const { return admin_channel_; }

  std::vector<TokenId> Encode(const std::string& text) const {
    return *tokenizer_->Encode(text, false);
  }

  Answer Generate(const pb::GenerateRequest& request) {
    grpc::ClientContext context;
    return Generate(context, request);
  }
  Answer Generate(grpc::ClientContext& context, const pb::GenerateRequest& request) {
    Answer answer;
    const auto reader = stub_->Generate(&context, request);
    pb::GenerateEvent event;
    while (reader->Read(&event)) answer.Take(event);
    answer.status = reader->Finish();
    return answer;
  }
  std::pair<grpc::Status, pb::GenerateResult> GenerateUnary(const pb::GenerateRequest& request) {
    grpc::ClientContext context;
    pb::GenerateResult result;
    const grpc::Status status = stub_->GenerateUnary(&context, request, &result);
    return {status, result};
  }

  pb::BlockStats Blocks() {
    grpc::ClientContext context;
    pb::BlockStats stats;
    const grpc::Status status = admin_->GetBlockStats(&context, {}, &stats);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return stats;
  }
  pb::ServerInfo Info() {
    grpc::ClientContext context;
    pb::ServerInfo info;
    const grpc::Status status = admin_->GetServerInfo(&context, {}, &info);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return info;
  }

  // Polls, since cancels arrive when they arrive; fails the test after 20 s.
  bool Eventually(const std::function<bool()>& holds) {
    for (int i = 0; i < 10000; ++i) {
      if (holds()) return true;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return false;
  }

  // Contract C6: nothing in flight, nothing held, nothing lost. The edge's counts come first: the
  // gauges are those of the last finished step, so while the first step of a request still runs
  // they say that there is no request.
  void ExpectIdle() {
    EXPECT_TRUE(Eventually([this] {
      const RequestCounts c = daemon_->edge().counts();
      return c.started == c.ok + c.cancelled + c.deadline + c.failed;
    }));
    pb::BlockStats s;
    EXPECT_TRUE(Eventually([this, &s] {
      s = Blocks();
      return s.live_requests() == 0 && s.used_blocks() == 0;
    })) << s.DebugString();
    EXPECT_EQ(s.running_sequences(), 0u);
    EXPECT_EQ(s.waiting_sequences(), 0u);
    EXPECT_EQ(s.cached_blocks() + s.empty_blocks(), s.total_blocks());
  }

  // Known ids, whatever happened before. REQUIRES: the script is Echo, the gate open.
  void Probe() {
    const Answer answer = Generate(TextRequest("probe text", 3));
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    const std::vector<TokenId> ids = Encode("probe text");
    ASSERT_EQ(answer.token_ids.at(0).size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(answer.token_ids.at(0)[i], static_cast<uint32_t>(ids[i % ids.size()]));
    }
  }

  static pb::GenerateRequest TextRequest(const std::string& text, int32_t max_tokens) {
    pb::GenerateRequest request;
    request.set_text(text);
    request.mutable_stopping()->set_max_tokens(max_tokens);
    request.mutable_response()->set_token_ids(true);
    return request;
  }
  static pb::GenerateRequest IdsRequest(const std::vector<TokenId>& ids, int32_t max_tokens) {
    pb::GenerateRequest request;
    request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
    request.mutable_stopping()->set_max_tokens(max_tokens);
    request.mutable_response()->set_token_ids(true);
    return request;
  }

  ScriptedExecutor executor;

 private:
  static std::string ReadFile(const std::string& path);

  RigOptions options_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  CacheLayout layout_;
  std::vector<PagePool> pools_;
  std::unique_ptr<BlockManager> blocks_;
  std::unique_ptr<Daemon> daemon_;
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<grpc::Channel> admin_channel_;
  std::unique_ptr<pb::Generation::Stub> stub_;
  std::unique_ptr<pb::Admin::Stub> admin_;
};

// A call whose client does one thing at a time.
struct Call {
  Call(pb::Generation::Stub& stub, const pb::GenerateRequest& request)
      : reader(stub.Generate(&context, request)) {}
  Call(pb::Generation::Stub& stub, const pb::GenerateRequest& request, milliseconds deadline) {
    context.set_deadline(std::chrono::system_clock::now() + deadline);
    reader = stub.Generate(&context, request);
  }
  bool Read() {
    if (!reader->Read(&event)) return false;
    answer.Take(event);
    return true;
  }
  grpc::Status Finish() {
    while (Read()) {
    }
    return answer.status = reader->Finish();
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<pb::GenerateEvent>> reader;
  pb::GenerateEvent event;
  Answer answer;
};

inline std::string Rig::ReadFile(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  CHECK(file != nullptr, "{}", path);
  std::string text;
  char buffer[65536];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof(buffer), file)) > 0;) text.append(buffer, n);
  std::fclose(file);
  return text;
}

}  // namespace quire::server_test
