// server/openengine/oe_extra.h -- the keys of openengine's GenerateRequest.extra that mean
// something here. Others are for other engines: that contract lets an engine ignore what it doesn't
// know.
#pragma once

#include <google/protobuf/struct.pb.h>

#include "base/status.h"
#include "quire/v1/quire.pb.h"

namespace quire {

namespace pb = ::quire::v1;

// beam_width, length_penalty, early_stopping, beam_search_diversity_rate, priority, kv_retention.
// REQUIRES: r.sampling is read. ERRORS: kInvalidArgument naming the key.
absl::Status ReadExtra(const google::protobuf::Struct& extra, pb::GenerateRequest& r);

}  // namespace quire
