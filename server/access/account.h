// server/access/account.h -- a key with what its requests have used.
//
// Any thread. A request keeps its account alive, also when its key is taken out of the file.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "base/status.h"
#include "server/access/api_key.h"
#include "server/access/rate_limit.h"

namespace quire {

class Account {
 public:
  // before: the account of the same key in the file's last version; what was used stays used.
  explicit Account(ApiKey key, const Account* before = nullptr);

  const ApiKey& key() const { return key_; }

  // A new request, before any work is done for it.
  // ERRORS: kResourceExhausted with RetryAfter, naming the limit.
  absl::Status TakeRequest(RateLimit::TimePoint now);
  // Tokens of its prompt once they are counted, and those of its output at its end.
  void TakeTokens(int64_t tokens, RateLimit::TimePoint now);

 private:
  struct Used {
    explicit Used(const ApiKey& key)
        : requests(key.requests_per_minute), tokens(key.tokens_per_minute) {}
    std::mutex mutex;
    RateLimit requests;  // guarded by mutex
    RateLimit tokens;    // guarded by mutex
  };

  const ApiKey key_;
  std::shared_ptr<Used> used_;
};

}  // namespace quire
