// server/convert_decoding.h -- how a request wants its tokens found: beams, best_of, guesses and
// what the output must look like. Used by convert.cc; any thread.
#pragma once

#include "base/status.h"
#include "quire/v1/quire.pb.h"
#include "server/edge/generation.h"
#include "server/served_model.h"

namespace quire {

namespace pb = ::quire::v1;

// Fills request.beam, request.speculation, generation.grammar and what best_of makes of
// request.sampling. REQUIRES: request.sampling and request.stop are read and valid, stop strings
// are in `generation`. ERRORS: kInvalidArgument naming the field by its path; combinations that
// can't be had are refused.
absl::Status ReadDecoding(const pb::GenerateRequest& r, const ServedModel& model, Request& request,
                          Generation& generation);

}  // namespace quire
