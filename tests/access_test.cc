// server/access: keys and their file, rates, who may call what, what a key says about a request,
// and files that change. HARD-CASES kinds (n) and (q) are in the e2e tests; here is the pure logic.
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "server/access/access_control.h"
#include "server/access/file_watcher.h"
#include "server/access/key_rules.h"
#include "server/access/retry_after.h"
#include "server/access/security_options.h"
#include "server/grpc/status.h"

namespace quire {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;

// SHA-256 of "abc": FIPS 180-4's example.
constexpr const char* kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

class AccessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("quire_access_" + std::to_string(std::random_device()()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return (folder_ / "keys.yaml").string(); }
  void Write(const std::string& text) const {
    std::ofstream(path() + ".new", std::ios::binary) << text;
    std::filesystem::rename(path() + ".new", path());
  }
  std::unique_ptr<AccessControl> Open(const std::string& text, bool open_reflection = false) {
    Write(text);
    auto access = AccessControl::Open({.api_key_file = path(), .open_reflection = open_reflection});
    CHECK(access.ok(), "{}", Message(access.status()));
    return *std::move(access);
  }

  std::filesystem::path folder_;
};

std::string Entry(const std::string& name, const std::string& secret,
                  const std::string& more = "") {
  ApiKey key;
  key.name = name;
  key.hash = HashOfKey(secret);
  return ToYaml(key) + more;
}

Credentials Bearer(const std::string& key) { return {.authorization = "Bearer " + key}; }

StatusCode CodeOf(const AccessControl& access, const Credentials& credentials) {
  return access.CheckCall("/quire.v1.Generation/Generate", credentials, false).code();
}

TEST_F(AccessTest, TheHashIsSha256) {
  const auto keys = ParseKeys(std::string("- {name: abc, sha256: ") + kAbc + "}", "k");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_TRUE(SameHash((*keys)[0].hash, HashOfKey("abc")));
  EXPECT_FALSE(SameHash((*keys)[0].hash, HashOfKey("abd")));
}

TEST_F(AccessTest, WhatIsWrittenIsRead) {
  ApiKey key;
  key.name = "yes";  // which YAML could take for something else
  key.hash = HashOfKey("secret");
  key.tenant = "1e3";
  key.max_priority = -7;
  key.requests_per_minute = 60;
  key.tokens_per_minute = 1'000'000;
  key.admin = true;
  const auto keys = ParseKeys(ToYaml(key) + Entry("other", "another"), "k");
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->size(), 2u);
  const ApiKey& read = (*keys)[0];
  EXPECT_EQ(read.name, key.name);
  EXPECT_EQ(read.hash, key.hash);
  EXPECT_EQ(read.tenant, key.tenant);
  EXPECT_EQ(read.priority, std::nullopt);
  EXPECT_EQ(read.max_priority, -7);
  EXPECT_EQ(read.requests_per_minute, 60);
  EXPECT_EQ(read.tokens_per_minute, 1'000'000);
  EXPECT_TRUE(read.admin);
  EXPECT_FALSE((*keys)[1].admin);
}

TEST_F(AccessTest, JsonIsYaml) {
  const auto keys = ParseKeys(
      std::string(R"([{"name": "a", "sha256": ")") + kAbc + R"(", "priority": 2}])", "k.json");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ((*keys)[0].priority, 2);
}

TEST_F(AccessTest, AFileWithAMistakeIsRefusedWithItsPlace) {
  const std::string hash = std::string("sha256: ") + kAbc;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"name: a\n" + hash, "k:1: is not a list"},
      {"", "one list of keys"},
      {"- a", "a key is a map"},
      {"- name: a", "k:1: sha256 is missing"},
      {"- " + hash, "k:1: name is missing"},
      {"- name: a\n  sha256: abcd", "k:2: sha256 is not 64 hex digits"},
      {"- name: a\n  sha256: " + std::string(64, 'g'), "k:2: sha256 is not 64 hex digits"},
      {"- name: a\n  " + hash + "\n  tennant: x",
       "k:3: tennant is not a known field; did you mean "
       "tenant?"},
      {"- name: a\n  name: b\n  " + hash, "k:2: name is given twice"},
      {"- name: \"\"\n  " + hash, "k:1: name has 0 bytes"},
      {"- name: \"a b\"\n  " + hash, "k:1: name must be printable"},
      {"- name: a\n  " + hash + "\n  admin: yes", "k:3: admin=yes is not true or false"},
      {"- name: a\n  " + hash + "\n  priority: 1001", "k:3: priority=1001 is not a whole number"},
      {"- name: a\n  " + hash + "\n  tokens_per_minute: -1", "tokens_per_minute=-1"},
      {"- name: a\n  " + hash + "\n  requests_per_minute: 1.5", "requests_per_minute=1.5"},
      {"- name: a\n  " + hash + "\n  priority: 1\n  max_priority: 2", "both given"},
      {"- name: a\n  " + hash + "\n- name: a\n  sha256: " + std::string(64, '0'),
       "k:3: name=a is there twice"},
      {"- name: a\n  " + hash + "\n- name: b\n  " + hash, "k:3: the sha256 of b is there twice"},
      {"- name: [a]\n  " + hash, "k:1: a field is a name and a single value"},
      {"- name: a\n  tenant: \"x", "k:"}};
  for (const auto& [text, part] : cases) {
    const auto keys = ParseKeys(text, "k");
    ASSERT_FALSE(keys.ok()) << text;
    EXPECT_EQ(keys.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(Message(keys.status()).find(part), std::string::npos) << text << "\n"
                                                                    << keys.status();
  }
}

