#include "models/plan/units.h"

#include <array>
#include <charconv>
#include <cmath>

#include "models/weights/byte_reader.h"

namespace quire {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};
constexpr Unit kUnits[] = {
    {"B", 1},           {"KB", 1e3},           {"MB", 1e6},
    {"GB", 1e9},        {"TB", 1e12},          {"KiB", 1024.0},
    {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0},
};

// A plain decimal number at the start; what follows it. Negative if there is none.
double LeadingNumber(std::string_view text, std::string_view& rest) {
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(value)) return -1;
  rest = text.substr(static_cast<size_t>(end - text.data()));
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  return value;
}

std::string Trimmed(double value) {
  std::string s = fmt::format("{:.2f}", value);
  if (s.size() > 3 && s.substr(s.size() - 3) == ".00" && value >= 100) s.resize(s.size() - 3);
  return s;
}

std::string Scaled(int64_t bytes, double base, const std::array<const char*, 5>& names) {
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= base && unit + 1 < names.size()) {
    value /= base;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{} {}", Trimmed(value), names[unit]);
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(std::string_view field, std::string_view text) {
  std::string_view rest;
  const double value = LeadingNumber(text, rest);
  double factor = rest.empty() ? 1 : 0;
  for (const Unit& unit : kUnits) {
    if (rest == unit.name) factor = unit.factor;
  }
  const double bytes = value * factor;
  if (value < 0 || factor == 0 || bytes < 1 || bytes > 1e15) {
    return InvalidArgument(
        "{}={} must be a size from 1 B to 1 PB: 24GiB, 80GB, 512MiB or plain bytes", field,
        Printable(text));
  }
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<int64_t> ParseTokens(std::string_view field, std::string_view text) {
  std::string_view rest;
  const double value = LeadingNumber(text, rest);
  const double factor = rest.empty()                 ? 1
                        : rest == "K" || rest == "k" ? 1024
                        : rest == "M"                ? 1 << 20
                                                     : 0;
  const double tokens = value * factor;
  if (value < 0 || factor == 0 || tokens < 1 || tokens > (1 << 30) ||
      tokens != std::floor(tokens)) {
    return InvalidArgument("{}={} must be a number of tokens from 1 to 2^30: 4096, 256K or 1M",
                           field, Printable(text));
  }
  return static_cast<int64_t>(tokens);
}

std::string WithCommas(int64_t n) {
  std::string digits = fmt::format("{}", n);
  const size_t first = digits[0] == '-' ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string BinaryText(int64_t bytes) {
  return Scaled(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
}

std::string DecimalText(int64_t bytes) {
  return Scaled(bytes, 1000, {"B", "kB", "MB", "GB", "TB"});
}

std::string BytesText(int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  if (bytes < 16 << 20) return fmt::format("{} B ({})", WithCommas(bytes), BinaryText(bytes));
  return fmt::format("{} ({})", BinaryText(bytes), DecimalText(bytes));
}

}  // namespace quire
