// The daemon by HTTP, over a scripted executor: what a client reads, and what is left when it goes,
// stalls, or asks for nonsense. HARD-CASES E01, E03, E05, N01, N04, N06, N07, N11, N14 by HTTP.
#include <gtest/gtest.h>

#include <random>

#include "base/json.h"
#include "tests/support/raw_http.h"
#include "tests/support/server_rig.h"

namespace quire::server_test {
namespace {

using http_test::Get;
using http_test::Post;
using http_test::RawAnswer;
using http_test::RawClient;

std::string Quoted(const std::string& text) {
  JsonWriter w;
  w.String(text);
  return w.text();
}

std::string Body(const std::string& prompt, int max_tokens, const std::string& more = {}) {
  return "{\"prompt\":" + Quoted(prompt) + ",\"max_tokens\":" + std::to_string(max_tokens) + more +
         "}";
}

class HttpRig : public Rig {
 public:
  using Rig::Rig;
  int http_port() { return daemon().http_port(); }
  RawAnswer Ask(const std::string& bytes) {
    RawClient client(http_port());
    client.Send(bytes);
    return client.Read();
  }
  RawAnswer Complete(const std::string& body, const std::string& more = {}) {
    return Ask(Post("/v1/completions", body, more));
  }
  void ProbeHttp() {
    const RawAnswer answer = Complete(Body(" the a", 2));
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_NE(answer.body.find("\"text\":\" the a\""), std::string::npos) << answer.body;
  }
};

void ExpectError(const RawAnswer& answer, int status) {
  EXPECT_EQ(answer.status, status) << answer.head << answer.body;
  const absl::StatusOr<Json> json = Json::Parse(answer.body);
  ASSERT_TRUE(json.ok()) << answer.body;
  EXPECT_TRUE((*json)["error"]["message"].is_string()) << answer.body;
  EXPECT_EQ((*json)["error"]["code"].as_int(), status) << answer.body;
}

struct Streamed {
  std::string text, finish;
  int num_chunks = 0;
  bool done = false;
};
// REQUIRES: a whole stream of completions.
Streamed Join(const std::string& sse) {
  Streamed all;
  for (size_t begin = 0; begin < sse.size();) {
    const size_t end = sse.find("\n\n", begin);
    if (end == std::string::npos) break;
    const std::string event = sse.substr(begin, end - begin);
    begin = end + 2;
    if (event.substr(0, 6) != "data: ") continue;
    if (event == "data: [DONE]") {
      all.done = true;
      continue;
    }
    const Json chunk = *Json::Parse(event.substr(6));
    ++all.num_chunks;
    all.text += chunk["choices"].at(0)["text"].as_string().value_or("");
    all.finish += chunk["choices"].at(0)["finish_reason"].as_string().value_or("");
  }
  return all;
}

TEST(HttpDaemon, OpenRoutes) {
  HttpRig rig;
  for (const char* path : {"/health", "/ready", "/ping"}) {
    const RawAnswer answer = rig.Ask(Get(path));
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "");
  }
  EXPECT_EQ(rig.Ask(Post("/ping", "")).status, 200);
  EXPECT_TRUE((*Json::Parse(rig.Ask(Get("/version")).body))["version"].is_string());
  EXPECT_EQ(rig.Ask(Get("/load")).body, "{\"server_load\":0}");
  const Json models = *Json::Parse(rig.Ask(Get("/v1/models")).body);
  EXPECT_EQ(models["object"].as_string(), "list");
  EXPECT_EQ(models["data"].at(0)["id"].as_string(), "scripted");
  EXPECT_EQ(models["data"].at(0)["max_model_len"].as_int(), 512);
  EXPECT_EQ((*Json::Parse(rig.Ask(Get("/v1/models/script%65d")).body))["object"].as_string(),
            "model");
  ExpectError(rig.Ask(Get("/v1/models/other")), 404);
  const Json tokens = *Json::Parse(rig.Ask(Post("/tokenize", R"({"prompt":" the a"})")).body);
  EXPECT_EQ(tokens["tokens"].Dump(), "[279,259]");  // as tokenizer.json has them
  EXPECT_EQ(tokens["count"].as_int(), 2);
  EXPECT_EQ(rig.Ask(Post("/detokenize", R"({"tokens":[279,259]})")).body, R"({"prompt":" the a"})");
  ExpectError(rig.Ask(Post("/detokenize", R"({"tokens":[-1]})")), 400);
  ExpectError(rig.Ask(Post("/tokenize", R"({"prompt":1})")), 400);
}

// Through HTTP as through gRPC, whole and joined, in many scripts, with and without stop strings.
TEST(HttpDaemon, E01_E03_AJoinedStreamIsTheUnaryText) {
  HttpRig rig;
  const std::vector<std::string> parts = {
      "Hello",
      " world",
      "\n\nUser:",
      "\n\nUsed",
      "\xED\x95\x9C\xEA\xB5\xAD",                          // Hangul
      "\xE0\xB8\x81\xE0\xB8\xB3\xE0\xB8\xA5\xE0\xB8\xB1",  // Thai
      "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9",      // a family
      "\xF0\x9F\x87\xA9\xF0\x9F\x87\xAA",
      "\xD8\xB3\xD9\x84\xD8\xA7\xD9\x85",  // a flag; Arabic
      "\xE4\xBD\xA0\xE5\xA5\xBD",
      "  ",
      "\t",
      "\"q\"\\",
      std::string("\0", 1),
      "\xCE\xB1\xCE\xB2",
      "\xE2\x80\xA8",
      "data: [DONE]",
      "\r\n"};
  std::mt19937 random(11);
  int stopped = 0;
  for (int i = 0; i < 120; ++i) {
    std::string text = "x";
    for (unsigned k = 1 + random() % 8; k > 0; --k) text += parts[random() % parts.size()];
    const auto n = static_cast<int>(rig.Encode(text).size());
    std::string more;
    std::string expected = text;
    if (i % 2 == 1) {
      more = R"(,"stop":["\n\nUser:","\u4f60"])";
      expected = text.substr(0, std::min(text.find("\n\nUser:"), text.find("\xE4\xBD\xA0")));
      stopped += expected != text;
    }
    const RawAnswer unary = rig.Complete(Body(text, n, more));
    ASSERT_EQ(unary.status, 200) << unary.body;
    const Json choice = (*Json::Parse(unary.body))["choices"].at(0);
    EXPECT_EQ(choice["text"].as_string(), expected);
    EXPECT_EQ(choice["finish_reason"].as_string(), expected == text ? "length" : "stop");
    const RawAnswer stream = rig.Complete(Body(text, n, more + ",\"stream\":true"));
    EXPECT_TRUE(stream.complete);
    const Streamed joined = Join(stream.body);
    EXPECT_EQ(joined.text, expected);
    EXPECT_EQ(joined.finish, choice["finish_reason"].as_string());
    EXPECT_TRUE(joined.done);
  }
  EXPECT_GT(stopped, 10);
  rig.ExpectIdle();
}

TEST(HttpDaemon, E05_EndWithinACharacter) {
  HttpRig rig;
  const std::string emoji = "\xF0\x9F\xA6\x84";
  for (int n = 1; n < static_cast<int>(rig.Encode(emoji).size()); ++n) {
    const Json whole =
        *Json::Parse(rig.Complete(Body(emoji, n, ",\"logprobs\":0")).body);  // valid UTF-8
    const Streamed joined = Join(rig.Complete(Body(emoji, n, ",\"stream\":true")).body);
    EXPECT_EQ(joined.text, *whole["choices"].at(0)["text"].as_string());
    EXPECT_EQ(joined.finish, "length");
  }
}

TEST(HttpDaemon, SeveralPromptsAndOutputs) {
  HttpRig rig;
  const Json answer =
      *Json::Parse(rig.Complete(R"({"prompt":[" the a"," a a"],"n":2,"max_tokens":2})").body);
  ASSERT_EQ(answer["choices"].size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"].at(i)["index"].as_int(), static_cast<int64_t>(i));
    EXPECT_EQ(answer["choices"].at(i)["text"].as_string(), i < 2 ? " the a" : " a a");
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"].as_int(), 4);
  EXPECT_EQ(answer["usage"]["completion_tokens"].as_int(), 8);
  // One prompt that is wrong: nothing is done for the others.
  ExpectError(rig.Complete(R"({"prompt":[[1],[999999]],"max_tokens":2})"), 400);
  rig.ExpectIdle();
}

TEST(HttpDaemon, N06_N07_NonsenseCostsNobodyAnything) {
  HttpRig rig;
  const std::vector<std::string> bodies = {
      "",
      "{",
      "{:",
      "[]",
      "null",
      "\"x\"",
      "{\"model\":1}",
      "{\"prompt\":\"a\"} trailing",
      "{\"prompt\":\"a\",}",
      "{\"prompt\":\"a\" /* no */}",
      "{'prompt':'a'}",
      "{\"prompt\":\"a\",\"temperature\":NaN}",
      "{\"prompt\":\"a\",\"temperature\":1e400}",
      "{\"prompt\":\"\xff\xfe\"}",
      "{\"prompt\":\"\\ud800\"}",
      "{\"model\":\"\xC3(\",\"prompt\":\"a\"}",
      std::string("{\0}", 3),
      std::string("\xFF\xFE{\0}\0", 6),
      std::string(100000, '['),
      "{\"prompt\":" + std::string(100000, '[') + std::string(100000, ']') + "}",
      "{\"prompt\":\"a\",\"logit_bias\":{\"99999999\":1}}",
      "{\"prompt\":\"a\",\"n\":0}",
      "{\"prompt\":\"a\",\"n\":0,\"stream\":true}",
      "{\"prompt\":\"a\",\"max_tokens\":-1}",
      "{\"prompt\":\"a\",\"max_tokens\":100000,\"stream\":true}",
      "{\"prompt\":\"\"}",
      "{\"prompt\":\"a\",\"stop\":\"\"}",
      "{\"prompt\":\"a\",\"temperature\":-1}",
      "{\"prompt\":\"a\",\"priority\":99999}"};
  for (const std::string& body : bodies) ExpectError(rig.Complete(body), 400);
  ExpectError(rig.Complete("{\"model\":\"other\",\"prompt\":\"a\"}"), 404);
  for (const char* path : {"/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize"}) {
    for (const char* body : {"", "{:", "[]", "{\"messages\":5,\"input\":5}"}) {
      ExpectError(rig.Ask(Post(path, body)), 400);
    }
  }
  // No chat template here: said so, whatever the messages.
  const RawAnswer chat =
      rig.Ask(Post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}]})"));
  EXPECT_NE(chat.body.find("no chat template"), std::string::npos);
  // NUL is an ordinary character; of two keys the last counts; a BOM is taken.
  const RawAnswer nul = rig.Complete("{\"prompt\":\"a\\u0000b\",\"max_tokens\":3}");
  EXPECT_NE(nul.body.find("\"text\":\"a\\u0000b\""), std::string::npos) << nul.body;
  EXPECT_NE(rig.Complete("{\"prompt\":\"x\",\"prompt\":\" the a\",\"max_tokens\":2}")
                .body.find("\"text\":\" the a\""),
            std::string::npos);
  rig.ProbeHttp();
  rig.ExpectIdle();
}

