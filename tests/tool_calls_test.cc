// Calls of tools in a model's text. What is expected is what each format's published template shows
// a model to write; any way of cutting the text into pieces must tell the same.
#include "server/openai/tool_calls.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

namespace quire {
namespace {

struct Found {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool operator==(const Found& other) const { return text == other.text && calls == other.calls; }
};

std::ostream& operator<<(std::ostream& out, const Found& found) {
  out << "text <" << found.text << ">";
  for (const auto& [name, arguments] : found.calls) out << " " << name << "<" << arguments << ">";
  return out;
}

void Take(const std::vector<ToolPiece>& pieces, Found& found) {
  for (const ToolPiece& piece : pieces) {
    const auto index = static_cast<size_t>(piece.index);
    switch (piece.kind) {
      case ToolPiece::Kind::kText:
        found.text += piece.text;
        break;
      case ToolPiece::Kind::kStart:
        EXPECT_EQ(index, found.calls.size());
        found.calls.emplace_back(piece.text, "");
        break;
      case ToolPiece::Kind::kArguments:
        ASSERT_LT(index, found.calls.size());
        found.calls[index].second += piece.text;
        break;
    }
  }
}

// cuts: 0 = in one piece, 1 = character by character, else a seed.
Found Parse(ToolFormat format, const std::string& text, unsigned cuts, bool parallel = true,
            int* num_calls = nullptr) {
  ToolParser parser(format, "named", parallel);
  std::mt19937 random(cuts);
  Found found;
  for (size_t i = 0; i < text.size();) {
    const size_t size = cuts == 0 ? text.size() : cuts == 1 ? 1 : 1 + random() % 9;
    std::vector<ToolPiece> pieces;
    parser.Push(text.substr(i, size), pieces);
    Take(pieces, found);
    i += size;
  }
  std::vector<ToolPiece> pieces;
  parser.Finish(pieces);
  Take(pieces, found);
  if (num_calls != nullptr) *num_calls = parser.num_calls();
  return found;
}

struct Case {
  ToolFormat format;
  std::string text;
  Found expected;
};

const Case kCases[] = {
    // Qwen and Hermes.
    {ToolFormat::kHermes,
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
     {"", {{"f", "{\"a\": 1}"}}}},
    {ToolFormat::kHermes,
     "Let me see.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n"
     "<tool_call>\n{\"arguments\": {\"x\": \"}</tool_call>\\\"\"}, \"name\": "
     "\"g\"}\n</tool_call>\n",
     {"Let me see.", {{"f", "{}"}, {"g", "{\"x\": \"}</tool_call>\\\"\"}"}}}},
    {ToolFormat::kHermes,
     "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[2]}\"}</tool_call>",
     {"", {{"f", "{\"a\":[2]}"}}}},
    {ToolFormat::kHermes,
     "<tool_call>{\"name\": \"f\"}</tool_call> done",
     {" done", {{"f", "{}"}}}},
    {ToolFormat::kHermes,
     "<tool_call>{\"name\": \"f\", \"arguments\": {}}<tool_call>{\"name\": \"g\", \"arguments\": "
     "{}}",
     {"", {{"f", "{}"}, {"g", "{}"}}}},
    {ToolFormat::kHermes, "a < b, <tool_cal and <tool>  ", {"a < b, <tool_cal and <tool>  ", {}}},
    {ToolFormat::kHermes, "  plain\n", {"  plain\n", {}}},
    {ToolFormat::kHermes, "<tool_call>what?", {"<tool_call>what?", {}}},
    {ToolFormat::kHermes,
     "<tool_call>{\"a\": 1}</tool_call>",
     {"<tool_call>{\"a\": 1}</tool_call>", {}}},
    // Cut by max_tokens: what there is of it.
    {ToolFormat::kHermes,
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, ",
     {"", {{"f", "{\"a\": [1, "}}}},
    {ToolFormat::kHermes, "x <tool_call>{\"name\": \"f", {"x <tool_call>{\"name\": \"f", {}}},
    // Mistral.
    {ToolFormat::kMistral,
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": "
     "{}}]",
     {"", {{"f", "{\"a\": 1}"}, {"g", "{}"}}}},
    {ToolFormat::kMistral,
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}, \"id\": \"123456789\"}]",
     {"", {{"f", "{}"}}}},
    {ToolFormat::kMistral,
     "[TOOL_CALLS]f[ARGS]{\"a\": {\"b\": []}}[TOOL_CALLS]g[ARGS]{}",
     {"", {{"f", "{\"a\": {\"b\": []}}"}, {"g", "{}"}}}},
    {ToolFormat::kMistral, "f[CALL_ID]abc [TOOL", {"f[CALL_ID]abc [TOOL", {}}},
    {ToolFormat::kMistral,
     "[TOOL_CALLS]f[CALL_ID]abc[ARGS]{\"a\": 1}",
     {"", {{"f", "{\"a\": 1}"}}}},
    // Llama 3.
    {ToolFormat::kLlama3,
     "{\"name\": \"f\", \"parameters\": {\"a\": \"x\"}}",
     {"", {{"f", "{\"a\": \"x\"}"}}}},
    {ToolFormat::kLlama3,
     "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
     {"", {{"f", "{}"}, {"g", "{}"}}}},
    {ToolFormat::kLlama3,
     "\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": 1}}",
     {"", {{"f", "{\"a\": 1}"}}}},
    {ToolFormat::kLlama3, "{\"city\": \"Paris\"}", {"{\"city\": \"Paris\"}", {}}},
    {ToolFormat::kLlama3, "{\"name\": \"Ada\"}", {"{\"name\": \"Ada\"}", {}}},
    {ToolFormat::kLlama3,
     "The {\"name\": \"f\", \"parameters\": {}}",
     {"The {\"name\": \"f\", \"parameters\": {}}", {}}},
    {ToolFormat::kLlama3, "<|python_tag|>print(1)", {"<|python_tag|>print(1)", {}}},
    // By grammar.
    {ToolFormat::kArray,
     "[{\"name\": \"f\", \"parameters\": {\"a\": 1}}, {\"name\":\"g\",\"parameters\":{}}]",
     {"", {{"f", "{\"a\": 1}"}, {"g", "{}"}}}},
    {ToolFormat::kArray, "[{\"name\": \"f\", \"parameters\": {\"a\"", {"", {{"f", "{\"a\""}}}},
    {ToolFormat::kNamed, "{\"a\": 1}", {"", {{"named", "{\"a\": 1}"}}}},
    {ToolFormat::kText,
     "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
     {"<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", {}}},
};

