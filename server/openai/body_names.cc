// server/openai/body_names.cc -- what OpenAI's bodies call the fields of our requests; see call.h.
#include "server/openai/call.h"

namespace quire {

FieldNames OpenAiFieldNames(const BodyNames& body) {
  const std::string width = body.has_best_of ? "best_of" : "n";
  const std::string guide = body.guide.empty() ? "tools" : body.guide;
  FieldNames names = {
      {"stopping.max_tokens", body.max_tokens},
      {"max_tokens", body.max_tokens},
      {"response.num_logprobs", body.num_logprobs},
      {"num_logprobs", body.num_logprobs},
      {"stopping.include_stop_in_output", "include_stop_str_in_output"},
      {"include_stop_in_output", "include_stop_str_in_output"},
      {"beam.num_return_sequences", "n"},
      {"num_return_sequences", "n"},
      {"beam.beam_width", width},
      {"beam_width", width},
      // The lowest first there.
      {"scheduling.priority", "priority (negated)"},
      {"token_ids.ids", "prompt"},
      {"chat.messages_json", "messages"},
      {"chat.tools_json", "tools"},
      {"chat.documents_json", "documents"},
      {"chat.template_kwargs_json", "chat_template_kwargs"},
      {"guided", guide},
      {"guided.json.any_whitespace", "structured_outputs.disable_any_whitespace"},
      {"guided.json.strict", "structured_outputs.disable_additional_properties"},
  };
  for (const char* kind : {"json_schema", "json_object", "regex", "grammar", "choice",
                           "choice.texts", "structural_tag"}) {
    names.emplace_back(fmt::format("guided.{}", kind), guide);
  }
  // Where a field lives in our own proto says nothing to a client of OpenAI's.
  for (const char* part : {"sampling.", "stopping.", "response.", "beam.", "scheduling.", "guided.",
                           "chat.", "kv.", "spec."}) {
    names.emplace_back(part, "");
  }
  return names;
}

}  // namespace quire
