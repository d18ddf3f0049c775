// server/kserve/sampling_json.h -- the JSON text of vLLM's SamplingParams that the tensor
// sampling_parameters holds. Pure; any thread.
#pragma once

#include <string>

#include "base/status.h"
#include "quire/v1/quire.pb.h"
#include "server/grpc/call.h"

namespace quire {

// Sets what the JSON names; a number may be a string, as Triton's examples have it. Without
// max_tokens it is 16, as in vLLM; null leaves it to the server. ERRORS: kInvalidArgument naming
// the key.
absl::Status ReadSamplingJson(const std::string& json, pb::GenerateRequest& request);

// For errors that are found in what ReadSamplingJson set.
const FieldNames& KserveFieldNames();

}  // namespace quire
