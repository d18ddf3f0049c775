// server/kserve/infer_request.h -- a ModelInferRequest with the tensors of Triton's vLLM backend,
// checked and written as ours.
//
// Called by kserve_service.cc on gRPC threads; pure. Every tensor holds one element: a batch is
// many requests. Values lie in raw_input_contents, little-endian, strings with their length before
// them, or in `contents`.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "inference/grpc_service.pb.h"
#include "quire/v1/quire.pb.h"
#include "server/served_model.h"

namespace quire {

namespace pb = ::quire::v1;

inline constexpr const char* kKserveModelVersion = "1";

// One tensor of the model, for requests, metadata and configuration.
struct KserveTensor {
  const char* name;
  const char* datatype;
  int64_t elements;  // -1: as many as there are outputs
};
extern const std::vector<KserveTensor> kKserveInputs;
extern const std::vector<KserveTensor> kKserveOutputs;

// What is asked for besides the text.
struct KserveOptions {
  std::string id;  // the client's, given back
  bool stream = false;
  bool echo_prompt = true;
  bool text = true;
  bool finish_reason = false;
  bool cumulative_logprob = false;
  bool logprobs = false;
  bool num_input_tokens = false;
  bool num_output_tokens = false;
  bool final_response = false;  // tell which response is the last
};

struct KserveRequest {
  pb::GenerateRequest request;
  KserveOptions options;
  std::string text;
};

// ERRORS: kInvalidArgument naming tensor, parameter or key; kNotFound for another model.
absl::StatusOr<KserveRequest> FromKserve(const inference::ModelInferRequest& request,
                                         const ServedModel& model);

// Name and version; both may be empty. ERRORS: kNotFound.
absl::Status CheckKserveModel(const std::string& name, const std::string& version,
                              const ServedModel& model);

}  // namespace quire
