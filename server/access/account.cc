// server/access/account.cc -- see account.h.
#include "server/access/account.h"

#include "server/access/retry_after.h"

namespace quire {

Account::Account(ApiKey key, const Account* before) : key_(std::move(key)) {
  const bool same_limits = before != nullptr &&
                           before->key_.requests_per_minute == key_.requests_per_minute &&
                           before->key_.tokens_per_minute == key_.tokens_per_minute;
  used_ = same_limits ? before->used_ : std::make_shared<Used>(key_);
}

absl::Status Account::TakeRequest(RateLimit::TimePoint now) {
  const std::lock_guard lock(used_->mutex);
  const auto refuse = [this](const char* what, const char* name, int64_t limit,
                             std::chrono::milliseconds wait) {
    return WithRetryAfter(Error(absl::StatusCode::kResourceExhausted,
                                "{} of key {} exceed {}={}; try again in {:.1f} s", what, key_.name,
                                name, limit, static_cast<double>(wait.count()) / 1e3),
                          wait);
  };
  if (const auto wait = used_->tokens.WaitFor(1, now); wait.count() > 0) {
    return refuse("tokens", "tokens_per_minute", key_.tokens_per_minute, wait);
  }
  if (const auto wait = used_->requests.WaitFor(1, now); wait.count() > 0) {
    return refuse("requests", "requests_per_minute", key_.requests_per_minute, wait);
  }
  used_->requests.Take(1, now);
  return absl::OkStatus();
}

void Account::TakeTokens(int64_t tokens, RateLimit::TimePoint now) {
  const std::lock_guard lock(used_->mutex);
  used_->tokens.Take(static_cast<double>(tokens), now);
}

}  // namespace quire
