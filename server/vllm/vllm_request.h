// server/vllm/vllm_request.h -- requests of vllm.grpc.engine, written as ours.
//
// Called by vllm_service.cc on gRPC threads; pure. That proto has plain scalars where ours has
// optional ones, so zero stands for "not given" in some fields and for itself in others: which, is
// decided here, as vLLM's own gRPC servicer (smg-grpc-servicer 0.14.1) has it.
#pragma once

#include "base/status.h"
#include "quire/v1/quire.pb.h"
#include "server/grpc/call.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace quire {

// ERRORS: kInvalidArgument naming the field of that proto.
absl::StatusOr<pb::GenerateRequest> FromVllm(const vllm::grpc::engine::GenerateRequest& request);

// For errors that are found in what FromVllm returned.
const FieldNames& VllmFieldNames();

}  // namespace quire
