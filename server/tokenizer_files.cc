// server/tokenizer_files.cc -- see tokenizer_files.h.
#include "server/tokenizer_files.h"

#include <filesystem>

#include "base/json.h"
#include "base/mapped_file.h"

namespace quire {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;

// As gateways look for them; a model has some.
constexpr const char* kNames[] = {
    "tokenizer.json",     "tokenizer_config.json",   "config.json", "generation_config.json",
    "vocab.json",         "special_tokens_map.json", "merges.txt",  "added_tokens.json",
    "chat_template.json", "chat_template.jinja"};

void WriteIds(JsonWriter& w, const std::vector<TokenId>& ids) {
  w.Key("eos_token_id");
  w.BeginArray();
  for (const TokenId id : ids) w.Int(id);
  w.EndArray();
}

void WriteId(JsonWriter& w, std::string_view key, TokenId id) {
  if (id < 0) return;
  w.Key(key);
  w.Int(id);
}

}  // namespace

absl::StatusOr<std::vector<TextFile>> ReadTokenizerFiles(const std::string& directory) {
  std::vector<TextFile> files;
  for (const char* name : kNames) {
    const std::filesystem::path path = std::filesystem::path(directory) / name;
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) continue;
    ASSIGN_OR_RETURN(std::string text, ReadTextFile(path.string(), kMaxFileBytes));
    files.emplace_back(name, std::move(text));
  }
  if (files.empty()) {
    return Error(absl::StatusCode::kNotFound, "{} has no tokenizer files", directory);
  }
  return files;
}

absl::StatusOr<std::vector<TextFile>> MakeTokenizerFiles(const GgufVocabulary& gguf,
                                                         std::string_view chat_template,
                                                         const ModelConfig& config,
                                                         const std::vector<TokenId>& eos_token_ids,
                                                         int32_t max_model_len) {
  ASSIGN_OR_RETURN(std::vector<TextFile> files, ExportGguf(gguf, chat_template, max_model_len));
  JsonWriter model;
  model.BeginObject();
  model.Key("model_type");
  model.String(config.architecture);
  model.Key("vocab_size");
  model.Int(config.vocab_size);
  model.Key("hidden_size");
  model.Int(config.hidden_dim);
  model.Key("num_hidden_layers");
  model.Int(static_cast<int64_t>(config.layers.size()));
  model.Key("max_position_embeddings");
  model.Int(config.max_position);
  WriteIds(model, eos_token_ids);
  WriteId(model, "bos_token_id", config.bos_token_id);
  WriteId(model, "pad_token_id", config.pad_token_id);
  model.EndObject();
  files.emplace_back("config.json", model.text());
  JsonWriter generation;
  generation.BeginObject();
  WriteIds(generation, eos_token_ids);
  WriteId(generation, "bos_token_id", config.bos_token_id);
  WriteId(generation, "pad_token_id", config.pad_token_id);
  generation.EndObject();
  files.emplace_back("generation_config.json", generation.text());
  return files;
}

}  // namespace quire