TEST_F(AccessTest, NewSecretsAreLongAndDiffer) {
  const std::string a = NewSecret();
  EXPECT_EQ(a.size(), 3 + 64u);
  EXPECT_EQ(a.substr(0, 3), "qk-");
  EXPECT_NE(a, NewSecret());
}

TEST_F(AccessTest, EachWayToSendAKey) {
  const auto access = Open(Entry("alice", "the secret") + Entry("bob", "bobs"));
  EXPECT_EQ(CodeOf(*access, Bearer("the secret")), StatusCode::kOk);
  EXPECT_EQ(CodeOf(*access, {.authorization = "bEARER   the secret "}), StatusCode::kOk);
  EXPECT_EQ(CodeOf(*access, {.x_api_key = "bobs"}), StatusCode::kOk);
  EXPECT_EQ((*access->Identify({.authorization = "Basic xyz", .x_api_key = "bobs"}))->key().name,
            "bob");
  for (const Credentials& wrong :
       std::vector<Credentials>{{},
                                Bearer(""),
                                Bearer("the secre"),
                                Bearer("the secret2"),
                                {.authorization = "the secret"},
                                {.authorization = "Basic the secret"},
                                {.authorization = "Bearer"},
                                {.x_api_key = "Bearer bobs"},
                                {.authorization = "Bearer the secret", .repeated = true},
                                {.authorization = std::string("Bearer the secret\0", 18)},
                                {.authorization = "Bearer " + std::string(kAbc)}}) {
    EXPECT_EQ(CodeOf(*access, wrong), StatusCode::kUnauthenticated) << wrong.authorization;
  }
  EXPECT_EQ(access->counts().unauthenticated, 11u);
  const std::string message =
      Message(access->CheckCall("/a.B/C", Bearer("something private"), false));
  EXPECT_EQ(message.find("private"), std::string::npos) << message;
}

TEST_F(AccessTest, WhatIsOpen) {
  const auto access = Open(Entry("alice", "secret"));
  const auto call = [&](const char* path) { return access->CheckCall(path, {}, false).code(); };
  EXPECT_EQ(call("/grpc.health.v1.Health/Check"), StatusCode::kOk);
  EXPECT_EQ(call("/grpc.health.v1.Health/Watch"), StatusCode::kOk);
  EXPECT_EQ(call("/vllm.grpc.engine.VllmEngine/HealthCheck"), StatusCode::kOk);
  EXPECT_EQ(call("/inference.GRPCInferenceService/ServerReady"), StatusCode::kOk);
  for (const char* path : {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                           "/quire.v1.Admin/Pause", "/no.such.Service/Call", "", "/",
                           "grpc.health.v1.Health/Check", "/grpc.health.v1.HealthX/Check",
                           "/other.Service/HealthCheck", "/openengine.v1.Control/HealthX"}) {
    EXPECT_EQ(call(path), StatusCode::kUnauthenticated) << path;
  }
  const auto open = Open(Entry("alice", "secret"), /*open_reflection=*/true);
  EXPECT_TRUE(
      open->CheckCall("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", {}, false).ok());
  EXPECT_FALSE(open->CheckCall("/quire.v1.Generation/Generate", {}, false).ok());

  for (const char* target : {"/health", "/ping", "/metrics", "/version", "/load", "/health?x=1"}) {
    const auto account = access->CheckHttp(target, {});
    ASSERT_TRUE(account.ok()) << target;
    EXPECT_EQ(*account, nullptr);
  }
  for (const char* target : {"/v1/models", "/healthz", "/health/../v1/models", "/metrics/x", "/"}) {
    EXPECT_EQ(access->CheckHttp(target, {}).status().code(), StatusCode::kUnauthenticated)
        << target;
  }
  EXPECT_EQ((*access->CheckHttp("/v1/models", Bearer("secret")))->key().name, "alice");
}

