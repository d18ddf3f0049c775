// HTTP/1.1 by raw sockets: framing (RFC 9112), limits, time-outs, refusals. No daemon: handlers of
// the test answer. HARD-CASES N09, N10.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/http_rig.h"

namespace quire::http_test {
namespace {

TEST(HttpTransport, KeepsConnectionsAndAnswersInOrder) {
  Rig rig;
  RawClient client(rig.port());
  // Sent ahead in one piece, and then byte by byte.
  client.Send(Post("/echo", "one") + Post("/echo", "") + Get("/hello") + Post("/echo", "four"));
  for (const char* body : {"one", "", "hello", "four"}) {
    const RawAnswer answer = client.Read();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, body);
    EXPECT_FALSE(answer.Header("connection").has_value());
  }
  for (const char c : Post("/echo", "slow")) client.Send({&c, 1});
  EXPECT_EQ(client.Read().body, "slow");
  client.Send(Get("/hello", "connection: close\r\n"));
  const RawAnswer last = client.Read();
  EXPECT_EQ(last.Header("connection"), "close");
  EXPECT_TRUE(client.IsClosed());
}

TEST(HttpTransport, Http10ClosesUnlessAskedToStay) {
  Rig rig;
  RawClient client(rig.port());
  client.Send("GET /hello HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.Read().body, "hello");
  EXPECT_TRUE(client.IsClosed());
  RawClient staying(rig.port());
  staying.Send("GET /hello HTTP/1.0\r\nconnection: keep-alive\r\n\r\n");
  EXPECT_EQ(staying.Read().Header("connection"), "keep-alive");
  staying.Send("GET /hello HTTP/1.0\r\n\r\n");
  EXPECT_EQ(staying.Read().body, "hello");
}

TEST(HttpTransport, ChunkedBodiesAndContinue) {
  Rig rig;
  RawClient client(rig.port());
  client.Send(
      "POST /echo HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n1;x=y\r\nd\r\n0\r\n\r\n");
  EXPECT_EQ(client.Read().body, "abcd");
  client.Send(
      "POST /echo HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n");
  EXPECT_EQ(client.Read().status, 100);
  client.Send("ok");
  EXPECT_EQ(client.Read().body, "ok");
}

TEST(HttpTransport, HeadHasNoBody) {
  Rig rig;
  RawClient client(rig.port());
  client.Send("HEAD /hello HTTP/1.1\r\nhost: h\r\n\r\n");
  EXPECT_EQ(client.Read(/*is_head=*/true).Header("content-length"), "5");
  client.Send(Get("/hello"));
  EXPECT_EQ(client.Read().body, "hello");
}

TEST(HttpTransport, UnknownPathsMethodsAndTypes) {
  Rig rig;
  ExpectError(rig.Ask(Get("/nothing")), 404);
  ExpectError(rig.Ask(Get("/\x80\xff")), 404);
  const RawAnswer wrong = rig.Ask(Get("/echo"));
  ExpectError(wrong, 405);
  EXPECT_EQ(wrong.Header("allow"), "POST");
  const std::string post = "POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\n";
  ExpectError(rig.Ask(post + "content-type: text/plain\r\n\r\nx"), 415);
  ExpectError(rig.Ask(post + "content-encoding: gzip\r\n\r\nx"), 415);
  EXPECT_EQ(rig.Ask(post + "content-type: application/json; charset=utf-8\r\n\r\nx").status, 200);
  EXPECT_EQ(rig.Ask(post + "\r\nx").status, 200);
  // The connection goes on where the framing is known.
  RawClient client(rig.port());
  client.Send(Get("/nothing"));
  ExpectError(client.Read(), 404);
  client.Send(Get("/hello"));
  EXPECT_EQ(client.Read().body, "hello");
}

// RFC 9112 6.3: a message whose length can be read in two ways must not be.
TEST(HttpTransport, N09_AmbiguousFramingIsRefusedAndNothingIsSmuggled) {
  Rig rig;
  const std::string head = "POST /echo HTTP/1.1\r\nhost: h\r\n";
  const std::vector<std::string> cases = {
      "content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
      "transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
      "content-length: 4\r\ncontent-length: 5\r\n\r\nabcd",
      "content-length: +5\r\n\r\nabcde",
      "content-length: -1\r\n\r\n",
      "content-length: 5, 5\r\n\r\nabcde",
      "content-length: 0x5\r\n\r\nabcde",
      "content-length: 99999999999999999999\r\n\r\nabcde",
      "content-length : 5\r\n\r\nabcde",
      "transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
      "transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
      "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
      "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
      "transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
      "transfer-encoding: chunked\r\n\r\n8000000000000000f\r\nabc\r\n0\r\n\r\n",
      "transfer-encoding: chunked\r\n\r\n3\r\nabcX\r\n0\r\n\r\n",
      "transfer-encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
      "transfer-encoding: chunked\r\n\r\n3 3\r\nabc\r\n0\r\n\r\n",
      "x: y\r\n folded: z\r\ncontent-length: 1\r\n bad\r\n\r\nx",
      "no colon\r\n\r\n",
      "x\x01y: z\r\n\r\n",
  };
  for (const std::string& text : cases) {
    RawClient client(rig.port());
    client.Send(head + text + Get("/admin"));
    const RawAnswer answer = client.Read();
    EXPECT_TRUE(answer.status == 400 || answer.status == 413 || answer.status == 501)
        << text << answer.status;
    ExpectError(answer, answer.status);
    EXPECT_TRUE(client.IsClosed()) << text << client.unread();
  }
  EXPECT_EQ(rig.num_admin, 0);
  EXPECT_EQ(rig.num_echoes, 0);
  // Lines that are no HTTP at all.
  for (const char* text :
       {"\r\n\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\x16\x03\x01\x02",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET /hello HTTP/1.1\r\n\r\n"}) {
    RawClient client(rig.port());
    client.Send(text);
    client.CloseForSending();
    const RawAnswer answer = client.Read();
    EXPECT_NE(answer.status, 200) << text;
  }
  rig.ExpectServes();
}

TEST(HttpTransport, N10_SizesAreBoundedBeforeAnythingIsRead) {
  HttpServer::Options options;
  options.max_body_bytes = 1000;
  Rig rig(options);
  ExpectError(rig.Ask("POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: 40000000000\r\n\r\nx"),
              413);
  EXPECT_EQ(rig.Ask(Post("/echo", std::string(1000, 'x'))).body.size(), 1000u);
  ExpectError(rig.Ask(Post("/echo", std::string(1001, 'x'))), 413);
  // In chunks: the sum counts, and the refusal does not wait for the end.
  RawClient client(rig.port());
  client.Send("POST /echo HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n");
  for (int i = 0; i < 30; ++i) client.Send("40\r\n" + std::string(64, 'x') + "\r\n");
  ExpectError(client.Read(), 413);
  // A head of a megabyte.
  RawClient header(rig.port());
  header.Send("GET /hello HTTP/1.1\r\nhost: h\r\nx: " + std::string(1 << 20, 'x'));
  ExpectError(header.Read(), 431);
  rig.ExpectServes();
}

TEST(HttpTransport, N10_AllBodiesTogetherAreBounded) {
  HttpServer::Options options;
  options.max_body_bytes = 1000;
  options.max_all_bodies_bytes = 2500;
  Rig rig(options);
  // Asked for, and so counted, before the next one comes.
  const std::string head =
      "POST /echo HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 1000\r\n\r\n";
  std::vector<std::unique_ptr<RawClient>> waiting;
  for (int i = 0; i < 2; ++i) {
    waiting.push_back(std::make_unique<RawClient>(rig.port()));
    waiting.back()->Send(head);
    EXPECT_EQ(waiting.back()->Read().status, 100);
    waiting.back()->Send("x");
  }
  const RawAnswer answer = rig.Ask(Post("/echo", std::string(1000, 'x')));
  EXPECT_EQ(answer.status, 503);
  EXPECT_TRUE(answer.Header("retry-after").has_value());
  // Not even asked for.
  RawClient third(rig.port());
  third.Send(head);
  EXPECT_EQ(third.Read().status, 503);
  third.Send("x");
  waiting.clear();
  EXPECT_TRUE(
      Eventually([&] { return rig.Ask(Post("/echo", std::string(1000, 'x'))).status == 200; }));
}

TEST(HttpTransport, N10_SlowHeadsBodiesAndIdleConnectionsEnd) {
  HttpServer::Options options;
  options.request_timeout_ms = 300;
  options.keepalive_ms = 300;
  Rig rig(options);
  RawClient idle(rig.port());
  RawClient head(rig.port());
  head.Send("GET /hello HTTP/1.1\r\nhost: h\r\nx: ");
  RawClient body(rig.port());
  body.Send("POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: 100\r\n\r\nx");
  RawClient chunks(rig.port());
  chunks.Send("POST /echo HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n");
  // A byte now and then does not help.
  std::atomic<bool> stop{false};
  std::thread drip([&] {
    while (!stop) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      head.Send("x");
      chunks.Send("1\r\nx\r\n");
    }
  });
  ExpectError(head.Read(), 408);
  ExpectError(body.Read(), 408);
  ExpectError(chunks.Read(), 408);
  EXPECT_TRUE(idle.IsClosed());
  stop = true;
  drip.join();
  rig.ExpectServes();
}

TEST(HttpTransport, N10_ManyIdleConnectionsDisturbNobody) {
  Rig rig;
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 1000; ++i) {
    idle.push_back(std::make_unique<RawClient>(rig.port()));
    if (i % 2 == 0) idle.back()->Send("POST /echo HTTP/1.1\r\nhost: h\r\n");
  }
  for (int i = 0; i < 20; ++i) rig.ExpectServes();
  EXPECT_GE(rig.server().num_connections(), 1000);
  idle.clear();
  EXPECT_TRUE(Eventually([&] { return rig.server().num_connections() == 0; }));
}

TEST(HttpTransport, ConnectionsAreLimited) {
  HttpServer::Options options;
  options.max_connections = 3;
  Rig rig(options);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<RawClient>(rig.port()));
    clients.back()->Send(Get("/hello"));
    EXPECT_EQ(clients.back()->Read().body, "hello");
  }
  RawClient fourth(rig.port());
  EXPECT_TRUE(fourth.IsClosed());
  clients.pop_back();
  EXPECT_TRUE(Eventually([&] { return rig.server().num_connections() == 2; }));
  rig.ExpectServes();
}

