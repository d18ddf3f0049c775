// server/access/access_control.cc -- see access_control.h.
#include "server/access/access_control.h"

#include <algorithm>
#include <array>
#include <utility>

namespace quire {
namespace {

constexpr const char* kRemedy = "send `authorization: Bearer <key>` or `x-api-key: <key>`";

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// The scheme is case-insensitive (RFC 9110, section 11.1).
std::string_view BearerOf(std::string_view value) {
  constexpr std::string_view kScheme = "bearer ";
  if (value.size() < kScheme.size()) return {};
  for (size_t i = 0; i < kScheme.size(); ++i) {
    const char c = value[i];
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (lower != kScheme[i]) return {};
  }
  value.remove_prefix(kScheme.size());
  while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
  while (!value.empty() && value.back() == ' ') value.remove_suffix(1);
  return value;
}

// What probes ask, of whichever protocol.
bool IsProbe(std::string_view path) {
  constexpr std::array<std::string_view, 4> kProbes = {
      "/vllm.grpc.engine.VllmEngine/HealthCheck", "/openengine.v1.Control/Health",
      "/inference.GRPCInferenceService/ServerLive", "/inference.GRPCInferenceService/ServerReady"};
  return StartsWith(path, "/grpc.health.v1.Health/") ||
         std::find(kProbes.begin(), kProbes.end(), path) != kProbes.end();
}

// Methods that reach all tenants, whatever the service: they change what is served or cached, or
// tell the tokens of everybody's prompts (KV events).
bool IsForOperators(std::string_view path) {
  constexpr std::array<std::string_view, 10> kMethods = {
      "FlushCache",   "StartProfile",     "StopProfile",         "LoadLora",
      "UnloadLora",   "LogSettings",      "RepositoryModelLoad", "RepositoryModelUnload",
      "TraceSetting", "SubscribeKvEvents"};
  const std::string_view method = path.substr(path.rfind('/') + 1);
  return std::find(kMethods.begin(), kMethods.end(), method) != kMethods.end();
}

bool IsForOperatorsHttp(std::string_view path) {
  constexpr std::array<std::string_view, 5> kPaths = {"/reset_prefix_cache", "/start_profile",
                                                      "/stop_profile", "/v1/load_lora_adapter",
                                                      "/v1/unload_lora_adapter"};
  return std::find(kPaths.begin(), kPaths.end(), path) != kPaths.end();
}

// What probes and scrapers ask, without a key in every other server, too.
bool IsOpen(std::string_view target) {
  constexpr std::array<std::string_view, 6> kOpen = {"/health",  "/ping", "/metrics",
                                                     "/version", "/load", "/ready"};
  const std::string_view path = target.substr(0, target.find('?'));
  return std::find(kOpen.begin(), kOpen.end(), path) != kOpen.end();
}

}  // namespace

absl::StatusOr<std::unique_ptr<AccessControl>> AccessControl::Open(Options options) {
  std::unique_ptr<AccessControl> self(new AccessControl(std::move(options)));
  self->accounts_ = std::make_shared<Accounts>();
  if (self->on()) RETURN_IF_ERROR(self->Reload());
  return self;
}

std::shared_ptr<const AccessControl::Accounts> AccessControl::accounts() const {
  const std::lock_guard lock(mutex_);
  return accounts_;
}

absl::Status AccessControl::Reload() {
  absl::StatusOr<std::vector<ApiKey>> keys = ReadKeys(path());
  if (!keys.ok()) {
    ++reload_errors_;
    return Annotate(keys.status(), "api_key_file");
  }
  const std::shared_ptr<const Accounts> before = accounts();
  auto next = std::make_shared<Accounts>();
  for (ApiKey& key : *keys) {
    const auto same = std::find_if(before->begin(), before->end(), [&](const auto& account) {
      return account->key().name == key.name;
    });
    next->push_back(
        std::make_shared<Account>(std::move(key), same == before->end() ? nullptr : same->get()));
  }
  const std::lock_guard lock(mutex_);
  accounts_ = std::move(next);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Account>> AccessControl::Identify(
    const Credentials& credentials) const {
  if (!on()) return nullptr;
  const auto refuse = [this](std::string_view what) {
    ++unauthenticated_;
    return Error(absl::StatusCode::kUnauthenticated, "{}; {}", what, kRemedy);
  };
  if (credentials.repeated) return refuse("authorization or x-api-key is given twice");
  const bool by_bearer = credentials.x_api_key.empty();
  const std::string_view secret =
      by_bearer ? BearerOf(credentials.authorization) : std::string_view(credentials.x_api_key);
  if (secret.empty()) {
    return refuse(credentials.authorization.empty() ? "an API key is missing"
                                                    : "authorization is no bearer token");
  }
  const KeyHash hash = HashOfKey(secret);
  const std::shared_ptr<const Accounts> all = accounts();
  std::shared_ptr<Account> found;
  for (const std::shared_ptr<Account>& account : *all) {  // all of them, whoever it is
    if (SameHash(account->key().hash, hash)) found = account;
  }
  if (found == nullptr) return refuse("the API key is not known here");
  return found;
}

absl::Status AccessControl::CheckCall(std::string_view path, const Credentials& credentials,
                                      bool admin_only) const {
  if (!on()) return absl::OkStatus();
  if (IsProbe(path)) return absl::OkStatus();
  if (options_.open_reflection && StartsWith(path, "/grpc.reflection.")) return absl::OkStatus();
  const absl::StatusOr<std::shared_ptr<Account>> account = Identify(credentials);
  if (!account.ok()) return account.status();
  return admin_only || IsForOperators(path) ? CheckOperator(**account) : absl::OkStatus();
}

absl::Status AccessControl::CheckOperator(const Account& account) const {
  if (account.key().admin) return absl::OkStatus();
  ++denied_;
  return Error(absl::StatusCode::kPermissionDenied, "key {} has no admin=true, which this needs",
               account.key().name);
}

absl::StatusOr<std::shared_ptr<Account>> AccessControl::CheckHttp(
    std::string_view target, const Credentials& credentials) const {
  if (!on() || IsOpen(target)) return nullptr;
  ASSIGN_OR_RETURN(std::shared_ptr<Account> account, Identify(credentials));
  if (IsForOperatorsHttp(target.substr(0, target.find('?')))) {
    RETURN_IF_ERROR(CheckOperator(*account));
  }
  return account;
}

absl::Status AccessControl::TakeRequest(Account* account, RateLimit::TimePoint now) {
  if (!on()) return absl::OkStatus();
  if (account == nullptr) {
    ++unauthenticated_;
    return Error(absl::StatusCode::kUnauthenticated, "an API key is missing; {}", kRemedy);
  }
  absl::Status status = account->TakeRequest(now);
  if (!status.ok()) ++rate_limited_;
  return status;
}

AccessCounts AccessControl::counts() const {
  return {.unauthenticated = unauthenticated_,
          .denied = denied_,
          .rate_limited = rate_limited_,
          .reload_errors = reload_errors_};
}

}  // namespace quire
