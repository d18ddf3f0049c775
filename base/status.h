// base/status.h -- the three ways a thing can go wrong, and nothing else.
//
// absl::Status, StatusOr<T>: the caller or the outside world is at fault (bad request, bad file,
//     device lost). Codes equal grpc::StatusCode, so the server casts.
// std::optional, bool: a normal "no": no free page, no cached prefix, queue full.
// CHECK, DCHECK: our own bug. Prints and aborts; never reachable from outside input.
//
// We do not throw. Exceptions from std:: or a dependency end the process at the thread's entry.
// Message form: `<field>=<value> <constraint>[; <remedy>]`, lower case, no full stop.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire {

// Builds a Status from a format string:
//   return Error(absl::StatusCode::kInvalidArgument, "temperature={} must be in [0, 2]", t);
template <typename... Args>
absl::Status Error(absl::StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return absl::Status(code, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
absl::Status InvalidArgument(fmt::format_string<Args...> format, Args&&... args) {
  return absl::Status(absl::StatusCode::kInvalidArgument,
                      fmt::format(format, std::forward<Args>(args)...));
}

// Debian's absl::string_view is not std::string_view; this is the one place that converts.
inline std::string Message(const absl::Status& status) {
  return std::string(status.message().data(), status.message().size());
}

// The same code, with `prefix` put before the message ("model.gguf: ...").
inline absl::Status Annotate(const absl::Status& status, std::string_view prefix) {
  if (status.ok()) return status;
  return absl::Status(status.code(), fmt::format("{}: {}", prefix, Message(status)));
}

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* expr,
                                     const std::string& detail) {
  std::fprintf(stderr, "%s:%d: CHECK(%s) failed. %s\n", file, line, expr, detail.c_str());
  std::abort();
}

}  // namespace quire

#define CHECK(cond, ...)                                                              \
  do {                                                                                \
    if (!(cond)) [[unlikely]]                                                         \
      ::quire::CheckFailed(__FILE__, __LINE__, #cond, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

// QUIRE_DEBUG_CHECKS is set by the dev, asan and tsan presets (with or without NDEBUG).
#ifndef QUIRE_DEBUG_CHECKS
#define DCHECK(cond, ...) \
  do {                    \
  } while (false && (cond))
#else
#define DCHECK CHECK
#endif

#define RETURN_IF_ERROR(expr)                                        \
  do {                                                               \
    if (::absl::Status status_ = (expr); !status_.ok()) [[unlikely]] \
      return status_;                                                \
  } while (false)

#define QUIRE_CONCAT_INNER(a, b) a##b
#define QUIRE_CONCAT(a, b) QUIRE_CONCAT_INNER(a, b)
#define ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                          \
  if (!tmp.ok()) [[unlikely]]                 \
    return std::move(tmp).status();           \
  lhs = *std::move(tmp)
// ASSIGN_OR_RETURN(const Foo foo, MakeFoo());
#define ASSIGN_OR_RETURN(lhs, expr) \
  ASSIGN_OR_RETURN_IMPL(QUIRE_CONCAT(statusor_, __LINE__), lhs, expr)
