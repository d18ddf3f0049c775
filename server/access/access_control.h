// server/access/access_control.h -- who may call what. The same for gRPC and HTTP.
//
// Each front end asks here before it does anything else with a request: gRPC for every call of a
// port, whichever service it is for (grpc/guarded_credentials.h), HTTP for every request. Who is
// let in is told again to FrontDoor::Admit, which lets nobody in without it.
// Any thread. The list of keys is replaced as a whole when its file has changed; a file that can't
// be read leaves the list as it is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/access/account.h"

namespace quire {

// What a request brought along; empty = not given.
struct Credentials {
  std::string authorization;  // the header's value: "Bearer <key>"
  std::string x_api_key;      // the other header's value
  bool repeated = false;      // one of them came more than once
};

struct AccessCounts {
  uint64_t unauthenticated = 0;  // no key, or one that is not known
  uint64_t denied = 0;           // a key that may not do that
  uint64_t rate_limited = 0;
  uint64_t reload_errors = 0;
};

class AccessControl {
 public:
  struct Options {
    std::string api_key_file;      // empty: everybody may call
    bool open_reflection = false;  // gRPC reflection without a key
  };
  // ERRORS: those of ReadKeys.
  static absl::StatusOr<std::unique_ptr<AccessControl>> Open(Options options);

  bool on() const { return !options_.api_key_file.empty(); }
  const std::string& path() const { return options_.api_key_file; }

  // The account of a key; null if keys are off. ERRORS: kUnauthenticated.
  absl::StatusOr<std::shared_ptr<Account>> Identify(const Credentials& credentials) const;

  // A gRPC call, by its path ("/package.Service/Method"). admin_only: the port is the operator's,
  // so the key must be one; as it must for methods of any port that reach all tenants.
  // ERRORS: kUnauthenticated, kPermissionDenied.
  absl::Status CheckCall(std::string_view path, const Credentials& credentials,
                         bool admin_only) const;
  // An HTTP request, by its target; a query is ignored. Null if keys are off or the target is open.
  // ERRORS: as CheckCall.
  absl::StatusOr<std::shared_ptr<Account>> CheckHttp(std::string_view target,
                                                     const Credentials& credentials) const;

  // A new request of an account, before any work is done for it. account: null if keys are off.
  // ERRORS: kUnauthenticated if it is null and keys are on, those of Account::TakeRequest.
  absl::Status TakeRequest(Account* account, RateLimit::TimePoint now);

  // Reads the file again; what used the same key and limits stays counted. ERRORS: those of
  // ReadKeys, and nothing changes.
  absl::Status Reload();

  AccessCounts counts() const;

 private:
  using Accounts = std::vector<std::shared_ptr<Account>>;

  explicit AccessControl(Options options) : options_(std::move(options)) {}
  std::shared_ptr<const Accounts> accounts() const;
  absl::Status CheckOperator(const Account& account) const;

  const Options options_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Accounts> accounts_;  // guarded by mutex_; never null
  mutable std::atomic<uint64_t> unauthenticated_{0}, denied_{0};
  std::atomic<uint64_t> rate_limited_{0}, reload_errors_{0};
};

}  // namespace quire
