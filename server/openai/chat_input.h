// server/openai/chat_input.h -- messages and tools of a chat, for the chat template and the
// grammar. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "quire/v1/quire.pb.h"
#include "server/openai/fields.h"
#include "server/openai/tool_calls.h"
#include "server/served_model.h"

namespace quire {

namespace pb = ::quire::v1;

// Messages as a template reads them, in the client's own order of keys: parts of text joined by a
// line break, null or no content as "", arguments of tool calls as objects.
// raw: the text of the array. ERRORS: kInvalidArgument; parts that are no text are refused.
absl::StatusOr<std::string> TemplateMessages(std::string_view raw);

// What tools and tool_choice come to.
struct ToolUse {
  ToolFormat format = ToolFormat::kText;  // how calls are looked for
  std::string named;                      // the tool of kNamed
  bool parallel = true;
  std::string tools_json;  // for the template; empty: none
  std::string schema;      // that the answer must have; empty: any
};

// raw_tools: the text of the array, of chats ({"type", "function": {...}}); "" = none.
// choice: "none", "auto", "required" or {"type": "function", "function": {"name"}}; null = auto.
absl::StatusOr<ToolUse> ReadTools(std::string_view raw_tools, const Json& choice, bool parallel,
                                  const ServedModel& model);

// Puts them into the request. ERRORS: kInvalidArgument if the answer's form is bound otherwise.
absl::Status ApplyTools(const ToolUse& tools, const ServedModel& model, pb::GenerateRequest& out);

}  // namespace quire
