// server/convert.h -- requests and answers, between the proto and our own types (what operators are
// shown: admin/admin_convert.h).
//
// From the wire: a GenerateRequest becomes a checked Generation. Sampling fields are mapped by name
// through protobuf's reflection, so a new one needs no line here; a test fails if a name has no
// twin (convert_decoding.cc: what is searched for, guessed and allowed). To the wire: events and
// results (convert_answers.cc). Any thread; nothing here blocks except the chat template.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "quire/v1/quire.pb.h"
#include "scheduler/engine.h"
#include "server/access/account.h"
#include "server/edge/edge.h"
#include "server/edge/generation.h"
#include "server/served_model.h"

namespace quire {

namespace pb = ::quire::v1;

struct Arrival {
  RequestId id = 0;
  Clock::time_point time{};
  Clock::time_point deadline = Clock::time_point::max();  // grpc-timeout
  // Metadata; empty = not given.
  std::string kv_retention;  // x-kv-retention
  std::string priority;      // x-priority
  std::string tenant;        // x-tenant-id
  // Whose key it came with; null: keys are off (access/access_control.h).
  std::shared_ptr<Account> account;
};

// unary: the whole answer must fit into one message.
// ERRORS: kInvalidArgument naming the field by its path ("sampling.temperature=..."), kNotFound for
// another model's name, what the chat template says.
absl::StatusOr<Generation> FromProto(const pb::GenerateRequest& request, const ServedModel& model,
                                     const Arrival& arrival, bool unary);

// Names of the fields of SamplingParams, BeamParams and SpeculationParams (VisitFields) that have
// no twin in the proto; empty if all have. For the test.
std::vector<std::string> SamplingFieldsWithoutTwin();

absl::Status TokenizeFromProto(const pb::TokenizeRequest& request, const ServedModel& model,
                               pb::TokenizeResponse& response);
absl::Status DetokenizeFromProto(const pb::DetokenizeRequest& request, const ServedModel& model,
                                 pb::DetokenizeResponse& response);

// A prefix to pin.
struct PinRequest {
  std::vector<TokenId> tokens;
  std::string cache_salt;
  int64_t ttl_ms = 0;  // 0 = for ever
};
absl::Status PinFromProto(const pb::PinPrefixRequest& request, const ServedModel& model,
                          PinRequest& pin);

void ToProto(const RequestStats& stats, pb::Accepted& out);
void ToProto(const RequestStats& stats, pb::Usage& usage, pb::Timings& timings);
void ToProto(const std::vector<PromptLogprob>& logprobs, pb::PromptLogprobs& out);
void AppendTo(pb::GenerateResult& out, const std::vector<PromptLogprob>& logprobs);
void ToProto(const Delta& delta, pb::Delta& out);
// Joins what follows of the same output: fewer, larger messages for a reader that is behind.
void AppendTo(pb::Delta& out, const Delta& delta);
void AppendTo(pb::Output& out, const Delta& delta);
void ToProto(const BranchEnd& end, pb::Finished& out);

}  // namespace quire
