// Bodies of OpenAI's API as requests for the engine: each field's twin in quire.v1, defaults of the
// API's reference, and what is refused. No daemon.
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "server/openai/call.h"
#include "tokenizer/tokenizer.h"

namespace quire {
namespace {

class Bodies : public ::testing::Test {
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
    model_->chat_template = "<tool_call>";
  }

  static AnswerInfo Info() { return {.id = "x", .created = 1, .model = model_}; }

  // The request of a body, without what all of them have.
  static std::string Text(CallReader reader, const std::string& body, size_t index = 0) {
    auto call = reader(body, *model_, Info());
    if (!call.ok()) return "error: " + Message(call.status());
    pb::GenerateRequest request = call->requests.at(index);
    EXPECT_TRUE(request.response().token_ids());
    request.mutable_response()->clear_token_ids();
    std::string text = request.ShortDebugString();
    for (const char* nothing :
         {"sampling { } ", "stopping { } ", "response { } ", "response { }"}) {
      const size_t at = text.find(nothing);
      if (at != std::string::npos) text.erase(at, std::string(nothing).size());
    }
    while (!text.empty() && text.back() == ' ') text.pop_back();
    return text;
  }
  static std::string Completion(const std::string& members, size_t index = 0) {
    return Text(ReadCompletion, "{\"prompt\":\"hi\"" + (members.empty() ? "" : "," + members) + "}",
                index);
  }
  static std::string Chat(const std::string& members) {
    return Text(ReadChat, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]" +
                              (members.empty() ? "" : "," + members) + "}");
  }
  // As the proto's own text format prints it.
  static std::string Proto(const std::string& text) {
    pb::GenerateRequest request;
    CHECK(google::protobuf::TextFormat::ParseFromString(text, &request), "{}", text);
    std::string printed = request.ShortDebugString();
    while (!printed.empty() && printed.back() == ' ') printed.pop_back();
    return printed;
  }

  static ServedModel* model_;
};
ServedModel* Bodies::model_ = nullptr;

