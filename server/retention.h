// server/retention.h -- how long a request wants its cached blocks kept, from the wire: as a
// message or as the metadata x-kv-retention. Any thread; pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "paged_cache/retention.h"
#include "quire/v1/quire.pb.h"

namespace quire {

// A time in [1, a year] of milliseconds. ERRORS: kInvalidArgument naming `name`.
absl::Status CheckMs(std::string_view name, int64_t ms);

// What is asked for by either way, checked. text: of the metadata; "" = none. Its form is
//   range {"," range}     range = (start "-" [end] | "decode") ":" priority [":" ttl]
// with ttl a whole number and ms, s, m or h. ERRORS: kInvalidArgument naming field or part, value,
// limits; also if both ways are used.
absl::StatusOr<::quire::v1::RetentionPolicy> ReadRetention(const ::quire::v1::KvOptions& kv,
                                                           const std::string& text);

// Null if nothing is asked for. REQUIRES: `policy` is checked.
std::shared_ptr<const RetentionPolicy> ToPolicy(const ::quire::v1::RetentionPolicy& policy,
                                                int32_t prompt_tokens);

}  // namespace quire