TEST(HttpDaemon, N04_AClientThatLeavesEndsItsWork) {
  HttpRig rig;
  rig.executor.Pause(milliseconds(1));
  uint64_t expected = 0;
  for (const bool stream : {true, false}) {
    for (const bool reset : {true, false}) {
      for (const bool queued : {true, false}) {
        if (queued) rig.executor.SetOpen(false);
        RawClient client(rig.http_port());
        client.Send(
            Post("/v1/completions", Body("a b", 500, stream ? ",\"stream\":true,\"n\":2" : "")));
        if (queued) {
          rig.executor.WaitForStep();
        } else if (stream) {
          ASSERT_TRUE(client.ReceiveUntil("data: "));
        } else {
          ASSERT_TRUE(rig.Eventually([&] { return rig.Blocks().used_blocks() > 0; }));
        }
        if (reset) {
          client.Reset();
        } else {
          client.Close();
        }
        ++expected;
        EXPECT_TRUE(rig.Eventually(
            [&] { return rig.daemon().edge().counts().cancel_commands == expected; }));
        rig.executor.SetOpen(true);
        rig.ExpectIdle();
      }
    }
  }
  EXPECT_TRUE(rig.Eventually([&] { return rig.daemon().edge().counts().cancelled == expected; }));
  rig.executor.Pause(milliseconds(0));
  rig.ProbeHttp();
}