TEST_F(Bodies, CompletionFieldsHaveTheirTwins) {
  const std::string base = "text: 'hi' stopping { max_tokens: 16 ";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", base + "}"},
      {"\"max_tokens\":3", "text: 'hi' stopping { max_tokens: 3 }"},
      {"\"max_tokens\":null,\"stop\":null,\"logprobs\":null,\"seed\":null", base + "}"},
      {"\"temperature\":0,\"top_p\":0.5,\"top_k\":-1,\"min_p\":0.25",
       base + "} sampling { temperature: 0 top_p: 0.5 top_k: -1 min_p: 0.25 }"},
      {"\"presence_penalty\":-2,\"frequency_penalty\":2,\"repetition_penalty\":1.5",
       base + "} sampling { presence_penalty: -2 frequency_penalty: 2 repetition_penalty: 1.5 }"},
      {"\"typical_p\":0.5,\"top_n_sigma\":1,\"no_repeat_ngram_size\":3",
       base + "} sampling { typical_p: 0.5 top_n_sigma: 1 no_repeat_ngram_size: 3 }"},
      {"\"n\":2,\"best_of\":3,\"seed\":7", base + "} sampling { n: 2 best_of: 3 seed: 7 }"},
      {"\"seed\":-1", base + "}"},
      {"\"seed\":-2", base + "} sampling { seed: 18446744073709551614 }"},
      {"\"stop\":\"a\"", base + "stop: 'a' }"},
      {"\"stop\":[\"a\",\"b\"]", base + "stop: 'a' stop: 'b' }"},
      {"\"stop_token_ids\":[1,2],\"min_tokens\":1,\"ignore_eos\":true,"
       "\"include_stop_str_in_output\":true",
       base + "stop_token_ids: 1 stop_token_ids: 2 min_tokens: 1 ignore_eos: true "
              "include_stop_in_output: true }"},
      {"\"logit_bias\":{\"5\":-100}", base + "} sampling { logit_bias { key: 5 value: -100 } }"},
      {"\"allowed_token_ids\":[3]", base + "} sampling { allowed_token_ids: 3 }"},
      // As the tokenizer spells it at the beginning of a text and within.
      {"\"bad_words\":[\"a\"]",
       base + "} sampling { bad_words { ids: 64 } bad_words { ids: 259 } }"},
      {"\"logprobs\":0", base + "} response { num_logprobs: 0 }"},
      {"\"logprobs\":5,\"echo\":true", base + "} response { num_logprobs: 5 prompt_logprobs: 5 }"},
      {"\"prompt_logprobs\":2", base + "} response { prompt_logprobs: 2 }"},
      {"\"echo\":true,\"max_tokens\":0", "text: 'hi' stopping { max_tokens: 1 }"},
      {"\"skip_special_tokens\":false", base + "} response { skip_special_tokens: false }"},
      {"\"add_special_tokens\":false", base + "} add_special_tokens: false"},
      {"\"truncate_prompt_tokens\":5", base + "} truncate_prompt_tokens: 5"},
      {"\"truncate_prompt_tokens\":-1,\"truncation_side\":\"right\"",
       base + "} truncate_prompt_tokens: -1 truncation_side: TRUNCATION_SIDE_RIGHT"},
      {"\"truncation_side\":\"left\"", base + "}"},
      {"\"cache_salt\":\"s\"", base + "} kv { cache_salt: 's' }"},
      {"\"model\":\"m\"", "model: 'm' " + base + "}"},
      // vLLM's lowest first is our highest first.
      {"\"priority\":5", base + "} scheduling { priority: -5 }"},
      {"\"use_beam_search\":true,\"n\":4,\"temperature\":0,\"length_penalty\":0.5",
       base + "} sampling { temperature: 0 } beam { beam_width: 4 num_return_sequences: 4 "
              "length_penalty: 0.5 }"},
      {"\"use_beam_search\":true,\"n\":2,\"best_of\":5,\"early_stopping\":true",
       base + "} beam { beam_width: 5 num_return_sequences: 2 "
              "early_stopping: EARLY_STOPPING_FIRST }"},
      // What nobody knows is ignored; what means nothing may be said.
      {"\"user\":\"u\",\"zzz\":{\"a\":1},\"suffix\":\"\",\"length_penalty\":1.0,"
       "\"early_stopping\":false,\"spaces_between_special_tokens\":true,\"stream_interval\":1",
       base + "}"},
      {"\"guided_json\":{\"b\":1,\"a\":2}", base + "} guided { json_schema: '{\"b\":1,\"a\":2}' }"},
      {"\"guided_json\":\"{\\\"z\\\":1}\"", base + "} guided { json_schema: '{\"z\":1}' }"},
      {"\"guided_regex\":\"a+\"", base + "} guided { regex: 'a+' }"},
      {"\"guided_choice\":[\"a\",\"b\"]", base + "} guided { choice { texts: 'a' texts: 'b' } }"},
      {"\"guided_grammar\":\"root ::= [a]\"", base + "} guided { grammar: 'root ::= [a]' }"},
      {"\"structured_outputs\":{\"json\":{\"type\":\"object\"},\"disable_any_whitespace\":true}",
       base + "} guided { json_schema: '{\"type\":\"object\"}' json { any_whitespace: false } }"},
      {"\"structured_outputs\":{\"regex\":\"x\"}", base + "} guided { regex: 'x' }"},
      {"\"response_format\":{\"type\":\"json_object\"}", base + "} guided { json_object: true }"},
      {"\"response_format\":{\"type\":\"text\"}", base + "}"},
  };
  for (const auto& [members, expected] : cases) {
    EXPECT_EQ(Completion(members), Proto(expected)) << members;
  }
}

TEST_F(Bodies, PromptsInFourForms) {
  const auto text = [](const std::string& prompt, size_t i) {
    return Text(ReadCompletion, "{\"prompt\":" + prompt + "}", i);
  };
  const std::string end = " stopping { max_tokens: 16 }";
  EXPECT_EQ(text("\"a\\u0000b\"", 0), Proto("text: 'a\\000b'" + end));
  EXPECT_EQ(text("[\"a\",\"b\"]", 1), Proto("text: 'b'" + end));
  EXPECT_EQ(text("[1,2]", 0), Proto("token_ids { ids: 1 ids: 2 }" + end));
  EXPECT_EQ(text("[[1,2],[3]]", 1), Proto("token_ids { ids: 3 }" + end));
  EXPECT_EQ(text("[\"a\",[3]]", 1), Proto("token_ids { ids: 3 }" + end));
}