TEST_F(AccessTest, OperatorsPortWantsAnOperatorsKey) {
  const auto access = Open(Entry("alice", "secret") + Entry("op", "operator", "  admin: true\n"));
  EXPECT_EQ(access->CheckCall("/quire.v1.Admin/Pause", Bearer("operator"), true).code(),
            StatusCode::kOk);
  EXPECT_EQ(access->CheckCall("/quire.v1.Admin/Pause", Bearer("secret"), true).code(),
            StatusCode::kPermissionDenied);
  EXPECT_EQ(access->CheckCall("/quire.v1.Admin/Pause", {}, true).code(),
            StatusCode::kUnauthenticated);
  EXPECT_EQ(access->counts().denied, 1u);
  // On the port of clients, too, what reaches all tenants.
  for (const char* path :
       {"/vllm.grpc.engine.VllmEngine/FlushCache", "/openengine.v1.Control/SubscribeKvEvents",
        "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", "/some.later.Service/LoadLora"}) {
    EXPECT_EQ(access->CheckCall(path, Bearer("secret"), false).code(),
              StatusCode::kPermissionDenied)
        << path;
    EXPECT_TRUE(access->CheckCall(path, Bearer("operator"), false).ok()) << path;
  }
  EXPECT_EQ(access->CheckHttp("/reset_prefix_cache?x", Bearer("secret")).status().code(),
            StatusCode::kPermissionDenied);
  EXPECT_TRUE(access->CheckHttp("/reset_prefix_cache", Bearer("operator")).ok());
}

TEST_F(AccessTest, WithoutAFileEverybodyMayCall) {
  const auto access = AccessControl::Open({});
  ASSERT_TRUE(access.ok());
  EXPECT_FALSE((*access)->on());
  EXPECT_EQ(CodeOf(**access, {}), StatusCode::kOk);
  EXPECT_EQ(*(*access)->Identify(Bearer("x")), nullptr);
  EXPECT_TRUE((*access)->TakeRequest(nullptr, {}).ok());
}

// A front end that forgets to ask lets nobody in.
TEST_F(AccessTest, ARequestWithoutAnAccountIsRefusedAtTheDoor) {
  const auto access = Open(Entry("alice", "secret"));
  EXPECT_EQ(access->TakeRequest(nullptr, {}).code(), StatusCode::kUnauthenticated);
}

TEST_F(AccessTest, AReloadKeepsWhatWasUsedAndSurvivesABrokenFile) {
  const std::string limited = "  requests_per_minute: 2\n";
  const auto access = Open(Entry("alice", "secret", limited) + Entry("bob", "bobs"));
  const RateLimit::TimePoint now = std::chrono::steady_clock::now();
  const auto take = [&](const char* key) {
    return access->TakeRequest(access->Identify(Bearer(key))->get(), now).code();
  };
  EXPECT_EQ(take("secret"), StatusCode::kOk);
  EXPECT_EQ(take("secret"), StatusCode::kOk);
  EXPECT_EQ(take("secret"), StatusCode::kResourceExhausted);
  Write(Entry("alice", "secret", limited));  // bob is gone
  ASSERT_TRUE(access->Reload().ok());
  EXPECT_EQ(take("secret"), StatusCode::kResourceExhausted);
  EXPECT_EQ(CodeOf(*access, Bearer("bobs")), StatusCode::kUnauthenticated);
  Write(Entry("alice", "secret", limited) + "- name");
  const absl::Status broken = access->Reload();
  EXPECT_NE(Message(broken).find("api_key_file: " + path()), std::string::npos) << broken;
  EXPECT_EQ(access->counts().reload_errors, 1u);
  EXPECT_EQ(CodeOf(*access, Bearer("secret")), StatusCode::kOk);
  Write(Entry("alice", "new", "  requests_per_minute: 3\n"));
  ASSERT_TRUE(access->Reload().ok());
  EXPECT_EQ(CodeOf(*access, Bearer("secret")), StatusCode::kUnauthenticated);
  EXPECT_EQ(take("new"), StatusCode::kOk);  // another limit begins anew
}

