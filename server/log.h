// server/log.h -- the daemon's log: one line per event on standard error, `key=value` pairs behind
// a fixed message, request ids, never a prompt or an answer.
#pragma once

#include <string>

namespace quire {

// level: a choice of ServerOptions::log_level.
void InitLog(const std::string& level);

}  // namespace quire