TEST(HttpDaemon, N01_ASlowReaderIsCutAndNobodyElse) {
  RigOptions options;
  options.server.max_stream_buffer_bytes = 16 << 10;
  options.num_blocks = 2048;
  HttpRig rig(options);
  // Logprobs make its events large.
  RawClient slow(rig.http_port(), /*receive_buffer=*/4096);
  slow.Send(Post("/v1/completions", R"({"prompt":[[1],[2],[3],[4],[5],[6],[7],[8]],"n":2,)"
                                    R"("max_tokens":500,"logprobs":20,"stream":true})"));
  for (int i = 0; i < 5; ++i) rig.ProbeHttp();
  EXPECT_TRUE(rig.Eventually([&] { return rig.daemon().edge().counts().failed > 0; }));
  rig.ExpectIdle();
  while (slow.Receive()) {
  }
  // Cut, and not to be taken for complete.
  EXPECT_EQ(slow.unread().find("[DONE]"), std::string::npos);
  EXPECT_EQ(slow.unread().find("\r\n0\r\n\r\n"), std::string::npos);
  rig.ProbeHttp();
}

TEST(HttpDaemon, N11_AFailureInAStreamIsAnEvent) {
  HttpRig rig;
  rig.executor.Pause(milliseconds(5));
  RawClient client(rig.http_port());
  client.Send(Post("/v1/completions", Body("a b", 500, ",\"stream\":true")));
  ASSERT_TRUE(client.ReceiveUntil("data: "));
  rig.executor.FailNext(absl::InternalError("device lost"));
  const RawAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.complete);
  const size_t error = answer.body.find("data: {\"error\":{");
  ASSERT_NE(error, std::string::npos) << answer.body;
  EXPECT_EQ(answer.body.substr(answer.body.size() - 14), "data: [DONE]\n\n");
  EXPECT_EQ(answer.body.find("\"finish_reason\":\"stop\""), std::string::npos);
}

