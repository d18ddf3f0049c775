// tests/support/model_rig.h -- the daemon with a small real model, and an operator's view of it.
//
// Everything is what serves, from gRPC to the kernels. Steps can be slowed down, so that several
// calls meet the engine between the same two steps.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "models/draft_proposer.h"
#include "models/runtime.h"
#include "tests/support/server_rig.h"
#include "tests/weight_files.h"

namespace quire::server_test {

class PausingExecutor final : public Executor {
 public:
  explicit PausingExecutor(Executor& inner) : inner_(inner) {}
  absl::StatusOr<StepOutput> Run(const ScheduledBatch& batch) override {
    std::this_thread::sleep_for(milliseconds(pause_ms.load()));
    return inner_.Run(batch);
  }
  std::atomic<int> pause_ms{0};

 private:
  Executor& inner_;
};

// What an operator sees at one moment.
struct Moment {
  pb::BlockStats stats;
  pb::BlockBatch blocks;
  pb::RequestBatch requests;
  pb::PrefixBatch tree;
};

// Joins the batches of a stream; the last one's flag and step stay.
template <typename Request, typename Batch>
grpc::Status ReadAll(std::unique_ptr<grpc::ClientReader<Batch>> (pb::Admin::Stub::*call)(
                         grpc::ClientContext*, const Request&),
                     pb::Admin::Stub& stub, const Request& request, Batch& all,
                     int* num_batches = nullptr) {
  grpc::ClientContext context;
  const auto reader = (stub.*call)(&context, request);
  Batch batch;
  while (reader->Read(&batch)) {
    all.MergeFrom(batch);
    if (num_batches != nullptr) ++*num_batches;
  }
  return reader->Finish();
}

template <typename Request, typename Reply>
grpc::Status Ask(grpc::Status (pb::Admin::Stub::*call)(grpc::ClientContext*, const Request&,
                                                       Reply*),
                 pb::Admin::Stub& stub, const Request& request, Reply& reply) {
  grpc::ClientContext context;
  return (stub.*call)(&context, request, &reply);
}

class ModelRig {
 public:
  // model: a name under tests/reference/models.
  explicit ModelRig(const std::string& model, RuntimeOptions runtime = {},
                    ServerOptions server = {}) {
    InitLog("error");
    runtime.model = ReferencePath("models/" + model);
    runtime.num_threads = 1;
    auto loaded = ModelRuntime::Load(runtime);
    CHECK(loaded.ok(), "{}", Message(loaded.status()));
    runtime_ = *std::move(loaded);
    executor_ = std::make_unique<PausingExecutor>(runtime_->executor());
    auto tokenizer =
        Tokenizer::FromJson(ReadBytes(QUIRE_TEST_REFERENCE "/tokenizers/gpt2/tokenizer.json"), "");
    CHECK(tokenizer.ok(), "{}", Message(tokenizer.status()));

    Daemon::Parts parts;
    server.model = model;
    server.port = 0;
    server.http_port = -1;
    server.block_size = runtime.block_size;
    server.max_num_seqs = runtime.max_num_seqs;
    server.max_num_batched_tokens = runtime.max_num_batched_tokens;
    server.cache_directory = runtime.cache_directory;
    parts.facts.options = server;
    parts.facts.config = runtime_->config();
    parts.facts.memory = runtime_->memory();
    parts.model.name = model;
    parts.model.tokenizer = *std::move(tokenizer);
    parts.model.no_chat = absl::UnimplementedError("no chat template");
    parts.model.vocab_size = runtime_->config().vocab_size;
    parts.model.max_model_len = runtime_->max_model_len();
    parts.model.max_message_bytes = static_cast<size_t>(server.max_message_bytes);
    parts.blocks = &runtime_->block_manager();
    parts.executor = executor_.get();
    parts.draft = runtime_->draft_model();
    parts.rope_regime = [this](int32_t tokens) { return runtime_->RopeRegimeOf(tokens); };
    parts.cache.set_num_blocks = [this](Scheduler& s, int32_t n) {
      return runtime_->SetNumBlocks(s, n);
    };
    parts.cache.save = [this](const std::string& dir) { return runtime_->SaveCache(dir); };
    parts.cache.load = [this](const std::string& dir) { return runtime_->LoadCache(dir); };
    if (const PageFileStore* const files = runtime_->cache_files()) {
      parts.cache.files = [files] { return files->stats(); };
    }
    auto daemon = Daemon::Start(std::move(parts));
    CHECK(daemon.ok(), "{}", Message(daemon.status()));
    daemon_ = *std::move(daemon);
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(daemon_->port()),
                                                   grpc::InsecureChannelCredentials(), arguments);
    stub_ = pb::Generation::NewStub(channel);
    admin_ = pb::Admin::NewStub(grpc::CreateChannel(daemon_->admin_addresses().front(),
                                                    grpc::InsecureChannelCredentials()));
  }

