// server/openai/guided_fields.cc -- what an answer must look like, from the three ways in which
// clients say it; see sampling_fields.h.
#include "base/json_slice.h"
#include "server/openai/sampling_fields.h"

namespace quire {
namespace {

// A schema as an object, or as the text of one.
std::string SchemaText(const Json& schema, std::string_view raw) {
  return schema.is_string() ? std::string(*schema.as_string()) : std::string(raw);
}

class GuideReader {
 public:
  GuideReader(Fields& fields, pb::GuidedDecoding& out) : fields_(fields), out_(out) {}

  bool any() const { return !by_.empty(); }
  const std::string& by() const { return by_; }

  // Notes who asks; two ways at once contradict each other.
  bool Claim(std::string_view name) {
    if (by_.empty()) {
      by_ = name;
      return true;
    }
    fields_.Fail(
        InvalidArgument("{} and {} are both set; an answer has one form, give one", by_, name));
    return false;
  }

  // prefix: "structured_outputs." or "guided_".
  void ReadGuides(Fields& from, std::string_view raw, const std::string& prefix,
                  const std::string& key_prefix) {
    const auto key = [&](const char* name) { return key_prefix + name; };
    const Json schema = from.json()[key("json")];
    if (!schema.is_null() && Claim(prefix + "json")) {
      out_.set_json_schema(SchemaText(schema, RawMember(raw, key("json")).value_or("")));
    }
    if (const auto regex = from.String(key("regex")); regex && Claim(prefix + "regex")) {
      out_.set_regex(*regex);
    }
    if (const auto grammar = from.String(key("grammar")); grammar && Claim(prefix + "grammar")) {
      out_.set_grammar(*grammar);
    }
    if (from.Has(key("choice")) && Claim(prefix + "choice")) {
      for (std::string& text : from.Strings(key("choice"))) {
        out_.mutable_choice()->add_texts(std::move(text));
      }
    }
    if (from.Bool(key("json_object")).value_or(false) && Claim(prefix + "json_object")) {
      out_.set_json_object(true);
    }
    const Json tag = from.json()[key("structural_tag")];
    if (!tag.is_null() && Claim(prefix + "structural_tag")) {
      out_.set_structural_tag(SchemaText(tag, RawMember(raw, key("structural_tag")).value_or("")));
    }
    from.Refuse(key("whitespace_pattern"), "is not offered here; leave it out");
  }

 private:
  Fields& fields_;
  pb::GuidedDecoding& out_;
  std::string by_;
};

void ReadResponseFormat(Fields& format, std::string_view raw, GuideReader& reader,
                        pb::GuidedDecoding& out) {
  const std::string type = format.String("type").value_or("");
  if (type == "text") return;
  if (!reader.Claim("response_format")) return;
  if (type == "json_object") {
    out.set_json_object(true);
  } else if (type == "json_schema") {
    // {"json_schema": {"schema"}} in chats, {"schema"} itself in responses.
    const bool nested = format.Has("json_schema");
    std::optional<Fields> holder = nested ? format.Object("json_schema") : format;
    if (!holder) return;
    const std::string_view holder_raw = nested ? RawMember(raw, "json_schema").value_or("") : raw;
    if (!holder->json()["schema"].is_object()) {
      return format.Fail(InvalidArgument("response_format.{}schema is missing; give a JSON schema",
                                         nested ? "json_schema." : ""));
    }
    out.set_json_schema(std::string(RawMember(holder_raw, "schema").value_or("")));
  } else if (type == "structural_tag") {
    out.set_structural_tag(std::string(raw));
  } else {
    format.Fail(InvalidArgument(
        "response_format.type='{}' is not text, json_object, json_schema or structural_tag", type));
  }
}

}  // namespace

std::string ReadGuidedFields(Fields& fields, std::string_view raw, pb::GenerateRequest& out) {
  pb::GuidedDecoding guided;
  GuideReader reader(fields, guided);
  if (auto format = fields.Object("response_format")) {
    ReadResponseFormat(*format, RawMember(raw, "response_format").value_or(""), reader, guided);
    fields.Merge(*format);
  }
  if (auto outputs = fields.Object("structured_outputs")) {
    reader.ReadGuides(*outputs, RawMember(raw, "structured_outputs").value_or(""),
                      "structured_outputs.", "");
    if (outputs->Bool("disable_any_whitespace").value_or(false)) {
      guided.mutable_json()->set_any_whitespace(false);
    }
    if (outputs->Bool("disable_additional_properties").value_or(false)) {
      guided.mutable_json()->set_strict(true);
    }
    fields.Merge(*outputs);
  }
  reader.ReadGuides(fields, raw, "guided_", "guided_");
  if (reader.any()) *out.mutable_guided() = std::move(guided);
  return reader.by();
}

}  // namespace quire