TEST(HttpDaemon, AFullQueueSaysWhenToComeBack) {
  RigOptions options;
  options.server.max_queued_requests = 2;  // one that runs gives its place back after its step
  options.server.max_num_seqs = 1;
  HttpRig rig(options);
  rig.executor.SetOpen(false);
  RawClient running(rig.http_port());
  running.Send(Post("/v1/completions", Body("a", 2)));
  rig.executor.WaitForStep();
  RawClient waiting(rig.http_port());
  waiting.Send(Post("/v1/completions", Body("a", 2)));
  EXPECT_TRUE(rig.Eventually([&] { return rig.daemon().edge().counts().started == 2; }));
  const RawAnswer refused = rig.Complete(Body("a", 2));
  ExpectError(refused, 429);
  EXPECT_TRUE(refused.Header("retry-after").has_value());
  rig.executor.SetOpen(true);
  EXPECT_EQ(running.Read().status, 200);
  EXPECT_EQ(waiting.Read().status, 200);
}

TEST(HttpDaemon, RequestIdsAreTheEngines) {
  HttpRig rig;
  rig.executor.SetOpen(false);
  RawClient first(rig.http_port());
  first.Send(Post("/v1/completions", Body("a b", 500), "x-request-id: my-id\r\n"));
  rig.executor.WaitForStep();
  // In use: this one is served under another, and still told by its own.
  RawClient second(rig.http_port());
  second.Send(Post("/v1/completions", Body("a b", 2), "x-request-id: my-id\r\n"));
  EXPECT_TRUE(rig.Eventually([&] { return rig.daemon().edge().counts().started == 2; }));
  grpc::ClientContext context;
  pb::AbortRequest abort;
  abort.add_request_ids("my-id");
  pb::AbortResponse response;
  ASSERT_TRUE(rig.stub().Abort(&context, abort, &response).ok());
  EXPECT_EQ(response.aborted_request_ids_size(), 1);
  rig.executor.SetOpen(true);
  ExpectError(first.Read(), 499);
  const RawAnswer answer = second.Read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.Header("x-request-id"), "my-id");
  EXPECT_NE(answer.body.find("\"id\":\"cmpl-my-id\""), std::string::npos);
  rig.ExpectIdle();
}

