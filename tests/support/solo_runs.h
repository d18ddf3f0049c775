// tests/support/solo_runs.h -- what requests answer alone, and that they answer it together, too,
// whatever an operator does meanwhile.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/model_rig.h"

namespace quire::server_test {

inline RuntimeOptions Small(int32_t num_blocks) {
  RuntimeOptions o;
  o.block_size = 8;
  o.max_num_seqs = 8;
  o.max_num_batched_tokens = 64;
  o.max_model_len = 256;
  o.memory.num_blocks = num_blocks;
  return o;
}

struct Solo {
  std::vector<pb::GenerateRequest> requests;
  std::vector<Answer> answers;
};

// Each alone, on a daemon of its own that shares nothing.
inline Solo RunAlone(const std::string& model, int num_requests) {
  Solo solo;
  ModelRig rig(model, Small(800));
  for (int i = 0; i < num_requests; ++i) {
    std::vector<TokenId> prompt = TestTokens(40, 7);
    const std::vector<TokenId> own = TestTokens(20 + 7 * i, 50 + static_cast<uint32_t>(i));
    prompt.insert(prompt.end(), own.begin(), own.end());
    pb::GenerateRequest request = ModelRig::Request(prompt, 60);
    if (i % 3 == 1) request.mutable_sampling()->set_n(2);
    request.mutable_sampling()->set_seed(9);
    if (i % 2 == 1) request.mutable_sampling()->set_temperature(1);
    solo.requests.push_back(request);
    request.mutable_kv()->set_bypass_prefix_cache(true);
    solo.answers.push_back(rig.Generate(request));
  }
  return solo;
}

inline void ExpectEqual(const Answer& a, const Answer& b) {
  EXPECT_EQ(a.token_ids, b.token_ids);
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
  for (const auto& [branch, logprobs] : a.logprobs) {
    ASSERT_EQ(logprobs.size(), b.logprobs.at(branch).size());
    for (size_t i = 0; i < logprobs.size(); ++i) {
      EXPECT_EQ(logprobs[i].logprob(), b.logprobs.at(branch)[i].logprob());  // bit for bit
    }
  }
}

// Runs all at once while `meddle` is called over and over.
inline void RunTogether(ModelRig& rig, const Solo& solo, const std::function<void(int)>& meddle) {
  std::vector<std::unique_ptr<Call>> calls;
  for (const pb::GenerateRequest& r : solo.requests) {
    calls.push_back(std::make_unique<Call>(rig.stub(), r));
  }
  std::atomic<bool> done{false};
  std::thread meddler([&] {
    for (int i = 0; !done; ++i) meddle(i);
  });
  for (auto& call : calls) call->Finish();
  done = true;
  meddler.join();
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_TRUE(calls[i]->answer.status.ok()) << calls[i]->answer.status.error_message();
    ExpectEqual(calls[i]->answer, solo.answers[i]);
  }
}

}  // namespace quire::server_test
