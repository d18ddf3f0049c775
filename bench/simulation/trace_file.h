// bench/simulation/trace_file.h -- traces as JSON lines (docs/formats.md), read one at a time.
//
// The file is untrusted: lines have a limit, every value a range, unknown members are refused.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "bench/simulation/trace.h"

namespace quire {

// line_number, from 1, names the texts that a line does not name. ERRORS: kInvalidArgument naming
// the field.
absl::StatusOr<TraceRequest> ParseTraceLine(std::string_view line, int64_t line_number);
// The inverse, with a newline.
std::string TraceLine(const TraceRequest& request);

// ERRORS: kNotFound; of Next: kInvalidArgument naming file, line and field.
absl::StatusOr<std::unique_ptr<TraceSource>> OpenTrace(const std::string& path);

}  // namespace quire