TEST(HttpTransport, AHandlerThatDropsItsRequestAnswers500) {
  Rig rig;
  ExpectError(rig.Ask(Get("/dropped")), 500);
}

TEST(HttpTransport, RequestIdsComeBack) {
  Rig rig;
  const RawAnswer given = rig.Ask(Get("/who", "x-request-id: my-id.1\r\n"));
  EXPECT_EQ(given.Header("x-request-id"), "my-id.1");
  EXPECT_EQ(given.body, "|my-id.1");
  const RawAnswer made = rig.Ask(Get("/who"));
  EXPECT_EQ(made.Header("x-request-id")->size(), 32u);
  for (const char* bad : {"two words", "\x80", ""}) {
    const RawAnswer answer = rig.Ask(Get("/who", "x-request-id: " + std::string(bad) + "\r\n"));
    EXPECT_EQ(answer.Header("x-request-id")->size(), 32u);
  }
  // Refusals have one, too.
  EXPECT_EQ(rig.Ask(Get("/nothing", "x-request-id: n\r\n")).Header("x-request-id"), "n");
}

TEST(HttpTransport, AuthorizationComesBeforeTheBody) {
  HttpServer::Options options;
  options.hooks.authorize = [](const HttpCredentials& c) -> absl::StatusOr<HttpCaller> {
    if (c.api_key == "slow") return absl::ResourceExhaustedError("too many requests");
    if (c.authorization == "Bearer other") return absl::PermissionDeniedError("not yours");
    if (c.authorization != "Bearer good") return absl::UnauthenticatedError("no key");
    return HttpCaller{.tenant = "t1"};
  };
  Rig rig(options);
  // The body never comes.
  const RawAnswer none = rig.Ask("POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: 100\r\n\r\n");
  ExpectError(none, 401);
  EXPECT_EQ(none.Header("www-authenticate"), "Bearer");
  ExpectError(rig.Ask(Get("/who", "authorization: Bearer other\r\n")), 403);
  const RawAnswer slow = rig.Ask(Get("/who", "x-api-key: slow\r\n"));
  ExpectError(slow, 429);
  EXPECT_TRUE(slow.Header("retry-after").has_value());
  EXPECT_EQ(rig.Ask(Get("/who", "authorization: Bearer good\r\n")).body.substr(0, 3), "t1|");
  rig.ExpectServes();  // open to all
}

