// kernels/profile/op_table.h -- a profile for people and for programs: a table, JSON, a trace.
//
// Called by `quire bench ops` and at the end of `quire serve --profile-ops`. Pure functions, but
// for WriteTrace.
#pragma once

#include <string>

#include "base/json.h"
#include "base/status.h"
#include "kernels/profile/machine_peaks.h"
#include "kernels/profile/op_profile.h"

namespace quire::kernels {

// One line per operation that ran in steps of this kind, the longest first; then the sum. Columns:
// docs/kernels.md. Empty if there was no such step.
std::string OpTable(const OpProfile& profile, StepKind kind, const MachinePeaks& peaks);
std::string PeaksText(const MachinePeaks& peaks);

// An object each: the same figures, unrounded.
void WriteOps(const OpProfile& profile, StepKind kind, const MachinePeaks& peaks, JsonWriter& w);
void WritePeaks(const MachinePeaks& peaks, JsonWriter& w);

// The spans that the profile kept as Chrome's trace event format: complete events in microseconds,
// steps around their operations, one track per thread.
std::string ChromeTrace(const OpProfile& profile);
// ERRORS: kInvalidArgument naming trace_file and the system's reason.
absl::Status WriteTrace(const OpProfile& profile, const std::string& path);

}  // namespace quire::kernels
