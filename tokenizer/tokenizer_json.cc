// tokenizer/tokenizer_json.cc -- a Tokenizer from tokenizer.json and tokenizer_config.json.
// Source: the file format of PyPI's `tokenizers`, versions up to 0.23.
#include <filesystem>

#include "base/mapped_file.h"
#include "tokenizer/tokenizer_builder.h"

namespace quire {
namespace {

constexpr size_t kMaxJsonBytes = size_t{256} << 20;
constexpr size_t kMaxTemplateBytes = size_t{16} << 20;

absl::StatusOr<bool> FlagOr(const Json& object, std::string_view name, bool fallback) {
  const Json value = object[name];
  if (value.is_null()) return fallback;
  if (const auto b = value.as_bool()) return *b;
  return InvalidArgument("{}={} must be true or false", name, value.Dump());
}

absl::Status LoadVocabulary(const Json& model, TokenizerBuilder& builder) {
  const Json vocab = model["vocab"];
  if (!vocab.is_object()) return InvalidArgument("model.vocab must be an object of token to id");
  absl::Status status;
  vocab.ForEach([&](std::string_view text, const Json& id) {
    if (!status.ok()) return;
    const auto value = id.is_integer() ? id.as_int() : std::nullopt;
    status =
        value ? builder.vocabulary().Add(text, *value)
              : InvalidArgument("token '{}' has id={}, which must be an integer", text, id.Dump());
  });
  return Annotate(status, "model.vocab");
}

absl::Status LoadAddedTokens(const Json& list, TokenizerBuilder& builder) {
  if (list.is_null()) return absl::OkStatus();
  if (!list.is_array()) return InvalidArgument("added_tokens must be an array");
  for (size_t i = 0; i < list.size(); ++i) {
    const Json entry = list.at(i);
    const auto content = entry["content"].as_string();
    const auto id = entry["id"].is_integer() ? entry["id"].as_int() : std::nullopt;
    if (!content || !id) {
      return InvalidArgument("added_tokens[{}] must have a content and an integer id", i);
    }
    if (*id < 0 || *id > Vocabulary::kMaxTokenId) {
      return InvalidArgument("added_tokens[{}].id={} must be in [0, {}]", i, *id,
                             Vocabulary::kMaxTokenId);
    }
    if (content->empty()) continue;
    AddedToken token{.id = static_cast<TokenId>(*id), .content = std::string(*content)};
    ASSIGN_OR_RETURN(token.special, FlagOr(entry, "special", false));
    ASSIGN_OR_RETURN(token.single_word, FlagOr(entry, "single_word", false));
    ASSIGN_OR_RETURN(token.lstrip, FlagOr(entry, "lstrip", false));
    ASSIGN_OR_RETURN(token.rstrip, FlagOr(entry, "rstrip", false));
    ASSIGN_OR_RETURN(token.normalized, FlagOr(entry, "normalized", !token.special));
    const absl::Status status = builder.AddToken(token);
    if (!status.ok()) return Annotate(status, fmt::format("added_tokens[{}]", i));
  }
  return absl::OkStatus();
}

using MergeList = std::vector<std::pair<std::string_view, std::string_view>>;

// "a b" (a space cannot occur within a part) or ["a", "b"]. `owner` keeps the texts alive.
absl::StatusOr<MergeList> ReadMerges(const Json& merges) {
  if (!merges.is_array()) return InvalidArgument("model.merges must be an array");
  MergeList list;
  list.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const Json entry = merges.at(i);
    if (const auto line = entry.as_string()) {
      const size_t space = line->find(' ');
      if (space == std::string_view::npos || line->find(' ', space + 1) != std::string_view::npos) {
        return InvalidArgument("model.merges[{}]='{}' must be two parts with one space", i, *line);
      }
      list.emplace_back(line->substr(0, space), line->substr(space + 1));
      continue;
    }
    const auto left = entry.at(0).as_string();
    const auto right = entry.at(1).as_string();
    if (entry.size() != 2 || !left || !right) {
      return InvalidArgument("model.merges[{}] must be \"left right\" or [left, right]", i);
    }
    list.emplace_back(*left, *right);
  }
  return list;
}

absl::Status LoadBpe(const Json& model, TokenizerBuilder& builder) {
  for (const std::string_view name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model[name].is_null() && model[name].as_string() != std::string_view()) {
      return InvalidArgument("model.{}={} is not supported", name, model[name].Dump());
    }
  }
  if (model["dropout"].as_double().value_or(0.0) != 0.0) {
    return InvalidArgument("model.dropout={} is not supported; ids would be random",
                           model["dropout"].Dump());
  }
  BpeOptions options;
  ASSIGN_OR_RETURN(options.ignore_merges, FlagOr(model, "ignore_merges", false));
  ASSIGN_OR_RETURN(options.byte_fallback, FlagOr(model, "byte_fallback", false));
  ASSIGN_OR_RETURN(options.fuse_unk, FlagOr(model, "fuse_unk", false));
  if (const auto unk = model["unk_token"].as_string()) {
    options.unk = builder.vocabulary().Find(*unk);
    if (!options.unk) return InvalidArgument("model.unk_token='{}' is not in model.vocab", *unk);
  }
  ASSIGN_OR_RETURN(const MergeList merges, ReadMerges(model["merges"]));
  return Annotate(builder.SetMerges(merges, options), "model");
}

