// server/convert.h -- the only file that sees both the proto and our own types.
//
// From the wire: a GenerateRequest becomes a checked Generation. Sampling fields are mapped by name
// through protobuf's reflection, so a new one needs no line here; a test fails if a name has no
// twin. To the wire: events and results. Any thread; nothing here blocks except the chat template.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "models/config.h"
#include "models/memory_profile.h"
#include "quire/v1/quire.pb.h"
#include "scheduler/engine.h"
#include "server/edge/edge.h"
#include "server/edge/generation.h"
#include "server/served_model.h"

namespace quire {

namespace pb = ::quire::v1;

struct Arrival {
  RequestId id = 0;
  Clock::time_point time{};
  Clock::time_point deadline = Clock::time_point::max();  // grpc-timeout
};

// unary: the whole answer must fit into one message.
// ERRORS: kInvalidArgument naming the field by its path ("sampling.temperature=..."), kNotFound for
// another model's name, what the chat template says.
absl::StatusOr<Generation> FromProto(const pb::GenerateRequest& request, const ServedModel& model,
                                     const Arrival& arrival, bool unary);

// Name, range and message of every field of SamplingParams::VisitFields that has no twin in the
// proto; empty if all have. For the test.
std::vector<std::string> SamplingFieldsWithoutTwin();

absl::Status TokenizeFromProto(const pb::TokenizeRequest& request, const ServedModel& model,
                               pb::TokenizeResponse& response);
absl::Status DetokenizeFromProto(const pb::DetokenizeRequest& request, const ServedModel& model,
                                 pb::DetokenizeResponse& response);

void ToProto(const RequestStats& stats, pb::Accepted& out);
void ToProto(const RequestStats& stats, pb::Usage& usage, pb::Timings& timings);
void ToProto(const Delta& delta, pb::Delta& out);
// Joins what follows of the same output: fewer, larger messages for a reader that is behind.
void AppendTo(pb::Delta& out, const Delta& delta);
void AppendTo(pb::Output& out, const Delta& delta);
void ToProto(const BranchEnd& end, pb::Finished& out);
void ToProto(const RequestCounts& counts, pb::RequestCounts& out);
void ToProto(const MemoryProfile& profile, pb::MemoryProfile& out);
void ToProto(const EngineSnapshot& snapshot, int32_t block_size, pb::BlockStats& out);

}  // namespace quire
