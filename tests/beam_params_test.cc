// Which beam, speculation and logprob parameters are refused, and that the message tells what to
// change.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "sampling/params.h"

namespace quire {
namespace {

struct All {
  BeamParams beam{.beam_width = 4};
  SamplingParams sampling{.temperature = 0};
  StopConditions stop{.max_tokens = 8};
};

absl::Status Check(const std::function<void(All&)>& change) {
  All all;
  change(all);
  return Validate(all.beam, all.sampling, all.stop);
}

void ExpectRefused(const absl::Status& status, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const std::string& part : parts) {
    EXPECT_NE(Message(status).find(part), std::string::npos) << part << " in: " << status;
  }
}

TEST(ValidateBeams, Accepted) {
  EXPECT_TRUE(Check([](All&) {}).ok());
  EXPECT_TRUE(Check([](All& a) { a.beam = {}; }).ok());
  EXPECT_TRUE(Check([](All& a) { a.beam = {}, a.sampling.temperature = 0.3f; }).ok());
  EXPECT_TRUE(Check([](All& a) { a.sampling.temperature = 1; }).ok());  // the default
  EXPECT_TRUE(Check([](All& a) { a.sampling.seed = 0; }).ok());
  EXPECT_TRUE(Check([](All& a) { a.sampling.top_k = -1; }).ok());
  EXPECT_TRUE(Check([](All& a) { a.sampling.num_logprobs = 0; }).ok());
  EXPECT_TRUE(Check([](All& a) { a.sampling.frequency_penalty = 1; }).ok());
  EXPECT_TRUE(Check([](All& a) { a.beam.num_groups = 2, a.beam.diversity_rate = 0.5f; }).ok());
}

TEST(ValidateBeams, Refused) {
  using Parts = std::vector<std::string>;
  const std::pair<std::function<void(All&)>, Parts> cases[] = {
      {[](All& a) { a.beam.beam_width = 65; }, {"beam_width=65", "[1, 64]"}},
      {[](All& a) { a.beam.beam_width = -1; }, {"beam_width=-1", "[1, 64]"}},
      {[](All& a) { a.beam.length_penalty = std::nanf(""); },
       {"length_penalty=nan", "[-100, 100]"}},
      {[](All& a) { a.beam.num_return_sequences = 5; },
       {"num_return_sequences=5", "beam_width=4", "raise"}},
      {[](All& a) { a.beam.num_groups = 3, a.beam.diversity_rate = 1; },
       {"num_groups=3", "beam_width=4", "to 6"}},
      {[](All& a) { a.beam.num_groups = 2; }, {"diversity_rate=0", "num_groups=2"}},
      {[](All& a) { a.beam.diversity_rate = 0.5f; }, {"diversity_rate=0.5", "num_groups"}},
      {[](All& a) { a.sampling.n = 2; }, {"n=2", "must be 1", "num_return_sequences"}},
      {[](All& a) { a.sampling.temperature = 0.7f; }, {"temperature=0.7", "beam_width=4", "0"}},
      {[](All& a) { a.sampling.top_p = 0.5f; }, {"top_p=0.5", "set it to 1"}},
      {[](All& a) { a.sampling.top_k = 5; }, {"top_k=5", "set it to 0"}},
      {[](All& a) { a.sampling.min_p = 0.5f; }, {"min_p=0.5", "set it to 0"}},
      {[](All& a) { a.sampling.typical_p = 0.5f; }, {"typical_p=0.5", "set it to 1"}},
      {[](All& a) { a.sampling.top_n_sigma = 2; }, {"top_n_sigma=2", "set it to 0"}},
      {[](All& a) { a.sampling.num_logprobs = 3; }, {"num_logprobs=3", "at most 0"}},
      {[](All& a) { a.sampling.logprob_token_ids = {1}; }, {"logprob_token_ids", "1 ids"}},
      {[](All& a) { a.stop.stop_token_ids.assign(257, 1); }, {"257", "256"}},
      {[](All& a) { a.beam = {.num_return_sequences = 2}; },
       {"num_return_sequences=2", "beam_width is 0"}},
      {[](All& a) { a.beam = {.length_penalty = 2}; }, {"length_penalty=2", "set beam_width"}},
      {[](All& a) { a.beam = {.early_stopping = EarlyStopping::kNever}; },
       {"early_stopping=never", "set beam_width"}},
  };
  for (const auto& c : cases) ExpectRefused(Check(c.first), c.second);
}

TEST(ValidateSpeculation, RangesAndBeams) {
  EXPECT_TRUE(Validate(SpeculationParams{}, BeamParams{}).ok());
  EXPECT_TRUE(Validate(SpeculationParams{}, BeamParams{.beam_width = 4}).ok());
  EXPECT_TRUE(Validate({.method = SpeculationMethod::kNgram, .num_tokens = 64}, BeamParams{}).ok());
  ExpectRefused(Validate({.num_tokens = 65}, BeamParams{}), {"num_tokens=65", "[0, 64]"});
  ExpectRefused(Validate({.branching_factor = 0}, BeamParams{}), {"branching_factor=0", "[1, 16]"});
  ExpectRefused(Validate({.method = SpeculationMethod::kDraft}, BeamParams{.beam_width = 4}),
                {"method=draft", "beam_width=4", "none"});
  ExpectRefused(Validate({.method = SpeculationMethod::kNone, .num_tokens = 4}, BeamParams{}),
                {"num_tokens=4", "method=none"});
  EXPECT_TRUE(Validate({.rejection_sampling = true}, BeamParams{}).ok());
  ExpectRefused(
      Validate({.method = SpeculationMethod::kNone, .rejection_sampling = true}, BeamParams{}),
      {"rejection_sampling=true", "method=none"});
  ExpectRefused(Validate({.branching_factor = 2, .rejection_sampling = true}, BeamParams{}),
                {"branching_factor=2", "rejection_sampling=true"});
}

TEST(ValidateLogprobs, TokenIds) {
  const StopConditions stop{.max_tokens = 4};
  SamplingParams p;
  p.logprob_token_ids.assign(128, 63);
  EXPECT_TRUE(Validate(p, stop, 64).ok());
  p.logprob_token_ids.push_back(0);
  ExpectRefused(Validate(p, stop, 64), {"logprob_token_ids", "129", "128"});
  p.logprob_token_ids = {0, 64};
  ExpectRefused(Validate(p, stop, 64), {"logprob_token_ids[1]=64", "[0, 63]"});
  p.logprob_token_ids = {-1};
  ExpectRefused(Validate(p, stop, 64), {"logprob_token_ids[0]=-1", "[0, 63]"});
}

}  // namespace
}  // namespace quire