// Ids of a template's special token, each of which must be a token.
absl::StatusOr<std::vector<TokenId>> TemplateIds(const Json& tokens, const Json& piece,
                                                 const Vocabulary& vocabulary) {
  const std::string_view name = piece["SpecialToken"]["id"].as_string().value_or("");
  const Json ids = tokens[name]["ids"];
  std::vector<TokenId> out;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = ids.at(i).as_int();
    if (!id || *id < 0 || *id >= vocabulary.size() ||
        !vocabulary.Contains(static_cast<TokenId>(*id))) {
      return InvalidArgument("post_processor.special_tokens['{}'].ids[{}]={} is not a token", name,
                             i, ids.at(i).Dump());
    }
    out.push_back(static_cast<TokenId>(*id));
  }
  if (out.empty()) return InvalidArgument("post_processor uses '{}', which has no ids", name);
  return out;
}

absl::Status LoadTemplate(const Json& spec, TokenizerBuilder& builder) {
  const Json single = spec["single"];
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
  int num_sequences = 0;
  for (size_t i = 0; i < single.size(); ++i) {
    const Json piece = single.at(i);
    if (piece.Has("Sequence")) {
      ++num_sequences;
      continue;
    }
    ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                     TemplateIds(spec["special_tokens"], piece, builder.vocabulary()));
    std::vector<TokenId>& side = num_sequences == 0 ? prefix : suffix;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (num_sequences != 1) {
    return InvalidArgument("post_processor.single={} must have its text exactly once",
                           single.Dump());
  }
  // A later processor wraps what the earlier ones made.
  builder.prefix_ids().insert(builder.prefix_ids().begin(), prefix.begin(), prefix.end());
  builder.suffix_ids().insert(builder.suffix_ids().end(), suffix.begin(), suffix.end());
  return absl::OkStatus();
}

absl::Status LoadPostProcessor(const Json& spec, TokenizerBuilder& builder) {
  if (spec.is_null()) return absl::OkStatus();
  const std::string_view type = spec["type"].as_string().value_or("");
  if (type == "ByteLevel") return absl::OkStatus();  // it moves offsets, not ids
  if (type == "TemplateProcessing") return LoadTemplate(spec, builder);
  if (type == "Sequence") {
    const Json parts = spec["processors"];
    if (!parts.is_array()) return InvalidArgument("post_processor.processors must be an array");
    for (size_t i = 0; i < parts.size(); ++i) {
      RETURN_IF_ERROR(LoadPostProcessor(parts.at(i), builder));
    }
    return absl::OkStatus();
  }
  return InvalidArgument(
      "unsupported post-processor {}; supported are Sequence, ByteLevel and TemplateProcessing",
      type.empty() ? spec.Dump() : std::string(type));
}

// A special token of a config file: its text, or an object with a content.
std::optional<std::string> SpecialTokenText(const Json& value) {
  auto text = value.as_string();
  if (!text) text = value["content"].as_string();
  if (!text) return std::nullopt;
  return std::string(*text);
}

void LoadSpecialTokens(const Json& config, TokenizerBuilder& builder) {
  for (const std::string_view name : kSpecialTokenNames) {
    if (const auto text = SpecialTokenText(config[name])) builder.SetSpecialToken(name, *text);
  }
}

