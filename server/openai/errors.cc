#include "server/openai/errors.h"

#include <algorithm>

#include "base/json.h"
#include "server/access/retry_after.h"
#include "server/openai/call.h"

namespace quire {
namespace {

constexpr std::string_view kRetryAfter = "1";  // seconds

std::string_view TypeOf(int http_status) {
  switch (http_status) {
    case 401:
      return "AuthenticationError";
    case 403:
      return "PermissionDeniedError";
    case 404:
      return "NotFoundError";
    case 408:
    case 504:
      return "TimeoutError";
    case 422:
      return "UnprocessableEntityError";
    case 429:
      return "RateLimitError";
    case 499:
      return "CancelledError";
    case 503:
      return "ServiceUnavailableError";
    default:
      return http_status >= 500 ? "InternalServerError" : "BadRequestError";
  }
}

// "top_p=3 is outside" begins with a field, "the queue is full" does not.
std::string_view FieldOf(std::string_view message) {
  const size_t end = message.find_first_of("= :");
  if (end == std::string_view::npos || end == 0) return {};
  const std::string_view word = message.substr(0, end);
  const bool is_name = std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '[' ||
           c == ']';
  });
  if (!is_name) return {};
  return message[end] == '=' || word.find_first_of("_.[") != std::string_view::npos
             ? word
             : std::string_view();
}

}  // namespace

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kFailedPrecondition:
      return 422;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string ErrorBody(int http_status, std::string_view message, std::string_view param) {
  JsonWriter w;
  w.BeginObject();
  w.Key("error");
  w.BeginObject();
  w.Key("message");
  w.String(message);
  w.Key("type");
  w.String(TypeOf(http_status));
  w.Key("param");
  if (param.empty()) {
    w.Null();
  } else {
    w.String(param);
  }
  w.Key("code");
  w.Int(http_status);
  w.EndObject();
  w.EndObject();
  return w.text();
}

std::string ErrorBody(const absl::Status& status) {
  // Of routes that generate nothing; GenerationCall has renamed them by its body.
  static const auto* const names = new FieldNames(OpenAiFieldNames({}));
  const std::string message = Renamed(Message(status), *names);
  return ErrorBody(HttpStatusOf(status), message, FieldOf(message));
}

HttpReply ErrorReply(const absl::Status& status) {
  HttpReply reply = ErrorReply(HttpStatusOf(status), {});
  reply.body = ErrorBody(status);
  if (const auto wait = RetryAfter(status); wait.has_value()) {
    for (auto& [name, value] : reply.headers) {
      if (name == "retry-after") value = std::to_string((wait->count() + 999) / 1000);
    }
    reply.headers.emplace_back("retry-after-ms", std::to_string(wait->count()));
  }
  return reply;
}

HttpReply ErrorReply(int http_status, std::string_view message) {
  HttpReply reply{.status = http_status, .body = ErrorBody(http_status, message)};
  if (http_status == 429 || http_status == 503) {
    reply.headers.emplace_back("retry-after", kRetryAfter);
  } else if (http_status >= 500 || http_status == 408) {
    // A deadline that passed would pass again, and so would a fault of ours.
    reply.headers.emplace_back("x-should-retry", "false");
  }
  if (http_status == 401) reply.headers.emplace_back("www-authenticate", "Bearer");
  return reply;
}

}  // namespace quire
