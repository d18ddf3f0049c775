// Events of the engine as bodies and streams of OpenAI's API: exact JSON where it is short, else
// the sum of a stream against the whole body. No daemon.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/openai/call.h"
#include "server/openai/errors.h"
#include "server/openai/logprob_text.h"
#include "tokenizer/tokenizer.h"

namespace quire {
namespace {

// The data of each event, "[DONE]" as it is.
std::vector<std::string> Events(const std::string& sse) {
  std::vector<std::string> events;
  size_t begin = 0;
  while (begin < sse.size()) {
    const size_t end = sse.find("\n\n", begin);
    EXPECT_NE(end, std::string::npos) << "an event without its end";
    if (end == std::string::npos) break;
    std::string event = sse.substr(begin, end - begin);
    const size_t data = event.find("data: ");
    EXPECT_NE(data, std::string::npos) << event;
    events.push_back(event.substr(data + 6));
    begin = end + 2;
  }
  return events;
}

class Answers : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::ifstream file(QUIRE_TEST_REFERENCE "/tokenizers/gpt2/tokenizer.json");
    std::stringstream text;
    text << file.rdbuf();
    auto tokenizer = Tokenizer::FromJson(text.str(), "");
    CHECK(tokenizer.ok(), "{}", Message(tokenizer.status()));
    model_ = new ServedModel;
    model_->name = "m";
    model_->tokenizer = *std::move(tokenizer);
    model_->vocab_size = model_->tokenizer->vocab_size();
    model_->eos_token_ids = {50256};
  }

  static std::vector<TokenId> Encode(const std::string& text) {
    return *model_->tokenizer->Encode(text, false);
  }

  // Plays one prompt's events as the edge would: each text one token, of each output in turn.
  static std::string Play(CallReader reader, const std::string& body,
                          const std::vector<std::string>& texts,
                          FinishReason reason = FinishReason::kStop, int32_t outputs = 1,
                          int32_t top = -1) {
    auto call = reader(body, *model_, {.id = "x", .created = 7, .model = model_});
    CHECK(call.ok(), "{}", Message(call.status()));
    std::string sse;
    RequestStats stats{.prompt_tokens = 2, .cached_tokens = 1};
    auto request = std::make_shared<Request>();
    request->prompt = Encode(" the a");
    call->writer->OnRequest(0, request);
    call->writer->OnAccepted(0, stats, sse);
    for (const std::string& text : texts) {
      for (int32_t i = 0; i < outputs; ++i) {
        Delta delta{.branch = i, .text = text};
        delta.token_ids = Encode(text);
        stats.completion_tokens += static_cast<int32_t>(delta.token_ids.size());
        for (const TokenId id : delta.token_ids) {
          if (top < 0) break;
          Sampled sampled{.token = id, .logprob = -0.5f};
          for (TokenId t = 0; t < top; ++t) sampled.top.push_back({64 + t, -1.0f - float(t)});
          delta.logprobs.push_back(sampled);
        }
        call->writer->OnDelta(0, delta, sse);
      }
    }
    for (int32_t i = 0; i < outputs; ++i) {
      BranchEnd end{.branch = i, .reason = reason};
      if (reason == FinishReason::kStop) end.stop_token = 50256;
      call->writer->OnBranchEnd(0, end, sse);
    }
    call->writer->OnDone(0, stats);
    if (!call->stream) {
      EXPECT_EQ(sse, "");
    }
    return sse + call->writer->Finish();
  }

  static ServedModel* model_;
};
ServedModel* Answers::model_ = nullptr;

constexpr const char* kUsage22 =
    R"("usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4,)"
    R"("prompt_tokens_details":{"cached_tokens":1}})";

TEST_F(Answers, Completion) {
  EXPECT_EQ(Play(ReadCompletion, R"({"prompt":"p"})", {" a", " the"}),
            std::string(R"({"id":"cmpl-x","object":"text_completion","created":7,"model":"m",)"
                        R"("choices":[{"index":0,"text":" a the","logprobs":null,)"
                        R"("finish_reason":"stop","stop_reason":null}],)") +
                kUsage22 + "}");
}

