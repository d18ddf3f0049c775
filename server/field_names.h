// server/field_names.h -- errors in the words of the protocol that a client speaks. Pure; any
// thread.
//
// Whatever a request came by, one set of checks refuses it (convert.h, the scheduler), which knows
// the fields by their names in quire.v1. Each other protocol has a table of what they are called
// there; a name is found wherever it stands in a message, so a remedy is understood, too.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace quire {

// Ours and theirs. A name of ours counts as a whole word ("n", "stopping.max_tokens"); one that
// ends with "." is the beginning of one. Where several fit, the longest.
using FieldNames = std::vector<std::pair<std::string, std::string>>;

std::string Renamed(std::string_view message, const FieldNames& names);
absl::Status WithNames(const absl::Status& status, const FieldNames& names);

}  // namespace quire
