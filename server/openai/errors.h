// server/openai/errors.h -- a status as an OpenAI client reads it. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http/exchange.h"

namespace quire {

// FIELD of HTTP for each code: 400, 401, 403, 404, 422, 429, 499, 500, 503, 504.
int HttpStatusOf(const absl::Status& status);

// {"error": {"message", "type", "param", "code"}}. param is the field that the message begins with,
// by its name in OpenAI's API.
std::string ErrorBody(const absl::Status& status);
std::string ErrorBody(int http_status, std::string_view message, std::string_view param = {});

// With the headers that clients decide a retry by.
HttpReply ErrorReply(const absl::Status& status);
HttpReply ErrorReply(int http_status, std::string_view message);

}  // namespace quire