TEST(HttpTransport, Cors) {
  HttpServer::Options options;
  options.allowed_origins = "https://a.example, https://b.example";
  Rig rig(options);
  const std::string preflight =
      "OPTIONS /echo HTTP/1.1\r\nhost: h\r\naccess-control-request-method: POST\r\n"
      "access-control-request-headers: authorization, content-type\r\n";
  const RawAnswer allowed = rig.Ask(preflight + "origin: https://b.example\r\n\r\n");
  EXPECT_EQ(allowed.status, 204);
  EXPECT_EQ(allowed.Header("access-control-allow-origin"), "https://b.example");
  EXPECT_EQ(allowed.Header("access-control-allow-methods"), "POST");
  EXPECT_EQ(allowed.Header("access-control-allow-headers"), "authorization, content-type");
  const RawAnswer other = rig.Ask(preflight + "origin: https://c.example\r\n\r\n");
  ExpectError(other, 405);
  EXPECT_FALSE(other.Header("access-control-allow-origin").has_value());
  const RawAnswer answer = rig.Ask(Get("/hello", "origin: https://a.example\r\n"));
  EXPECT_EQ(answer.Header("access-control-allow-origin"), "https://a.example");
  EXPECT_FALSE(rig.Ask(Get("/hello")).Header("access-control-allow-origin").has_value());
}

}  // namespace
}  // namespace quire::http_test
