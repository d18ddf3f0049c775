// tests/support/http_rig.h -- an HttpServer with handlers of the tests' own, no daemon.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/json.h"
#include "server/http/http_server.h"
#include "tests/support/raw_http.h"

namespace quire::http_test {

class Rig {
 public:
  explicit Rig(HttpServer::Options options = {}) {
    options.host = "127.0.0.1";
    options.port = 0;
    Router router;
    router.Add({"POST", "/echo", [this](ExchangePtr e) {
                  ++num_echoes;
                  e->Reply({.body = e->request().body, .content_type = "text/plain"});
                }});
    router.Add({"GET", "/hello", [](ExchangePtr e) { e->Reply({.body = "hello"}); }, true});
    router.Add({"GET", "/who", [](ExchangePtr e) {
                  e->Reply({.body = e->request().caller.tenant + "|" + e->request().id});
                }});
    router.Add({"GET", "/admin", [this](ExchangePtr e) {
                  ++num_admin;
                  e->Reply({.body = "secret"});
                }});
    router.Add({"GET", "/stream", [this](ExchangePtr e) {
                  e->WhenGone([this] { ++num_gone; });
                  e->Hold({nullptr, [this](const void*) { ++num_released; }});
                  e->AnnounceStream({{"x-extra", "1"}});
                  const std::lock_guard lock(mutex_);
                  stream_ = e;
                  changed_.notify_all();
                }});
    router.Add({"GET", "/dropped", [](ExchangePtr) {}});
    auto server = HttpServer::Start(std::move(options), std::move(router));
    CHECK(server.ok(), "{}", Message(server.status()));
    server_ = *std::move(server);
  }
  ~Rig() {
    {
      const std::lock_guard lock(mutex_);
      stream_.reset();
    }
    server_->Shutdown();
  }

  int port() const { return server_->port(); }
  HttpServer& server() { return *server_; }
  // The exchange of the last GET /stream.
  ExchangePtr stream() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stream_ != nullptr; });
    return std::exchange(stream_, nullptr);
  }
  RawAnswer Ask(const std::string& bytes) {
    RawClient client(port());
    client.Send(bytes);
    return client.Read();
  }
  void ExpectServes() { EXPECT_EQ(Ask(Get("/hello")).body, "hello"); }

  std::atomic<int> num_echoes{0}, num_admin{0}, num_gone{0}, num_released{0};

 private:
  std::unique_ptr<HttpServer> server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  ExchangePtr stream_;  // guarded by mutex_
};

inline bool Eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 10000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

inline void ExpectError(const RawAnswer& answer, int status) {
  EXPECT_EQ(answer.status, status) << answer.head;
  const absl::StatusOr<Json> json = Json::Parse(answer.body);
  ASSERT_TRUE(json.ok()) << answer.body;
  EXPECT_TRUE((*json)["error"]["message"].is_string()) << answer.body;
  EXPECT_TRUE((*json)["error"]["type"].is_string()) << answer.body;
  EXPECT_TRUE((*json)["error"].Has("param")) << answer.body;
  EXPECT_EQ((*json)["error"]["code"].as_int(), status) << answer.body;
}

}  // namespace quire::http_test
