#include "sampling/grammar_check.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/json.h"

namespace quire {
namespace {

// Assertions that XGrammar 0.2.8 leaves out without a word.
constexpr std::array kUnsupported = {"not",
                                     "if",
                                     "then",
                                     "else",
                                     "dependentRequired",
                                     "dependentSchemas",
                                     "dependencies",
                                     "contains",
                                     "minContains",
                                     "maxContains",
                                     "$dynamicRef",
                                     "$recursiveRef",
                                     "additionalItems"};

// Only the first of these is looked at, and nothing beside it.
constexpr std::array kExclusive = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
constexpr std::array kObjectAssertions = {
    "properties",    "patternProperties", "propertyNames",        "required",
    "minProperties", "maxProperties",     "additionalProperties", "unevaluatedProperties"};
constexpr std::array kArrayAssertions = {"items", "prefixItems", "minItems", "maxItems",
                                         "unevaluatedItems"};
constexpr std::array kScalarAssertions = {"minLength",        "maxLength",       "pattern",
                                          "minimum",          "maximum",         "multipleOf",
                                          "exclusiveMinimum", "exclusiveMaximum"};
// Counts: each becomes a repetition.
constexpr std::array kCounts = {"minLength", "maxLength",     "minItems",
                                "maxItems",  "minProperties", "maxProperties"};
constexpr std::array kTypes = {"null", "boolean", "object", "array", "number", "string", "integer"};

template <size_t kSize>
const char* FirstIn(const Json& object, const std::array<const char*, kSize>& keys) {
  for (const char* key : keys) {
    if (object.Has(key)) return key;
  }
  return nullptr;
}

// Groups and the numbers of repetitions, outside of character classes, strings and escapes.
absl::Status CheckNesting(std::string_view field, std::string_view text, bool ebnf,
                          const GrammarLimits& limits) {
  int32_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' && !ebnf) {
      ++i;
    } else if (ebnf && c == '#') {
      i = std::min(text.find('\n', i), text.size());
    } else if (c == '[' || (ebnf && (c == '"' || c == '\''))) {
      const char end = c == '[' ? ']' : c;
      size_t j = i + 1;
      // Within a regex's class, ']' may stand first.
      if (c == '[' && j < text.size() && text[j] == '^') ++j;
      while (j < text.size() && text[j] != end) j += text[j] == '\\' ? 2 : 1;
      i = j;
    } else if (c == '(') {
      if (++depth > limits.max_depth) {
        return InvalidArgument("{} is nested deeper than {} at offset {}", field, limits.max_depth,
                               i);
      }
    } else if (c == ')') {
      --depth;
    } else if (c == '{') {
      int64_t number = 0;
      for (size_t j = i + 1; j < text.size() && text[j] != '}'; ++j) {
        if (text[j] < '0' || text[j] > '9') {
          number = 0;
          continue;
        }
        number = std::min<int64_t>(number * 10 + (text[j] - '0'), INT32_MAX);
        if (number > limits.max_repeat) {
          return InvalidArgument("{} repeats more than {} times at offset {}", field,
                                 limits.max_repeat, i);
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSize(std::string_view field, size_t bytes, size_t limit) {
  if (bytes <= limit) return absl::OkStatus();
  return InvalidArgument("{} has {} bytes, limit is {}", field, bytes, limit);
}

absl::Status CheckRegex(std::string_view field, std::string_view regex,
                        const GrammarLimits& limits) {
  if (regex.empty()) return InvalidArgument("{} must not be empty", field);
  RETURN_IF_ERROR(CheckSize(field, regex.size(), limits.max_regex_bytes));
  return CheckNesting(field, regex, /*ebnf=*/false, limits);
}

class SchemaChecker {
 public:
  SchemaChecker(Json root, const GrammarLimits& limits) : root_(std::move(root)), limits_(limits) {}

  // `path` as in "json_schema.properties.a". is_name: of a property's name, always a string.
  absl::Status Check(const Json& schema, const std::string& path, bool is_name = false) const {
    if (schema.is_bool()) return absl::OkStatus();
    if (!schema.is_object()) {
      return InvalidArgument("{} must be an object or a boolean", path);
    }
    if (const char* key = FirstIn(schema, kUnsupported)) {
      return InvalidArgument("{}.{} is not supported; leave it out", path, key);
    }
    if (schema["uniqueItems"].as_bool().value_or(false)) {
      return InvalidArgument("{}.uniqueItems=true is not supported; leave it out", path);
    }
    RETURN_IF_ERROR(CheckType(schema, path, is_name));
    RETURN_IF_ERROR(CheckCounts(schema, path));
    RETURN_IF_ERROR(CheckAlone(schema, path));
    if (schema.Has("enum") && (!schema["enum"].is_array() || schema["enum"].size() == 0)) {
      return InvalidArgument("{}.enum must be an array with at least one value", path);
    }
    if (schema.Has("$ref")) RETURN_IF_ERROR(CheckRef(schema["$ref"], path));
    // Their rules let control characters into the string.
    if (const auto format = schema["format"].as_string();
        format == "json-pointer" || format == "relative-json-pointer") {
      return InvalidArgument("{}.format={} is not supported; leave it out", path, *format);
    }
    if (schema.Has("pattern")) {
      const auto pattern = schema["pattern"].as_string();
      if (!pattern) return InvalidArgument("{}.pattern must be a string", path);
      RETURN_IF_ERROR(CheckRegex(path + ".pattern", *pattern, limits_));
    }
    return CheckChildren(schema, path);
  }

 private:
  static absl::Status CheckType(const Json& schema, const std::string& path, bool is_name) {
    if (!schema.Has("type")) {
      const char* key = FirstIn(schema, kScalarAssertions);
      if (key != nullptr && !is_name && FirstIn(schema, kExclusive) == nullptr) {
        return InvalidArgument("{}.{} needs a type beside it", path, key);
      }
      return absl::OkStatus();
    }
    const Json type = schema["type"];
    const size_t count = type.is_array() ? type.size() : 1;
    if (count == 0) return InvalidArgument("{}.type=[] must name a type", path);
    for (size_t i = 0; i < count; ++i) {
      const Json one = type.is_array() ? type.at(i) : type;
      const auto name = one.as_string();
      if (!name || std::find(kTypes.begin(), kTypes.end(), *name) == kTypes.end()) {
        return InvalidArgument(
            "{}.type={} must be null, boolean, object, array, number, string or integer", path,
            one.Dump());
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckCounts(const Json& schema, const std::string& path) const {
    for (const char* key : kCounts) {
      if (!schema.Has(key)) continue;
      const auto value = schema[key].as_int();
      if (!value || *value < 0 || *value > limits_.max_repeat) {
        return InvalidArgument("{}.{}={} must be in [0, {}]", path, key, schema[key].Dump(),
                               limits_.max_repeat);
      }
    }
    constexpr std::array<std::pair<const char*, const char*>, 3> kPairs = {
        {{"minLength", "maxLength"}, {"minItems", "maxItems"}, {"minProperties", "maxProperties"}}};
    for (const auto& pair : kPairs) {
      if (!schema.Has(pair.first) || !schema.Has(pair.second)) continue;
      if (*schema[pair.first].as_int() > *schema[pair.second].as_int()) {
        return InvalidArgument("{}.{}={} must be at most {}={}", path, pair.first,
                               schema[pair.first].Dump(), pair.second, schema[pair.second].Dump());
      }
    }
    return absl::OkStatus();
  }

  static absl::Status CheckAlone(const Json& schema, const std::string& path) {
    const char* first = FirstIn(schema, kExclusive);
    if (first == nullptr) return absl::OkStatus();
    const char* other = nullptr;
    for (const char* key : kExclusive) {
      if (key != std::string_view(first) && schema.Has(key)) other = key;
    }
    if (other == nullptr) other = FirstIn(schema, kObjectAssertions);
    if (other == nullptr) other = FirstIn(schema, kArrayAssertions);
    if (other == nullptr) other = FirstIn(schema, kScalarAssertions);
    if (other == nullptr) return absl::OkStatus();
    return InvalidArgument("{}.{} is not supported beside {}; put it inside", path, other, first);
  }

  // References into the schema itself. A chain of references must end at something else.
  absl::Status CheckRef(const Json& ref, const std::string& path) const {
    constexpr int kMaxChain = 64;
    Json next = ref;
    for (int i = 0; i < kMaxChain; ++i) {
      const auto uri = next.as_string();
      if (!uri || (*uri != "#" && uri->substr(0, 2) != "#/")) {
        return InvalidArgument("{}.$ref={} must point into the schema, as in #/$defs/name", path,
                               next.Dump());
      }
      Json target = root_;
      std::string_view rest = uri->size() > 2 ? uri->substr(2) : std::string_view();
      while (!rest.empty()) {
        const size_t slash = rest.find('/');
        const std::string_view part = rest.substr(0, slash);
        rest = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
        if (!target.is_object() || !target.Has(part)) {
          return InvalidArgument("{}.$ref={} points to nothing: no '{}' there", path, next.Dump(),
                                 part);
        }
        target = target[part];
      }
      if (!target.is_object() && !target.is_bool()) {
        return InvalidArgument("{}.$ref={} must point to a schema", path, next.Dump());
      }
      if (!target.is_object() || !target.Has("$ref")) return absl::OkStatus();
      next = target["$ref"];
    }
    return InvalidArgument("{}.$ref={} is a chain of references that never ends", path, ref.Dump());
  }

  absl::Status CheckChildren(const Json& schema, const std::string& path) const {
    for (const char* key : {"properties", "patternProperties", "$defs", "definitions"}) {
      if (!schema.Has(key)) continue;
      const Json members = schema[key];
      if (!members.is_object()) return InvalidArgument("{}.{} must be an object", path, key);
      absl::Status status;
      members.ForEach([&](std::string_view name, const Json& member) {
        const std::string at = fmt::format("{}.{}.{}", path, key, name);
        if (status.ok() && key == std::string_view("patternProperties")) {
          status = CheckRegex(at, name, limits_);
        }
        if (status.ok()) status = Check(member, at);
      });
      RETURN_IF_ERROR(status);
    }
    for (const char* key : {"anyOf", "oneOf", "allOf", "prefixItems"}) {
      if (!schema.Has(key)) continue;
      const Json list = schema[key];
      if (!list.is_array() || list.size() == 0) {
        return InvalidArgument("{}.{} must be an array with at least one schema", path, key);
      }
      for (size_t i = 0; i < list.size(); ++i) {
        RETURN_IF_ERROR(Check(list.at(i), fmt::format("{}.{}[{}]", path, key, i)));
      }
    }
    for (const char* key :
         {"items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems"}) {
      if (schema.Has(key)) {
        RETURN_IF_ERROR(Check(schema[key], fmt::format("{}.{}", path, key)));
      }
    }
    if (schema.Has("propertyNames")) {
      RETURN_IF_ERROR(Check(schema["propertyNames"], path + ".propertyNames", /*is_name=*/true));
    }
    return CheckRequired(schema, path);
  }

  static absl::Status CheckRequired(const Json& schema, const std::string& path) {
    if (!schema.Has("required")) return absl::OkStatus();
    const Json required = schema["required"];
    if (!required.is_array()) return InvalidArgument("{}.required must be an array", path);
    const bool closed = schema["additionalProperties"].as_bool() == false;
    for (size_t i = 0; i < required.size(); ++i) {
      const auto name = required.at(i).as_string();
      if (!name) return InvalidArgument("{}.required[{}] must be a string", path, i);
      if (closed && !schema["properties"].Has(*name) && !schema.Has("patternProperties")) {
        return InvalidArgument(
            "{}.required[{}]='{}' is no property, and additionalProperties=false", path, i, *name);
      }
    }
    return absl::OkStatus();
  }

  const Json root_;
  const GrammarLimits& limits_;
};

absl::StatusOr<Json> ParseBounded(std::string_view field, std::string_view text,
                                  const GrammarLimits& limits) {
  auto json =
      Json::Parse(text, {.max_bytes = limits.max_text_bytes, .max_depth = limits.max_depth});
  if (!json.ok()) return Annotate(json.status(), field);
  return *std::move(json);
}

// Schemas within a structural tag, wherever they stand.
absl::Status CheckTagSchemas(const Json& json, const std::string& path,
                             const GrammarLimits& limits) {
  absl::Status status;
  if (json.is_array()) {
    for (size_t i = 0; i < json.size() && status.ok(); ++i) {
      status = CheckTagSchemas(json.at(i), fmt::format("{}[{}]", path, i), limits);
    }
    return status;
  }
  if (!json.is_object()) return status;
  json.ForEach([&](std::string_view key, const Json& member) {
    if (!status.ok()) return;
    const std::string at = fmt::format("{}.{}", path, key);
    if ((key == "json_schema" || key == "schema") && (member.is_object() || member.is_bool())) {
      status = SchemaChecker(member, limits).Check(member, at);
    } else if (key == "pattern" && member.is_string()) {
      status = CheckRegex(at, *member.as_string(), limits);
    } else if (key == "grammar" && member.is_string()) {
      status = CheckNesting(at, *member.as_string(), /*ebnf=*/true, limits);
    } else {
      status = CheckTagSchemas(member, at, limits);
    }
  });
  return status;
}

}  // namespace

absl::Status CheckJsonSchema(std::string_view field, std::string_view schema,
                             const GrammarLimits& limits) {
  RETURN_IF_ERROR(CheckSize(field, schema.size(), limits.max_text_bytes));
  ASSIGN_OR_RETURN(const Json json, ParseBounded(field, schema, limits));
  return SchemaChecker(json, limits).Check(json, std::string(field));
}

absl::Status CheckGrammarSpec(const GrammarSpec& spec, const GrammarLimits& limits) {
  constexpr int32_t kMaxWhitespace = 1024;
  if (spec.max_whitespace < 1 || spec.max_whitespace > kMaxWhitespace) {
    return InvalidArgument("max_whitespace={} must be in [1, {}]", spec.max_whitespace,
                           kMaxWhitespace);
  }
  if (spec.indent && (*spec.indent < 0 || *spec.indent > kMaxWhitespace)) {
    return InvalidArgument("indent={} must be in [0, {}]", *spec.indent, kMaxWhitespace);
  }
  switch (spec.kind) {
    case GrammarSpec::Kind::kJsonObject:
      return absl::OkStatus();
    case GrammarSpec::Kind::kJsonSchema:
      return CheckJsonSchema("json_schema", spec.text, limits);
    case GrammarSpec::Kind::kRegex:
      return CheckRegex("regex", spec.text, limits);
    case GrammarSpec::Kind::kEbnf:
      if (spec.text.empty()) return InvalidArgument("grammar must not be empty");
      RETURN_IF_ERROR(CheckSize("grammar", spec.text.size(), limits.max_text_bytes));
      return CheckNesting("grammar", spec.text, /*ebnf=*/true, limits);
    case GrammarSpec::Kind::kChoice: {
      if (spec.choices.empty()) return InvalidArgument("choice must have at least one entry");
      if (spec.choices.size() > static_cast<size_t>(limits.max_choices)) {
        return InvalidArgument("choice has {} entries, limit is {}", spec.choices.size(),
                               limits.max_choices);
      }
      size_t bytes = 0;
      for (size_t i = 0; i < spec.choices.size(); ++i) {
        if (spec.choices[i].empty()) return InvalidArgument("choice[{}] must not be empty", i);
        bytes += spec.choices[i].size();
      }
      return CheckSize("choice", bytes, limits.max_choice_bytes);
    }
    case GrammarSpec::Kind::kStructuralTag: {
      RETURN_IF_ERROR(CheckSize("structural_tag", spec.text.size(), limits.max_text_bytes));
      ASSIGN_OR_RETURN(const Json json, ParseBounded("structural_tag", spec.text, limits));
      return CheckTagSchemas(json, "structural_tag", limits);
    }
  }
  return InvalidArgument("kind={} is unknown", static_cast<int>(spec.kind));
}

}  // namespace quire