// Only where the operator has asked for it.
TEST(HttpDaemon, ResetPrefixCacheNeedsTheOption) {
  HttpRig plain;
  ExpectError(plain.Ask(Post("/reset_prefix_cache", "")), 404);
  RigOptions options;
  options.server.http_dev_mode = true;
  HttpRig rig(options);
  ASSERT_EQ(rig.Complete(Body("one two three four five six seven eight nine ten", 4)).status, 200);
  rig.ExpectIdle();
  ASSERT_GT(rig.Blocks().cached_blocks(), 0u);
  ExpectError(rig.Ask(Get("/reset_prefix_cache")), 405);
  EXPECT_GT(rig.Blocks().cached_blocks(), 0u);
  const RawAnswer answer = rig.Ask(Post("/reset_prefix_cache", ""));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "");
  EXPECT_EQ(rig.Blocks().cached_blocks(), 0u);  // the gauges come before the answer
  EXPECT_EQ(rig.Ask(Post("/reset_prefix_cache?reset_running_requests=false", "")).status, 200);
  rig.ProbeHttp();
}

TEST(HttpDaemon, N14_DrainFinishesStreamsAndRefusesNewOnes) {
  HttpRig rig;
  rig.executor.Pause(milliseconds(2));
  RawClient client(rig.http_port());
  client.Send(Post("/v1/completions", Body("a b", 200, ",\"stream\":true")));
  ASSERT_TRUE(client.ReceiveUntil("data: "));
  RawClient kept(rig.http_port());
  kept.Send(Get("/health"));
  EXPECT_EQ(kept.Read().status, 200);
  rig.daemon().Drain(std::chrono::seconds(60));
  for (const char* path : {"/health", "/ready"}) {
    kept.Send(Get(path));
    const RawAnswer answer = kept.Read();
    ExpectError(answer, 503);
    EXPECT_TRUE(answer.Header("retry-after").has_value());
  }
  kept.Send(Post("/v1/completions", Body("a", 2)));
  ExpectError(kept.Read(), 503);
  const RawAnswer answer = client.Read();
  EXPECT_TRUE(answer.complete);
  const Streamed joined = Join(answer.body);
  EXPECT_TRUE(joined.done);
  EXPECT_EQ(joined.finish, "length");
  EXPECT_EQ(rig.Encode(joined.text).size() > 0, true);
  EXPECT_TRUE(rig.daemon().Wait().ok());
}

TEST(HttpDaemon, N14_TheDrainDeadlineEndsStreamsWithAnError) {
  HttpRig rig;
  rig.executor.Pause(milliseconds(5));
  RawClient client(rig.http_port());
  client.Send(Post("/v1/completions", Body("a b", 500, ",\"stream\":true")));
  ASSERT_TRUE(client.ReceiveUntil("data: "));
  rig.daemon().Drain(milliseconds(20));
  const RawAnswer answer = client.Read();
  EXPECT_NE(answer.body.find("data: {\"error\":{"), std::string::npos) << answer.body;
  EXPECT_EQ(answer.body.find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_TRUE(rig.daemon().Wait().ok());
}

TEST(HttpDaemon, ManyClientsThatLeaveAtAnyTimeLeaveNothing) {
  HttpRig rig;
  std::atomic<int> served{0};
  std::vector<std::thread> clients;
  for (unsigned t = 0; t < 8; ++t) {
    clients.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 60; ++i) {
        RawClient client(rig.http_port());
        const bool stream = random() % 2 == 0;
        client.Send(Post("/v1/completions", Body("a b c", 1 + static_cast<int>(random() % 30),
                                                 stream ? ",\"stream\":true" : "")));
        if (random() % 3 == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
          if (random() % 2 == 0) client.Reset();
          continue;
        }
        const RawAnswer answer = client.Read();
        served += answer.complete && (answer.status == 200 || answer.status == 429);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(served, 200);
  rig.ExpectIdle();
  EXPECT_TRUE(rig.Eventually([&] {
    const RequestCounts c = rig.daemon().edge().counts();
    return c.started == c.ok + c.cancelled + c.failed;
  }));
  rig.ProbeHttp();
}

}  // namespace
}  // namespace quire::server_test