TEST_F(Answers, CompletionStream) {
  const std::string head =
      R"({"id":"cmpl-x","object":"text_completion","created":7,"model":"m","choices":[)";
  const auto events = Events(Play(
      ReadCompletion, R"({"prompt":"p","stream":true,"stream_options":{"include_usage":true}})",
      {" a", " the"}, FinishReason::kLength));
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0], head + R"({"index":0,"text":" a","logprobs":null,"finish_reason":null,)"
                              R"("stop_reason":null}]})");
  EXPECT_EQ(events[2], head + R"({"index":0,"text":"","logprobs":null,"finish_reason":"length",)"
                              R"("stop_reason":null}]})");
  EXPECT_EQ(events[3], head + "]," + kUsage22 + "}");
  EXPECT_EQ(events[4], "[DONE]");
  // Without stream_options there is no usage at all; with continuous_usage_stats on each chunk.
  EXPECT_EQ(Events(Play(ReadCompletion, R"({"prompt":"p","stream":true})", {" a"})).size(), 3u);
  const auto continuous = Events(Play(
      ReadCompletion,
      R"({"prompt":"p","stream":true,"stream_options":{"continuous_usage_stats":true}})", {" a"}));
  for (size_t i = 0; i + 1 < continuous.size(); ++i) {
    const Json chunk = *Json::Parse(continuous[i]);
    EXPECT_EQ(chunk["usage"]["completion_tokens"].as_int(), 1);
  }
}

TEST_F(Answers, CompletionLogprobsAndEcho) {
  const std::string answer =
      Play(ReadCompletion, R"({"prompt":"p","logprobs":1})", {" a"}, FinishReason::kStop, 1, 1);
  EXPECT_NE(answer.find(R"("logprobs":{"text_offset":[0],"token_logprobs":[-0.5],"tokens":[" a"],)"
                        R"("top_logprobs":[{"a":-1.0," a":-0.5}]})"),
            std::string::npos)
      << answer;
  EXPECT_NE(Play(ReadCompletion, R"({"prompt":"p","echo":true})", {" a"}).find(R"("text":"p a")"),
            std::string::npos);
  const std::string ids = Play(ReadCompletion, R"({"prompt":[279,259],"echo":true,"max_tokens":0})",
                               {" a"}, FinishReason::kLength);
  EXPECT_NE(ids.find(R"("text":" the a","logprobs":null,"finish_reason":"length")"),
            std::string::npos)
      << ids;
  EXPECT_NE(ids.find(R"("completion_tokens":0)"), std::string::npos);
  const std::string as_ids = Play(
      ReadCompletion,
      R"({"prompt":"p","logprobs":0,"return_tokens_as_token_ids":true,"return_token_ids":true})",
      {" a"}, FinishReason::kStop, 1, 0);
  EXPECT_NE(as_ids.find(R"("tokens":["token_id:259"])"), std::string::npos) << as_ids;
  EXPECT_NE(as_ids.find(R"("token_ids":[259],"prompt_token_ids":[279,259])"), std::string::npos);
}

TEST_F(Answers, Chat) {
  EXPECT_EQ(Play(ReadChat, R"({"messages":[{"role":"user","content":"p"}]})", {" a", " the"}),
            std::string(R"({"id":"chatcmpl-x","object":"chat.completion","created":7,"model":"m",)"
                        R"("choices":[{"index":0,"message":{"role":"assistant","content":" a the",)"
                        R"("refusal":null},"logprobs":null,"finish_reason":"stop",)"
                        R"("stop_reason":null}],)") +
                kUsage22 + "}");
}

TEST_F(Answers, ChatStream) {
  const std::string head =
      R"({"id":"chatcmpl-x","object":"chat.completion.chunk","created":7,"model":"m","choices":[)";
  const auto events = Events(Play(ReadChat,
                                  R"({"messages":[{"role":"user","content":"p"}],"stream":true,)"
                                  R"("stream_options":{"include_usage":true}})",
                                  {" a", "", " the"}));
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0], head + R"({"index":0,"delta":{"role":"assistant","content":""},)"
                              R"("logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(events[1], head + R"({"index":0,"delta":{"content":" a"},"logprobs":null,)"
                              R"("finish_reason":null}]})");
  EXPECT_EQ(events[3], head + R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"stop",)"
                              R"("stop_reason":null}]})");
  EXPECT_EQ(events[4], head + "]," + kUsage22 + "}");
  EXPECT_EQ(events[5], "[DONE]");
}

