// server/http/request_id.h -- ids by which a request is found in logs, answers and calls of Abort.
// Any thread.
#pragma once

#include <string>
#include <string_view>

namespace quire {

// Whether a client's x-request-id may be used: 1 to 100 printable ASCII characters, no spaces.
bool IsRequestId(std::string_view id);

// 32 random hexadecimal digits.
std::string NewRequestId();

}  // namespace quire
