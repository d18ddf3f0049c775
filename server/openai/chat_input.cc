#include "server/openai/chat_input.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/json_slice.h"
#include "tokenizer/tokenizer.h"

namespace quire {
namespace {

constexpr size_t kMaxTools = 512;

std::string JsonString(std::string_view text) {
  JsonWriter w;
  w.String(text);
  return w.text();
}

// "hello", null, or [{"type": "text", "text": "hello"}, ...] as one text.
absl::StatusOr<std::string> ContentText(const Json& content, size_t message) {
  if (content.is_null()) return std::string();
  if (const auto text = content.as_string()) return std::string(*text);
  if (!content.is_array()) {
    return InvalidArgument("messages[{}].content={} is neither a string nor an array of parts",
                           message, Shown(content));
  }
  std::string joined;
  for (size_t i = 0; i < content.size(); ++i) {
    const Json part = content.at(i);
    const std::string type(part["type"].as_string().value_or("text"));
    const bool is_refusal = type == "refusal";
    const Json text = part.is_string() ? part : part[is_refusal ? "refusal" : "text"];
    const bool is_text =
        type == "text" || type == "input_text" || type == "output_text" || is_refusal;
    if (!is_text) {
      return InvalidArgument(
          "messages[{}].content[{}].type={} is not offered here: the model reads text", message, i,
          Shown(part["type"]));
    }
    if (!text.is_string()) {
      return InvalidArgument("messages[{}].content[{}].text={} is not a string", message, i,
                             Shown(text));
    }
    if (i > 0) joined += '\n';
    joined += *text.as_string();
  }
  return joined;
}

// OpenAI's arguments are a string of JSON; templates want the object.
absl::StatusOr<std::string> CallsForTemplate(std::string_view raw, size_t message) {
  std::string out = "[";
  size_t index = 0;
  for (const std::string_view call : RawElements(raw)) {
    if (index > 0) out += ',';
    out += '{';
    bool first = true;
    for (const auto& [key, value] : RawMembers(call)) {
      if (!std::exchange(first, false)) out += ',';
      out += fmt::format("\"{}\":", key);
      if (key != "function") {
        out += value;
        continue;
      }
      out += '{';
      bool first_inner = true;
      for (const auto& [name, inner] : RawMembers(value)) {
        if (!std::exchange(first_inner, false)) out += ',';
        out += fmt::format("\"{}\":", name);
        if (name != "arguments" || inner.empty() || inner.front() != '"') {
          out += inner;
          continue;
        }
        ASSIGN_OR_RETURN(const Json text, Json::Parse(inner));
        std::string arguments(*text.as_string());
        if (arguments.find_first_not_of(" \n\t\r") == std::string::npos) arguments = "{}";
        const absl::StatusOr<Json> object = Json::Parse(arguments);
        if (!object.ok() || !object->is_object()) {
          return InvalidArgument(
              "messages[{}].tool_calls[{}].function.arguments={} is not the text of a JSON object",
              message, index, Shown(text));
        }
        out += arguments;
      }
      out += '}';
    }
    out += '}';
    ++index;
  }
  return out + ']';
}

absl::StatusOr<std::string> TemplateMessage(std::string_view raw, size_t index) {
  ASSIGN_OR_RETURN(const Json message, Json::Parse(raw));
  if (!message.is_object()) {
    return InvalidArgument("messages[{}]={} is not an object", index, Shown(message));
  }
  const Json role = message["role"];
  if (!role.is_string()) {
    return InvalidArgument("messages[{}].role={} is not a string", index, Shown(role));
  }
  ASSIGN_OR_RETURN(const std::string content, ContentText(message["content"], index));
  std::string out = "{";
  bool has_content = false;
  for (const auto& [key, value] : RawMembers(raw)) {
    std::string text(value);
    if (key == "content") {
      if (std::exchange(has_content, true)) continue;
      text = JsonString(content);
    } else if (key == "tool_calls" && !value.empty() && value.front() == '[') {
      ASSIGN_OR_RETURN(text, CallsForTemplate(value, index));
    }
    if (out.size() > 1) out += ',';
    out += fmt::format("\"{}\":{}", key, text);
  }
  if (!has_content) out += ",\"content\":\"\"";
  return out + '}';
}

// One tool, checked.
struct Tool {
  std::string name;
  std::string parameters;  // a JSON schema
};

absl::StatusOr<std::vector<Tool>> CheckTools(std::string_view raw_tools) {
  std::vector<Tool> tools;
  const std::vector<std::string_view> elements = RawElements(raw_tools);
  if (elements.size() > kMaxTools) {
    return InvalidArgument("tools has {} entries, limit is {}", elements.size(), kMaxTools);
  }
  for (size_t i = 0; i < elements.size(); ++i) {
    ASSIGN_OR_RETURN(const Json tool, Json::Parse(elements[i]));
    const Json type = tool["type"];
    if (type.as_string() != "function") {
      return InvalidArgument("tools[{}].type={} is not \"function\"", i, Shown(type));
    }
    const Json name = tool["function"]["name"];
    if (!name.is_string() || name.as_string()->empty()) {
      return InvalidArgument("tools[{}].function.name={} is not a name", i, Shown(name));
    }
    const Json parameters = tool["function"]["parameters"];
    if (!parameters.is_null() && !parameters.is_object()) {
      return InvalidArgument("tools[{}].function.parameters={} is not a JSON schema", i,
                             Shown(parameters));
    }
    Tool& out = tools.emplace_back();
    out.name = *name.as_string();
    out.parameters = R"({"type":"object","properties":{}})";
    if (parameters.is_object() && parameters.size() > 0) {
      const std::string_view function = RawMember(elements[i], "function").value_or("");
      out.parameters = RawMember(function, "parameters").value_or("");
    }
  }
  return tools;
}

// An array of calls. References into a tool's own definitions go on working: they are moved to the
// top, where "#/$defs/..." finds them.
std::string CallsSchema(const std::vector<Tool>& tools, bool parallel) {
  std::map<std::string, std::string_view> definitions;
  std::string any_of;
  for (const Tool& tool : tools) {
    for (const auto& [name, schema] :
         RawMembers(RawMember(tool.parameters, "$defs").value_or(""))) {
      definitions[std::string(name)] = schema;
    }
    if (!any_of.empty()) any_of += ',';
    any_of +=
        fmt::format(R"({{"type":"object","properties":{{"name":{{"type":"string","enum":[{}]}},)"
                    R"("parameters":{}}},"required":["name","parameters"]}})",
                    JsonString(tool.name), tool.parameters);
  }
  std::string defs;
  for (const auto& [name, schema] : definitions) {
    defs += fmt::format("{}\"{}\":{}", defs.empty() ? "" : ",", name, schema);
  }
  return fmt::format(R"({{"type":"array","minItems":1,{}"items":{{"anyOf":[{}]}}{}}})",
                     parallel ? "" : "\"maxItems\":1,", any_of,
                     defs.empty() ? "" : fmt::format(",\"$defs\":{{{}}}", defs));
}

}  // namespace

absl::StatusOr<std::string> TemplateMessages(std::string_view raw) {
  std::string out = "[";
  size_t index = 0;
  for (const std::string_view message : RawElements(raw)) {
    ASSIGN_OR_RETURN(const std::string text, TemplateMessage(message, index));
    if (index++ > 0) out += ',';
    out += text;
  }
  if (index == 0) return InvalidArgument("messages is empty; give at least one");
  return out + ']';
}

absl::StatusOr<ToolUse> ReadTools(std::string_view raw_tools, const Json& choice, bool parallel,
                                  const ServedModel& model) {
  ASSIGN_OR_RETURN(const std::vector<Tool> tools, CheckTools(raw_tools));
  ToolUse use{.parallel = parallel};
  const std::string word(choice.as_string().value_or(choice.is_null() ? "auto" : ""));
  const Json function = choice["function"];
  const Json name = function.is_object() ? function["name"] : choice["name"];
  if (tools.empty()) {
    if (word == "required" || name.is_string()) {
      return InvalidArgument("tool_choice={} needs tools; give some", Shown(choice));
    }
    return use;
  }
  if (word == "none") return use;  // and the template sees no tools
  use.tools_json = raw_tools;
  if (word == "auto") {
    use.format = ToolFormatOf(model.chat_template);
    return use;
  }
  if (word == "required") {
    use.format = ToolFormat::kArray;
    use.schema = CallsSchema(tools, parallel);
    return use;
  }
  if (choice["type"].as_string() != "function" || !name.is_string()) {
    return InvalidArgument(
        "tool_choice={} is not \"none\", \"auto\", \"required\" or a function by name",
        Shown(choice));
  }
  const auto found = std::find_if(tools.begin(), tools.end(),
                                  [&](const Tool& tool) { return tool.name == *name.as_string(); });
  if (found == tools.end()) {
    return InvalidArgument("tool_choice.function.name={} is not among the tools", Shown(name));
  }
  use.format = ToolFormat::kNamed;
  use.named = found->name;
  use.schema = found->parameters;
  return use;
}

absl::Status ApplyTools(const ToolUse& tools, const ServedModel& model, pb::GenerateRequest& out) {
  out.mutable_chat()->set_tools_json(tools.tools_json);
  // A marker that is a control token would be skipped in the text.
  const std::optional<TokenId> marker = model.tokenizer->Find(MarkerOf(tools.format));
  if (marker && model.tokenizer->IsSpecial(*marker) && !out.response().has_skip_special_tokens()) {
    out.mutable_response()->set_skip_special_tokens(false);
  }
  if (tools.schema.empty()) return absl::OkStatus();
  if (out.has_guided()) {
    return InvalidArgument(
        "tool_choice binds the answer's form, and response_format or structured_outputs does, too; "
        "leave one out");
  }
  out.mutable_guided()->set_json_schema(tools.schema);
  return absl::OkStatus();
}

}  // namespace quire