TEST_F(AccessTest, ARefusedCallerIsToldWhenToComeAgain) {
  const auto access = Open(Entry("a", "requests", "  requests_per_minute: 60\n") +
                           Entry("b", "tokens", "  tokens_per_minute: 600\n"));
  RateLimit::TimePoint now = std::chrono::steady_clock::now();
  const auto account = *access->Identify(Bearer("requests"));
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(access->TakeRequest(account.get(), now).ok());
  const absl::Status full = access->TakeRequest(account.get(), now);
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(Message(full).find("requests_per_minute=60"), std::string::npos);
  EXPECT_EQ(RetryAfter(full), milliseconds(1000));  // 60 a minute is one a second
  EXPECT_TRUE(access->TakeRequest(account.get(), now + *RetryAfter(full)).ok());

  // What an output took is paid afterwards.
  const auto tokens = *access->Identify(Bearer("tokens"));
  EXPECT_TRUE(access->TakeRequest(tokens.get(), now).ok());
  tokens->TakeTokens(100, now);   // prompt
  tokens->TakeTokens(1100, now);  // output: 600 below zero
  const absl::Status below = access->TakeRequest(tokens.get(), now);
  EXPECT_EQ(below.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(Message(below).find("tokens_per_minute=600"), std::string::npos);
  EXPECT_EQ(RetryAfter(below), milliseconds(60'100));  // 601 tokens at 10 a second
  EXPECT_FALSE(access->TakeRequest(tokens.get(), now + seconds(60)).ok());
  EXPECT_TRUE(access->TakeRequest(tokens.get(), now + milliseconds(60'100)).ok());
  EXPECT_EQ(access->counts().rate_limited, 3u);
}

// The bound of rate_limit.h, for arrivals at random.
TEST(RateLimitTest, NoMoreThanTheLimitInAnyTime) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    const int64_t limit = std::uniform_int_distribution<int64_t>(1, 200)(random);
    RateLimit rate(limit);
    const RateLimit::TimePoint start{};
    std::vector<double> taken;  // minutes
    double minutes = 0;
    for (int i = 0; i < 2000; ++i) {
      minutes += std::exponential_distribution<double>(3.0 * static_cast<double>(limit))(random);
      const RateLimit::TimePoint now =
          start + std::chrono::duration_cast<RateLimit::TimePoint::duration>(
                      std::chrono::duration<double, std::ratio<60>>(minutes));
      if (rate.WaitFor(1, now).count() > 0) continue;
      rate.Take(1, now);
      taken.push_back(minutes);
    }
    ASSERT_GT(taken.size(), 0u);
    for (size_t i = 0; i < taken.size(); ++i) {
      for (size_t j = i; j < taken.size(); ++j) {
        const double most = static_cast<double>(limit) * (1 + taken[j] - taken[i]);
        ASSERT_LE(static_cast<double>(j - i + 1), most + 1e-6) << limit;
      }
    }
  }
}

TEST(RateLimitTest, TimeThatGoesBackGivesNothing) {
  RateLimit rate(60);
  const RateLimit::TimePoint now = std::chrono::steady_clock::now();
  rate.Take(60, now);
  EXPECT_GT(rate.WaitFor(1, now - seconds(100)).count(), 0);
  EXPECT_EQ(rate.WaitFor(1, now).count(), 1000);
}

TEST(KeyRules, TenantAndPriority) {
  const auto apply = [](const ApiKey& key, std::optional<std::string> tenant,
                        std::optional<int32_t> priority) -> absl::StatusOr<Request> {
    Request request;
    request.tenant = tenant.value_or("from-a-header");
    request.priority = priority.value_or(0);
    RETURN_IF_ERROR(ApplyKey(key, tenant.has_value(), priority.has_value(), request));
    return request;
  };
  ApiKey free;
  EXPECT_EQ(apply(free, "t", 9)->tenant, "t");
  EXPECT_EQ(apply(free, {}, 9)->priority, 9);
  ApiKey bound;
  bound.name = "k";
  bound.tenant = "mine";
  bound.priority = 3;
  EXPECT_EQ(apply(bound, {}, {})->tenant, "mine");  // the header is overridden
  EXPECT_EQ(apply(bound, {}, {})->priority, 3);
  EXPECT_EQ(apply(bound, "mine", 3)->priority, 3);
  EXPECT_EQ(apply(bound, "theirs", {}).status().code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(apply(bound, {}, 4).status().code(), StatusCode::kPermissionDenied);
  ApiKey capped;
  capped.max_priority = -2;
  EXPECT_EQ(apply(capped, {}, {})->priority, -2);
  EXPECT_EQ(apply(capped, {}, -5)->priority, -5);
  EXPECT_EQ(apply(capped, {}, 0).status().code(), StatusCode::kPermissionDenied);
}

TEST(KeyRules, SaltsOfTwoTenantsNeverMeet) {
  std::vector<std::string> salts;
  for (const auto& [tenant, salt] : std::vector<std::pair<std::string, std::string>>{
           {"", ""}, {"", "a"}, {"", "a b"}, {"a", ""}, {"a", "b"}, {"a", " b"}, {"ab", ""}}) {
    Request request;
    request.tenant = tenant;
    request.cache_salt = salt;
    SaltByTenant(request);
    for (const std::string& other : salts) EXPECT_NE(request.cache_salt, other);
    salts.push_back(request.cache_salt);
  }
}

// The details are what google/rpc/status.proto and error_details.proto say, read by protobuf's
// parser of unknown messages.
TEST(GrpcStatus, AWaitTravelsAsRetryInfo) {
  using google::protobuf::UnknownFieldSet;
  const absl::Status status =
      WithRetryAfter(absl::ResourceExhaustedError("later"), milliseconds(61'250));
  const grpc::Status grpc_status = ToGrpc(status);
  EXPECT_EQ(grpc_status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(grpc_status.error_message(), "later");
  EXPECT_EQ(RetryPushback(grpc_status), milliseconds(61'250));
  UnknownFieldSet rpc, any, info, duration;
  ASSERT_TRUE(rpc.ParseFromString(grpc_status.error_details()));
  ASSERT_EQ(rpc.field_count(), 3);
  EXPECT_EQ(rpc.field(0).varint(), 8u);  // RESOURCE_EXHAUSTED
  EXPECT_EQ(rpc.field(1).length_delimited(), "later");
  ASSERT_TRUE(any.ParseFromString(rpc.field(2).length_delimited()));
  EXPECT_EQ(any.field(0).length_delimited(), "type.googleapis.com/google.rpc.RetryInfo");
  ASSERT_TRUE(info.ParseFromString(any.field(1).length_delimited()));
  ASSERT_TRUE(duration.ParseFromString(info.field(0).length_delimited()));
  EXPECT_EQ(duration.field(0).number(), 1);
  EXPECT_EQ(duration.field(0).varint(), 61u);
  EXPECT_EQ(duration.field(1).number(), 2);
  EXPECT_EQ(duration.field(1).varint(), 250'000'000u);
  EXPECT_EQ(RetryPushback(ToGrpc(absl::ResourceExhaustedError("later"))), std::nullopt);
  EXPECT_EQ(RetryPushback(grpc::Status(grpc::StatusCode::INTERNAL, "x",
                                       "type.googleapis.com/google.rpc.RetryInfo")),
            std::nullopt);
}

TEST_F(AccessTest, AChangeIsToldOnceTheFileStandsStill) {
  Write("one");
  FileWatcher watcher(milliseconds(5));
  std::atomic<int> told{0};
  watcher.Watch({path(), path() + ".gone"}, [&] { ++told; });
  watcher.Start();
  const auto until = [&](int count) {
    for (int i = 0; i < 4000 && told < count; ++i) std::this_thread::sleep_for(milliseconds(5));
    return told.load();
  };
  Write("two, another size");
  EXPECT_EQ(until(1), 1);
  std::filesystem::remove(path());
  EXPECT_EQ(until(2), 2);
  Write("three");
  EXPECT_EQ(until(3), 3);
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(told.load(), 3);  // nothing changed any more
}

TEST_F(AccessTest, OptionsThatContradictEachOther) {
  Write(Entry("alice", "secret"));
  const auto error = [](ServerOptions o) { return Message(CheckSecurity(o)); };
  ServerOptions o;
  EXPECT_TRUE(CheckSecurity(o).ok());
  o.ssl_certfile = "cert.pem";
  EXPECT_NE(error(o).find("ssl_certfile=cert.pem and ssl_keyfile= belong together"),
            std::string::npos);
  o = {};
  o.ssl_cert_reqs = "required";
  EXPECT_NE(error(o).find("ssl_cert_reqs=required needs ssl_certfile"), std::string::npos);
  o = {};
  o.ssl_ca_certs = "ca.pem";
  EXPECT_NE(error(o).find("ssl_ca_certs=ca.pem would never be read"), std::string::npos);
  o = {};
  o.admin_host = "0.0.0.0";
  EXPECT_TRUE(CheckSecurity(o).ok());  // no port
  o.admin_port = 0;
  EXPECT_NE(error(o).find("admin_host=0.0.0.0 would open Admin"), std::string::npos);
  o.api_key_file = path();
  EXPECT_TRUE(CheckSecurity(o).ok()) << error(o);
  o.api_key_file = path() + ".none";
  EXPECT_NE(error(o).find("api_key_file: " + path() + ".none"), std::string::npos);
}

}  // namespace
}  // namespace quire