TEST_F(Answers, ChatLogprobsTellBytes) {
  // The first two bytes of a character of four: text can't show them, bytes can.
  const std::vector<TokenId> ids = Encode("\xF0\x9F\x98\x80");
  ASSERT_GT(ids.size(), 1u);
  JsonWriter w;
  Sampled sampled{.token = ids[0], .logprob = -0.5f};
  sampled.top.push_back({Encode(" a")[0], -1.0f});
  WriteChatLogprob(TokenNames(*model_->tokenizer, false), sampled, 1, w);
  const Json entry = *Json::Parse(w.text());
  EXPECT_EQ(entry["bytes"].at(0).as_int(), 0xF0);
  EXPECT_EQ(entry["bytes"].size(), model_->tokenizer->TokenBytes(ids[0]).size());
  EXPECT_EQ(entry["token"].as_string(), "\xEF\xBF\xBD");
  EXPECT_EQ(entry["top_logprobs"].at(0).Dump(), R"({"bytes":[32,97],"logprob":-1.0,"token":" a"})");
}

// A stream, put together as the SDK does it.
Json Joined(const std::vector<std::string>& events) {
  struct Choice {
    std::string content, finish, role;
    std::string logprobs;
    std::map<int64_t, std::vector<std::string>> calls;  // id, name, arguments
  };
  std::map<int64_t, Choice> choices;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json chunk = *Json::Parse(events[i]);
    for (size_t k = 0; k < chunk["choices"].size(); ++k) {
      const Json choice = chunk["choices"].at(k);
      Choice& c = choices[*choice["index"].as_int()];
      const Json delta = choice["delta"];
      c.role += delta["role"].as_string().value_or("");
      c.content += delta["content"].as_string().value_or("");
      c.finish += choice["finish_reason"].as_string().value_or("");
      const Json content = choice["logprobs"]["content"];
      for (size_t j = 0; j < content.size(); ++j) c.logprobs += content.at(j).Dump();
      for (size_t j = 0; j < delta["tool_calls"].size(); ++j) {
        const Json call = delta["tool_calls"].at(j);
        auto& parts = c.calls[*call["index"].as_int()];
        parts.resize(3);
        parts[0] += call["id"].as_string().value_or("");
        parts[1] += call["function"]["name"].as_string().value_or("");
        parts[2] += call["function"]["arguments"].as_string().value_or("");
      }
    }
  }
  JsonWriter w;
  w.BeginArray();
  for (const auto& [index, c] : choices) {
    w.BeginArray();
    for (const std::string& part : {c.role, c.content, c.finish, c.logprobs}) w.String(part);
    for (const auto& [i, parts] : c.calls) {
      for (const std::string& part : parts) w.String(part);
    }
    w.EndArray();
  }
  w.EndArray();
  return *Json::Parse(w.text());
}

Json OfBody(const std::string& body) {
  const Json answer = *Json::Parse(body);
  JsonWriter w;
  w.BeginArray();
  for (size_t i = 0; i < answer["choices"].size(); ++i) {
    const Json choice = answer["choices"].at(i);
    const Json message = choice["message"];
    w.BeginArray();
    w.String(*message["role"].as_string());
    w.String(message["content"].as_string().value_or(""));
    w.String(*choice["finish_reason"].as_string());
    std::string logprobs;
    const Json content = choice["logprobs"]["content"];
    for (size_t j = 0; j < content.size(); ++j) logprobs += content.at(j).Dump();
    w.String(logprobs);
    for (size_t j = 0; j < message["tool_calls"].size(); ++j) {
      const Json call = message["tool_calls"].at(j);
      w.String(*call["id"].as_string());
      w.String(*call["function"]["name"].as_string());
      w.String(*call["function"]["arguments"].as_string());
    }
    w.EndArray();
  }
  w.EndArray();
  return *Json::Parse(w.text());
}

