// server/openengine/oe_request.h -- requests of openengine.v1, written as ours. Called by
// oe_inference.cc on gRPC threads; pure.
#pragma once

#include "base/status.h"
#include "openengine/v1/openengine.pb.h"
#include "quire/v1/quire.pb.h"
#include "server/grpc/call.h"
#include "server/served_model.h"

namespace quire {

// What the answer needs to know besides.
struct OeOptions {
  bool output_logprobs = false;
  uint32_t prompt_logprob_start = 0;  // position of the first prompt token that is told
};

// ERRORS: kInvalidArgument naming the field of that proto.
absl::StatusOr<pb::GenerateRequest> FromOpenEngine(const openengine::v1::GenerateRequest& request,
                                                   OeOptions& options);

// For errors that are found in what FromOpenEngine returned.
const FieldNames& OeFieldNames();

}  // namespace quire