  ModelRuntime& runtime() { return *runtime_; }
  PausingExecutor& executor() { return *executor_; }
  pb::Generation::Stub& stub() { return *stub_; }
  pb::Admin::Stub& admin() { return *admin_; }

  // Greedy, with the sampled tokens' log-probabilities.
  static pb::GenerateRequest Request(const std::vector<TokenId>& prompt, int32_t max_tokens) {
    pb::GenerateRequest request = Rig::IdsRequest(prompt, max_tokens);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_response()->set_num_logprobs(0);
    return request;
  }
  Answer Generate(const pb::GenerateRequest& request) {
    Call call(*stub_, request);
    call.Finish();
    EXPECT_TRUE(call.answer.status.ok()) << call.answer.status.error_message();
    return call.answer;
  }
  uint32_t Cached(const pb::GenerateRequest& request) {
    return Generate(request).usage.cached_tokens();
  }

  // fresh: with all that was done before. (The snapshot is taken at a step's end, an action's
  // answer comes at its beginning; one more answer is of the next step.)
  pb::BlockStats Stats(bool fresh = true) {
    if (fresh) {
      pb::ListPinsResponse pins;
      EXPECT_TRUE(Ask(&pb::Admin::Stub::ListPins, *admin_, pb::ListPinsRequest(), pins).ok());
    }
    pb::BlockStats stats;
    const grpc::Status status =
        Ask(&pb::Admin::Stub::GetBlockStats, *admin_, pb::GetBlockStatsRequest(), stats);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return stats;
  }
  pb::BlockBatch Blocks(pb::InspectBlocksRequest request = {}) {
    if (!request.has_limit()) request.set_limit(100'000);
    pb::BlockBatch all;
    const grpc::Status status = ReadAll(&pb::Admin::Stub::InspectBlocks, *admin_, request, all);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return all;
  }
  pb::RequestBatch Requests() {
    pb::RequestBatch all;
    const grpc::Status status =
        ReadAll(&pb::Admin::Stub::InspectRequests, *admin_, pb::InspectRequestsRequest(), all);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return all;
  }
  pb::PrefixBatch Tree(bool tokens = false) {
    pb::DumpPrefixTreeRequest request;
    request.set_include_tokens(tokens);
    request.set_limit(100'000);
    pb::PrefixBatch all;
    const grpc::Status status = ReadAll(&pb::Admin::Stub::DumpPrefixTree, *admin_, request, all);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return all;
  }

  std::vector<pb::BlockInfo> BlockList() {
    const pb::BlockBatch all = Blocks();
    return {all.blocks().begin(), all.blocks().end()};
  }
  std::vector<pb::PrefixNode> Nodes(bool tokens = false) {
    const pb::PrefixBatch all = Tree(tokens);
    return {all.nodes().begin(), all.nodes().end()};
  }

  // All four views between the same two steps. Asked for together, they usually are; if not, again.
  Moment Look() {
    Moment m;
    for (int attempt = 0; attempt < 200; ++attempt) {
      auto blocks = std::async(std::launch::async, [this] { return Blocks(); });
      auto requests = std::async(std::launch::async, [this] { return Requests(); });
      auto tree = std::async(std::launch::async, [this] { return Tree(); });
      m.blocks = blocks.get();
      m.requests = requests.get();
      m.tree = tree.get();
      m.stats = Stats(/*fresh=*/false);
      if (m.blocks.step() == m.stats.steps() && m.requests.step() == m.stats.steps() &&
          m.tree.step() == m.stats.steps()) {
        return m;
      }
    }
    ADD_FAILURE() << "no moment of 200 was the same for all";
    return m;
  }

  bool Eventually(const std::function<bool()>& holds) {
    for (int i = 0; i < 5000; ++i) {
      if (holds()) return true;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return false;
  }

 private:
  std::unique_ptr<ModelRuntime> runtime_;
  std::unique_ptr<PausingExecutor> executor_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<pb::Generation::Stub> stub_;
  std::unique_ptr<pb::Admin::Stub> admin_;
};

// `count` tokens below `vocab`, another text for each seed.
inline std::vector<TokenId> TestTokens(int32_t count, uint32_t seed, int32_t vocab = 200) {
  std::vector<TokenId> ids;
  uint32_t x = seed * 2654435761u + 12345u;
  for (int32_t i = 0; i < count; ++i) {
    x = x * 1664525u + 1013904223u;
    ids.push_back(static_cast<TokenId>((x >> 8) % static_cast<uint32_t>(vocab)));
  }
  return ids;
}

}  // namespace quire::server_test