TEST_F(Bodies, ChatFieldsHaveTheirTwins) {
  const std::string chat = R"(chat { messages_json: '[{"role":"user","content":"hi"}]' )";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", chat + "}"},
      {"\"max_tokens\":5", chat + "} stopping { max_tokens: 5 }"},
      {"\"max_tokens\":5,\"max_completion_tokens\":6", chat + "} stopping { max_tokens: 6 }"},
      {"\"logprobs\":true", chat + "} response { num_logprobs: 0 }"},
      {"\"logprobs\":true,\"top_logprobs\":3", chat + "} response { num_logprobs: 3 }"},
      {"\"logprobs\":false,\"top_logprobs\":0", chat + "}"},
      {"\"add_generation_prompt\":false", chat + "add_generation_prompt: false }"},
      {"\"continue_final_message\":true",
       chat + "add_generation_prompt: false continue_final_message: true }"},
      {"\"chat_template_kwargs\":{\"z\":1,\"a\":2}",
       chat + "template_kwargs_json: '{\"z\":1,\"a\":2}' }"},
      {"\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"z\":1}",
       chat + "template_kwargs_json: '{\"reasoning_effort\":\"low\",\"z\":1}' }"},
      {"\"reasoning_effort\":\"low\"",
       chat + "template_kwargs_json: '{\"reasoning_effort\":\"low\"}' }"},
      {"\"documents\":[{\"text\":\"d\"}]", chat + "documents_json: '[{\"text\":\"d\"}]' }"},
      {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\","
       "\"schema\":{\"type\":\"object\",\"properties\":{\"b\":{},\"a\":{}}}}}",
       chat + "} guided { json_schema: "
              "'{\"type\":\"object\",\"properties\":{\"b\":{},\"a\":{}}}' }"},
      {"\"response_format\":{\"type\":\"structural_tag\",\"format\":{}}",
       chat + "} guided { structural_tag: '{\"type\":\"structural_tag\",\"format\":{}}' }"},
  };
  for (const auto& [members, expected] : cases) {
    EXPECT_EQ(Chat(members), Proto(expected)) << members;
  }
}

TEST_F(Bodies, MessagesKeepTheirKeysAndOrder) {
  const auto messages = [](const std::string& array) {
    auto call = ReadChat("{\"messages\":" + array + "}", *model_, Info());
    return call.ok() ? call->requests[0].chat().messages_json()
                     : "error: " + Message(call.status());
  };
  EXPECT_EQ(
      messages(
          R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])"),
      R"([{"role":"user","content":"a\nb"}])");
  EXPECT_EQ(messages(R"([{"name":"n","role":"user","content":"x", "extra" : {"z":1,"a":2}}])"),
            R"([{"name":"n","role":"user","content":"x","extra":{"z":1,"a":2}}])");
  // OpenAI's arguments are text; templates read the object.
  EXPECT_EQ(
      messages(R"([{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",)"
               R"("function":{"name":"f","arguments":"{\"b\": 1, \"a\": 2}"}}]},)"
               R"({"role":"tool","tool_call_id":"c1","content":"42"}])"),
      R"([{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function",)"
      R"("function":{"name":"f","arguments":{"b": 1, "a": 2}}}]},)"
      R"({"role":"tool","tool_call_id":"c1","content":"42"}])");
  EXPECT_EQ(messages(R"([{"role":"assistant"}])"), R"([{"role":"assistant","content":""}])");
  EXPECT_EQ(messages(R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])"),
            "error: messages[0].content[0].type=\"image_url\" is not offered here: the model reads "
            "text");
  EXPECT_EQ(messages("[]"), "error: messages is empty; give at least one");
  EXPECT_EQ(messages(R"([{"content":"x"}])"), "error: messages[0].role=null is not a string");
}

TEST_F(Bodies, ToolsAndTheirChoice) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f","parameters":)"
      R"({"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}}}}}])";
  const std::string chat = R"(chat { messages_json: '[{"role":"user","content":"hi"}]' )";
  const std::string array = tools.substr(tools.find('['));
  const std::string schema =
      R"({"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}}})";
  EXPECT_EQ(Chat(tools), Proto(chat + "tools_json: '" + array + "' }"));
  EXPECT_EQ(Chat(tools + ",\"tool_choice\":\"none\""), Proto(chat + "}"));
  EXPECT_EQ(Chat(tools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})"),
            Proto(chat + "tools_json: '" + array + "' } guided { json_schema: '" + schema + "' }"));
  EXPECT_EQ(
      Chat(tools + ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false"),
      Proto(chat + "tools_json: '" + array +
            R"(' } guided { json_schema: '{"type":"array","minItems":1,"maxItems":1,"items":)"
            R"({"anyOf":[{"type":"object","properties":{"name":{"type":"string","enum":["f"]},)"
            R"("parameters":)" +
            schema + R"(},"required":["name","parameters"]}]}}' })"));
  EXPECT_EQ(Chat(tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})"),
            "error: tool_choice.function.name=\"g\" is not among the tools");
  EXPECT_EQ(Chat("\"tool_choice\":\"required\""),
            "error: tool_choice=\"required\" needs tools; give some");
}

