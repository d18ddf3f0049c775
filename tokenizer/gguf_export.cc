// tokenizer/gguf_export.cc -- see gguf_export.h. The format is that of `tokenizers` 0.20 and later.
#include "tokenizer/gguf_export.h"

#include <optional>

#include "base/json.h"
#include "tokenizer/gguf_pre.h"

namespace quire {
namespace {

// Values of tokenizer.ggml.token_type.
constexpr int32_t kTypeUnknown = 2;
constexpr int32_t kTypeControl = 3;
constexpr int32_t kTypeUserDefined = 4;

// Ids of the tokens that have a name, where the vocabulary has them.
struct SpecialIds {
  std::optional<size_t> bos, eos, unk, pad;
  bool add_bos = false;
  bool add_eos = false;
};

std::optional<size_t> InVocabulary(const std::optional<int64_t>& id, const GgufVocabulary& gguf) {
  if (!id || *id < 0 || static_cast<uint64_t>(*id) >= gguf.tokens.size()) return std::nullopt;
  return static_cast<size_t>(*id);
}

SpecialIds FindSpecialIds(const GgufVocabulary& gguf, const GgufPre& pre) {
  SpecialIds ids;
  ids.bos = InVocabulary(gguf.bos_token_id, gguf);
  ids.eos = InVocabulary(gguf.eos_token_id, gguf);
  ids.unk = InVocabulary(gguf.unknown_token_id, gguf);
  ids.pad = InVocabulary(gguf.padding_token_id, gguf);
  ids.add_bos = ids.bos && gguf.add_bos_token.value_or(pre.add_bos);
  ids.add_eos = ids.eos && gguf.add_eos_token.value_or(false);
  return ids;
}

void Member(JsonWriter& w, std::string_view key, std::string_view value) {
  w.Key(key);
  w.String(value);
}
void Member(JsonWriter& w, std::string_view key, const char* value) {
  Member(w, key, std::string_view(value));
}
void Member(JsonWriter& w, std::string_view key, bool value) {
  w.Key(key);
  w.Bool(value);
}
void NullMember(JsonWriter& w, std::string_view key) {
  w.Key(key);
  w.Null();
}

void WriteByteLevel(JsonWriter& w, bool add_prefix_space, bool use_regex) {
  w.BeginObject();
  Member(w, "type", "ByteLevel");
  Member(w, "add_prefix_space", add_prefix_space);
  Member(w, "trim_offsets", true);
  Member(w, "use_regex", use_regex);
  w.EndObject();
}

void WriteAddedTokens(JsonWriter& w, const GgufVocabulary& gguf) {
  w.Key("added_tokens");
  w.BeginArray();
  for (size_t i = 0; i < gguf.token_types.size(); ++i) {
    const int32_t type = gguf.token_types[i];
    const bool special = type == kTypeControl || type == kTypeUnknown;
    if (gguf.tokens[i].empty() || !(special || type == kTypeUserDefined)) continue;
    w.BeginObject();
    w.Key("id");
    w.Uint(i);
    Member(w, "content", gguf.tokens[i]);
    for (const char* rule : {"single_word", "lstrip", "rstrip", "normalized"}) {
      Member(w, rule, false);
    }
    Member(w, "special", special);
    w.EndObject();
  }
  w.EndArray();
}

void WritePreTokenizer(JsonWriter& w, const GgufPre& pre) {
  w.Key("pre_tokenizer");
  w.BeginObject();
  Member(w, "type", "Sequence");
  w.Key("pretokenizers");
  w.BeginArray();
  for (const std::string_view pattern : pre.patterns) {
    w.BeginObject();
    Member(w, "type", "Split");
    w.Key("pattern");
    w.BeginObject();
    Member(w, "Regex", pattern);
    w.EndObject();
    Member(w, "behavior", "Isolated");
    Member(w, "invert", false);
    w.EndObject();
  }
  WriteByteLevel(w, /*add_prefix_space=*/false, /*use_regex=*/false);
  w.EndArray();
  w.EndObject();
}

void WriteTemplatePart(JsonWriter& w, std::string_view kind, std::string_view id, int type_id) {
  w.BeginObject();
  w.Key(kind);
  w.BeginObject();
  Member(w, "id", id);
  w.Key("type_id");
  w.Int(type_id);
  w.EndObject();
  w.EndObject();
}

// What is put around the text.
void WritePostProcessor(JsonWriter& w, const GgufVocabulary& gguf, const SpecialIds& ids) {
  w.Key("post_processor");
  if (!ids.add_bos && !ids.add_eos) return w.Null();
  const auto write_text = [&](std::string_view id, int type_id) {
    if (ids.add_bos) WriteTemplatePart(w, "SpecialToken", gguf.tokens[*ids.bos], type_id);
    WriteTemplatePart(w, "Sequence", id, type_id);
    if (ids.add_eos) WriteTemplatePart(w, "SpecialToken", gguf.tokens[*ids.eos], type_id);
  };
  const auto write_token = [&](size_t id) {
    const std::string& text = gguf.tokens[id];
    w.Key(text);
    w.BeginObject();
    Member(w, "id", text);
    w.Key("ids");
    w.BeginArray();
    w.Uint(id);
    w.EndArray();
    w.Key("tokens");
    w.BeginArray();
    w.String(text);
    w.EndArray();
    w.EndObject();
  };
  w.BeginObject();
  Member(w, "type", "TemplateProcessing");
  w.Key("single");
  w.BeginArray();
  write_text("A", 0);
  w.EndArray();
  w.Key("pair");
  w.BeginArray();
  write_text("A", 0);
  write_text("B", 1);
  w.EndArray();
  w.Key("special_tokens");
  w.BeginObject();
  if (ids.add_bos) write_token(*ids.bos);
  if (ids.add_eos && !(ids.add_bos && ids.bos == ids.eos)) write_token(*ids.eos);
  w.EndObject();
  w.EndObject();
}

void WriteModel(JsonWriter& w, const GgufVocabulary& gguf, const GgufPre& pre) {
  w.Key("model");
  w.BeginObject();
  Member(w, "type", "BPE");
  for (const char* key :
       {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    NullMember(w, key);
  }
  Member(w, "fuse_unk", false);
  Member(w, "byte_fallback", false);
  Member(w, "ignore_merges", pre.ignore_merges);
  w.Key("vocab");
  w.BeginObject();
  for (size_t i = 0; i < gguf.tokens.size(); ++i) {
    w.Key(gguf.tokens[i]);
    w.Uint(i);
  }
  w.EndObject();
  w.Key("merges");
  w.BeginArray();
  for (const std::string_view line : gguf.merges) {
    // As Tokenizer::FromGguf splits them.
    const size_t space = line.find(' ', 1);
    w.BeginArray();
    w.String(line.substr(0, space));
    w.String(line.substr(space + 1));
    w.EndArray();
  }
  w.EndArray();
  w.EndObject();
}

std::string TokenizerJson(const GgufVocabulary& gguf, const GgufPre& pre, const SpecialIds& ids) {
  JsonWriter w;
  w.BeginObject();
  Member(w, "version", "1.0");
  NullMember(w, "truncation");
  NullMember(w, "padding");
  WriteAddedTokens(w, gguf);
  w.Key("normalizer");
  if (pre.nfc) {
    w.BeginObject();
    Member(w, "type", "NFC");
    w.EndObject();
  } else {
    w.Null();
  }
  WritePreTokenizer(w, pre);
  WritePostProcessor(w, gguf, ids);
  w.Key("decoder");
  WriteByteLevel(w, /*add_prefix_space=*/true, /*use_regex=*/true);
  WriteModel(w, gguf, pre);
  w.EndObject();
  return w.text();
}

void WriteSpecialTokens(JsonWriter& w, const GgufVocabulary& gguf, const SpecialIds& ids) {
  if (ids.bos) Member(w, "bos_token", gguf.tokens[*ids.bos]);
  if (ids.eos) Member(w, "eos_token", gguf.tokens[*ids.eos]);
  if (ids.unk) Member(w, "unk_token", gguf.tokens[*ids.unk]);
  if (ids.pad) Member(w, "pad_token", gguf.tokens[*ids.pad]);
}

}  // namespace

absl::StatusOr<std::vector<TextFile>> ExportGguf(const GgufVocabulary& gguf,
                                                 std::string_view chat_template,
                                                 int32_t max_model_len) {
  ASSIGN_OR_RETURN(const GgufPre* pre, FindGgufPre(gguf.pre));
  for (size_t i = 0; i < gguf.merges.size(); ++i) {
    if (gguf.merges[i].find(' ', 1) != std::string::npos) continue;
    return InvalidArgument("tokenizer.ggml.merges[{}] must be two parts with a space", i);
  }
  const SpecialIds ids = FindSpecialIds(gguf, *pre);
  JsonWriter config;
  config.BeginObject();
  Member(config, "tokenizer_class", "PreTrainedTokenizerFast");
  Member(config, "add_bos_token", ids.add_bos);
  Member(config, "add_eos_token", ids.add_eos);
  WriteSpecialTokens(config, gguf, ids);
  if (!chat_template.empty()) Member(config, "chat_template", chat_template);
  config.Key("model_max_length");
  config.Int(max_model_len);
  Member(config, "clean_up_tokenization_spaces", false);
  config.EndObject();
  JsonWriter map;
  map.BeginObject();
  WriteSpecialTokens(map, gguf, ids);
  map.EndObject();
  return std::vector<TextFile>{{"tokenizer.json", TokenizerJson(gguf, *pre, ids)},
                               {"tokenizer_config.json", config.text()},
                               {"special_tokens_map.json", map.text()}};
}

}  // namespace quire