TEST(ToolCalls, FormatsInOnePieceAndInMany) {
  for (const Case& c : kCases) {
    for (unsigned cuts = 0; cuts < 12; ++cuts) {
      EXPECT_EQ(Parse(c.format, c.text, cuts), c.expected) << c.text << " cuts " << cuts;
    }
  }
}

// Whatever a model writes: nothing is lost without a call, and cuts make no difference.
TEST(ToolCalls, RandomTextsAreTheSameHoweverTheyAreCut) {
  const std::vector<std::string> parts = {"<tool_call>",
                                          "</tool_call>",
                                          "[TOOL_CALLS]",
                                          "{",
                                          "}",
                                          "\"name\"",
                                          ": ",
                                          "\"f\"",
                                          ", ",
                                          "\"arguments\"",
                                          "[",
                                          "]",
                                          "\"parameters\"",
                                          "\\",
                                          "\"",
                                          "text",
                                          "\n",
                                          ";",
                                          "<tool",
                                          "<|python_tag|>",
                                          "{\"name\": \"f\", \"arguments\": "};
  std::mt19937 random(3);
  int with_calls = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string text;
    for (unsigned k = random() % 12; k > 0; --k) text += parts[random() % parts.size()];
    for (const ToolFormat format :
         {ToolFormat::kHermes, ToolFormat::kMistral, ToolFormat::kLlama3, ToolFormat::kArray}) {
      const Found whole = Parse(format, text, 0);
      with_calls += !whole.calls.empty();
      if (whole.calls.empty()) {
        EXPECT_EQ(whole.text, text) << static_cast<int>(format);
      }
      EXPECT_EQ(Parse(format, text, 1), whole) << text << " format " << static_cast<int>(format);
      EXPECT_EQ(Parse(format, text, 2 + static_cast<unsigned>(i)), whole) << text;
    }
  }
  EXPECT_GT(with_calls, 100);
}

TEST(ToolCalls, OneCallOnly) {
  const std::string text =
      "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"
      "<tool_call>{\"name\": \"g\", \"arguments\": {\"a\": 1}}</tool_call>";
  EXPECT_EQ(Parse(ToolFormat::kHermes, text, 1, /*parallel=*/false), (Found{"", {{"f", "{}"}}}));
}

TEST(ToolCalls, FormatByTemplate) {
  EXPECT_EQ(ToolFormatOf("... <tool_call></tool_call> ..."), ToolFormat::kHermes);
  EXPECT_EQ(ToolFormatOf("{{ '[TOOL_CALLS]' }}"), ToolFormat::kMistral);
  EXPECT_EQ(ToolFormatOf("{{- '{\"parameters\": ' }}"), ToolFormat::kLlama3);
  EXPECT_EQ(ToolFormatOf("{{ '<|python_tag|>' }}"), ToolFormat::kLlama3);
  EXPECT_EQ(ToolFormatOf("no tools"), ToolFormat::kHermes);
}

}  // namespace
}  // namespace quire