// A template, or a list of {"name", "template"} of which "default" is the usual one.
absl::Status LoadChatTemplates(const Json& spec, TokenizerBuilder& builder) {
  if (spec.is_null()) return absl::OkStatus();
  if (const auto text = spec.as_string()) {
    builder.chat_template() = std::string(*text);
    return absl::OkStatus();
  }
  if (!spec.is_array()) return InvalidArgument("chat_template must be a string or a list");
  for (size_t i = 0; i < spec.size(); ++i) {
    const auto name = spec.at(i)["name"].as_string();
    const auto text = spec.at(i)["template"].as_string();
    if (!name || !text) {
      return InvalidArgument("chat_template[{}] must have a name and a template", i);
    }
    builder.named_chat_templates().emplace_back(std::string(*name), std::string(*text));
    if (*name == "default") builder.chat_template() = std::string(*text);
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenizerBuilder> Load(std::string_view tokenizer_json) {
  const JsonLimits limits{.max_bytes = kMaxJsonBytes};
  ASSIGN_OR_RETURN(const Json root, Json::Parse(tokenizer_json, limits));
  if (!root.is_object()) return InvalidArgument("the file must be a JSON object");
  const Json model = root["model"];
  // Files of long ago name no type; a BPE model is known by its merges.
  const std::string_view type =
      model["type"].as_string().value_or(model.Has("merges") ? "BPE" : "");
  if (type != "BPE") {
    return InvalidArgument("unsupported model {}; supported is BPE",
                           type.empty() ? "without a type" : std::string(type));
  }
  TokenizerBuilder builder;
  RETURN_IF_ERROR(LoadVocabulary(model, builder));
  RETURN_IF_ERROR(LoadBpe(model, builder));
  ASSIGN_OR_RETURN(builder.normalizer(), Normalizer::FromJson(root["normalizer"]));
  ASSIGN_OR_RETURN(builder.pre_tokenizer(), PreTokenizer::FromJson(root["pre_tokenizer"]));
  ASSIGN_OR_RETURN(builder.decoder(), DecoderSpec::FromJson(root["decoder"]));
  RETURN_IF_ERROR(LoadAddedTokens(root["added_tokens"], builder));
  RETURN_IF_ERROR(LoadPostProcessor(root["post_processor"], builder));
  return builder;
}

absl::Status LoadConfig(std::string_view text, TokenizerBuilder& builder) {
  ASSIGN_OR_RETURN(const Json config, Json::Parse(text, JsonLimits{.max_bytes = kMaxJsonBytes}));
  LoadSpecialTokens(config, builder);
  return LoadChatTemplates(config["chat_template"], builder);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(
    std::string_view tokenizer_json, std::string_view tokenizer_config_json) {
  ASSIGN_OR_RETURN(TokenizerBuilder builder, Load(tokenizer_json));
  if (!tokenizer_config_json.empty()) {
    const absl::Status status = LoadConfig(tokenizer_config_json, builder);
    if (!status.ok()) return Annotate(status, "tokenizer_config");
  }
  return builder.Finish();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromDirectory(const std::string& directory) {
  const std::filesystem::path base(directory);
  const auto exists = [&](const char* name) {
    std::error_code error;
    return std::filesystem::exists(base / name, error);
  };
  const std::string main_path = (base / "tokenizer.json").string();
  ASSIGN_OR_RETURN(const std::string main_text, ReadTextFile(main_path, kMaxJsonBytes));
  absl::StatusOr<TokenizerBuilder> builder = Load(main_text);
  if (!builder.ok()) return Annotate(builder.status(), main_path);
  // The older file first, so that tokenizer_config.json has the last word.
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    if (!exists(name)) continue;
    const std::string path = (base / name).string();
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxJsonBytes));
    const absl::Status status = LoadConfig(text, *builder);
    if (!status.ok()) return Annotate(status, path);
  }
  if (exists("chat_template.jinja")) {
    ASSIGN_OR_RETURN(builder->chat_template(),
                     ReadTextFile((base / "chat_template.jinja").string(), kMaxTemplateBytes));
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = builder->Finish();
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), main_path);
  return tokenizer;
}

}  // namespace quire