// What is refused, by its words: field, value, remedy.
TEST_F(Bodies, RefusalsNameFieldAndValue) {
  const std::vector<std::pair<std::string, std::string>> completions = {
      {"\"suffix\":\"x\"", "suffix=\"x\" is not offered here"},
      {"\"max_tokens\":\"3\"", "max_tokens=\"3\" is not a whole number of 32 bits"},
      {"\"max_tokens\":2.5", "max_tokens=2.5 is not a whole number"},
      {"\"temperature\":\"hot\"", "temperature=\"hot\" is not a number"},
      {"\"stream\":1", "stream=1 is not true or false"},
      {"\"stream_options\":{}", "stream_options={} needs stream=true"},
      {"\"stop\":[1]", "stop[0]=1 is not a string"},
      {"\"logprobs\":21", "logprobs=21 is outside [0, 20]"},
      {"\"logit_bias\":{\"x\":1}", "logit_bias.x=1 is not a token id with a number"},
      {"\"cache_salt\":\"\"", "cache_salt=\"\" must not be empty"},
      {"\"truncate_prompt_tokens\":\"5\"", "truncate_prompt_tokens=\"5\""},
      {"\"truncate_prompt_tokens\":5,\"truncation_side\":\"middle\"", "truncation_side=\"middle\""},
      {"\"truncate_prompt_tokens\":5,\"echo\":true", "echo=true can't be had with truncate"},
      {"\"thinking_token_budget\":5", "thinking_token_budget=5 is not offered here"},
      {"\"length_penalty\":2", "length_penalty=2 needs use_beam_search=true"},
      {"\"stop_token_ids\":[-1]", "stop_token_ids[0]=-1 is no token id"},
      {"\"stream\":true,\"prompt_logprobs\":1", "prompt_logprobs=1 can't be streamed"},
      {"\"guided_regex\":\"a\",\"guided_choice\":[\"b\"]",
       "guided_regex and guided_choice are both"},
      {"\"response_format\":{\"type\":\"xml\"}", "response_format.type='xml' is not text"},
      {"\"n\":5000", "n=5000 is outside"},
  };
  for (const auto& [members, words] : completions) {
    EXPECT_NE(Completion(members).find("error: " + words), std::string::npos)
        << members << " -> " << Completion(members);
  }
  const std::vector<std::pair<std::string, std::string>> chats = {
      {"\"chat_template\":\"x\"", "chat_template=\"x\" is not allowed"},
      {"\"functions\":[]", "functions=[] is not offered here"},
      {"\"top_logprobs\":2", "top_logprobs=2 needs logprobs=true"},
      {"\"logprobs\":3", "logprobs=3 is not true or false"},
      {"\"tools\":[{\"type\":\"retrieval\"}]", "tools[0].type=\"retrieval\" is not \"function\""},
      {"\"response_format\":{\"type\":\"json_schema\"}", "response_format.schema is missing"},
  };
  for (const auto& [members, words] : chats) {
    EXPECT_NE(Chat(members).find("error: " + words), std::string::npos)
        << members << " -> " << Chat(members);
  }
  for (const char* body : {"{}", "{\"prompt\":5}", "{\"prompt\":[]}", "{\"prompt\":[\"a\",1]}",
                           "{\"prompt\":[1,\"a\"]}", "{\"prompt\":[-1]}", "{\"prompt\":null}", "[]",
                           "", "null", "{:", "{\"prompt\":\"a\"} x"}) {
    EXPECT_EQ(Text(ReadCompletion, body).substr(0, 7), "error: ") << body;
  }
}

TEST_F(Bodies, ResponsesAreChats) {
  const auto response = [](const std::string& members) {
    return Text(ReadResponse, "{" + members + "}");
  };
  EXPECT_EQ(response("\"input\":\"hi\",\"instructions\":\"be\",\"max_output_tokens\":4"),
            Proto(R"(chat { messages_json: '[{"role":"system","content":"be"},)"
                  R"({"role":"user","content":"hi"}]' } stopping { max_tokens: 4 })"));
  EXPECT_EQ(
      response(R"("input":[{"role":"developer","content":[{"type":"input_text","text":"a"}]},)"
               R"({"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\":1}"},)"
               R"({"type":"function_call_output","call_id":"c","output":"42"}])"),
      Proto(R"(chat { messages_json: '[{"role":"system","content":"a"},)"
            R"({"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function",)"
            R"("function":{"name":"f","arguments":{"a":1}}}]},)"
            R"({"role":"tool","tool_call_id":"c","content":"42"}]' })"));
  EXPECT_EQ(response(R"("input":"x","text":{"format":{"type":"json_schema","name":"n",)"
                     R"("schema":{"b":1,"a":2}}})"),
            Proto(R"(chat { messages_json: '[{"role":"user","content":"x"}]' } )"
                  R"(guided { json_schema: '{"b":1,"a":2}' })"));
  EXPECT_EQ(response("\"input\":\"x\",\"previous_response_id\":\"r\"").substr(0, 43),
            "error: previous_response_id=\"r\" is not offe");
}

}  // namespace
}  // namespace quire