TEST_F(Answers, AJoinedStreamIsTheBody) {
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}],)";
  const std::vector<std::vector<std::string>> texts = {
      {" a", " \xC3\xBC", "", "\xF0\x9F\x98\x80", " end"},
      {"so ", "<tool", "_call>", "\n{\"name\": \"f\", \"argu", "ments\": {\"a\": ", "1}}\n",
       "</tool_call>", "\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"},
      {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a"},
      {"a <", "tool", " b", "  "},
  };
  for (const auto& text : texts) {
    for (const auto& [more, n, top] : std::vector<std::tuple<std::string, int32_t, int32_t>>{
             {"", 1, -1}, {"\"n\":3,", 3, -1}, {"\"logprobs\":true,\"top_logprobs\":2,", 1, 2}}) {
      const std::string body = "{" + tools + more + R"("messages":[{"role":"user","content":"p"}])";
      const std::string whole = Play(ReadChat, body + "}", text, FinishReason::kStop, n, top);
      const auto events =
          Events(Play(ReadChat, body + ",\"stream\":true}", text, FinishReason::kStop, n, top));
      EXPECT_EQ(events.back(), "[DONE]");
      EXPECT_EQ(Joined(events).Dump(), OfBody(whole).Dump());
    }
  }
  const Json called = *Json::Parse(
      Play(ReadChat, "{" + tools + R"("messages":[{"role":"user","content":"p"}]})", texts[1]));
  EXPECT_EQ(called["choices"].at(0)["finish_reason"].as_string(), "tool_calls");
  EXPECT_EQ(called["choices"].at(0)["message"]["tool_calls"].size(), 2u);
  EXPECT_EQ(called["choices"].at(0)["message"]["content"].as_string(), "so");
}

TEST_F(Answers, ResponseStreamEndsInTheBody) {
  const std::string body =
      R"("input":"p","tools":[{"type":"function","name":"f","parameters":{}}])";
  for (const auto& text : std::vector<std::vector<std::string>>{
           {" a", " the"},
           {"so ", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"", ": 1}}", "</tool_call>"},
           {}}) {
    const Json whole = *Json::Parse(Play(ReadResponse, "{" + body + "}", text));
    const auto events = Events(Play(ReadResponse, "{\"stream\":true," + body + "}", text));
    std::string deltas, done;
    for (size_t i = 0; i < events.size(); ++i) {
      const Json event = *Json::Parse(events[i]);
      EXPECT_EQ(event["sequence_number"].as_int(), static_cast<int64_t>(i));
      deltas += event["delta"].as_string().value_or("");
      const auto type = event["type"].as_string();
      if (type == "response.output_text.done") done += *event["text"].as_string();
      if (type == "response.function_call_arguments.done") done += *event["arguments"].as_string();
    }
    EXPECT_EQ(deltas, done);
    EXPECT_EQ((*Json::Parse(events.front()))["type"].as_string(), "response.created");
    const Json last = *Json::Parse(events.back());
    EXPECT_EQ(last["type"].as_string(), "response.completed");
    EXPECT_EQ(last["response"].Dump(), whole.Dump());
    EXPECT_GE(whole["output"].size(), 1u);
  }
  const Json cut =
      *Json::Parse(Play(ReadResponse, "{" + body + "}", {" a"}, FinishReason::kLength));
  EXPECT_EQ(cut["status"].as_string(), "incomplete");
  EXPECT_EQ(cut["incomplete_details"]["reason"].as_string(), "max_output_tokens");
}

TEST_F(Answers, Errors) {
  EXPECT_EQ(ErrorBody(InvalidArgument("sampling.top_p=3 is outside [0, 1]")),
            R"({"error":{"message":"top_p=3 is outside [0, 1]","type":"BadRequestError",)"
            R"("param":"top_p","code":400}})");
  EXPECT_EQ(ErrorBody(absl::ResourceExhaustedError("the queue is full")),
            R"({"error":{"message":"the queue is full","type":"RateLimitError","param":null,)"
            R"("code":429}})");
  const std::vector<std::pair<absl::Status, int>> statuses = {
      {absl::NotFoundError("x"), 404},          {absl::UnauthenticatedError("x"), 401},
      {absl::PermissionDeniedError("x"), 403},  {absl::UnavailableError("x"), 503},
      {absl::DeadlineExceededError("x"), 504},  {absl::InternalError("x"), 500},
      {absl::FailedPreconditionError("x"), 422}};
  for (const auto& [status, code] : statuses) EXPECT_EQ(HttpStatusOf(status), code);
  const auto has = [](const HttpReply& reply, const std::string& name) {
    for (const auto& [key, value] : reply.headers) {
      if (key == name) return true;
    }
    return false;
  };
  EXPECT_TRUE(has(ErrorReply(absl::UnavailableError("x")), "retry-after"));
  EXPECT_TRUE(has(ErrorReply(absl::InternalError("x")), "x-should-retry"));
  // N06: bytes that are no UTF-8 in a message make a body that is.
  EXPECT_TRUE(Json::Parse(ErrorBody(400, "bad \xFF\xC3(")).ok());
}

}  // namespace
}  // namespace quire
