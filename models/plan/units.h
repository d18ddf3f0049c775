// models/plan/units.h -- sizes as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

// "25769803776", "24GiB", "24 GB", "1.5TiB"; binary and decimal units as they are named.
// ERRORS: kInvalidArgument naming `field` and what would be right.
absl::StatusOr<int64_t> ParseBytes(std::string_view field, std::string_view text);
// "4096", "256K", "1M": K is 1024, as context lengths are told.
absl::StatusOr<int64_t> ParseTokens(std::string_view field, std::string_view text);

// "1,234,567".
std::string WithCommas(int64_t n);
// "524,288 B (512 KiB)", "2.00 GiB (2.15 GB)".
std::string BytesText(int64_t bytes);
// "2.00 GiB".
std::string BinaryText(int64_t bytes);
// "2.15 GB".
std::string DecimalText(int64_t bytes);

}  // namespace quire
