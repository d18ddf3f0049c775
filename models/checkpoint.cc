#include "models/checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "base/json.h"
#include "base/mapped_file.h"
#include "models/config_reader.h"
#include "models/registry.h"
#include "models/weights/open_weights.h"
#include "models/weights/safetensors.h"
#include "models/weights/scale_tensors.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = 16 << 20;
constexpr int32_t kMaxConfigDepth = 64;

absl::StatusOr<JsonFields> ReadConfig(const fs::path& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path.string(), kMaxConfigBytes));
  absl::StatusOr<Json> json =
      Json::Parse(text, {.max_bytes = kMaxConfigBytes, .max_depth = kMaxConfigDepth});
  if (!json.ok()) return Annotate(json.status(), path.string());
  if (!json->is_object()) return InvalidArgument("{}: must be a JSON object", path.string());
  return JsonFields(*std::move(json), path.string());
}

void AddIds(const std::vector<TokenId>& ids, std::vector<TokenId>& out) {
  for (const TokenId id : ids) {
    if (std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
  }
}

// One id; -1, which old checkpoints write for "none", counts as absent.
absl::StatusOr<TokenId> OptionalId(const JsonFields& fields, std::string_view key,
                                   int64_t vocab_size) {
  ASSIGN_OR_RETURN(const int64_t id, fields.Int(key, -1, -1, vocab_size - 1));
  return static_cast<TokenId>(id);
}

// End-of-sequence ids are the union of both files: whichever names an id, it ends a sequence.
absl::Status ReadTokenIds(const JsonFields& json, const fs::path& dir, ModelConfig& config) {
  ASSIGN_OR_RETURN(const auto eos, json.TokenIds("eos_token_id", config.vocab_size));
  AddIds(eos, config.eos_token_ids);
  ASSIGN_OR_RETURN(config.bos_token_id, OptionalId(json, "bos_token_id", config.vocab_size));
  ASSIGN_OR_RETURN(config.pad_token_id, OptionalId(json, "pad_token_id", config.vocab_size));
  const fs::path generation_path = dir / "generation_config.json";
  std::error_code error;
  if (!fs::exists(generation_path, error)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const JsonFields generation, ReadConfig(generation_path));
  ASSIGN_OR_RETURN(const auto more, generation.TokenIds("eos_token_id", config.vocab_size));
  AddIds(more, config.eos_token_ids);
  config.default_sampling_json = generation.json().Dump();
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ConfigFromDirectory(const fs::path& dir) {
  ASSIGN_OR_RETURN(const JsonFields json, ReadConfig(dir / "config.json"));
  const std::optional<std::string_view> name = json.json()["architectures"].at(0).as_string();
  if (!name) return json.Refuse("architectures", "must be a list that names the architecture");
  const absl::StatusOr<const Architecture*> architecture = FindArchitecture(*name);
  if (!architecture.ok()) return Annotate(architecture.status(), json.file());
  if (json.Has("quantization_config")) {
    return json.Refuse("quantization_config", "is not supported; use a GGUF file instead",
                       absl::StatusCode::kUnimplemented);
  }
  ASSIGN_OR_RETURN(ModelConfig config, (*architecture)->from_json(json));
  config.architecture = std::string((*architecture)->hf_name);
  const fs::path plain = fs::path(dir).lexically_normal();
  config.name = (plain.has_filename() ? plain : plain.parent_path()).filename().string();
  RETURN_IF_ERROR(ReadTokenIds(json, dir, config));
  return config;
}

absl::StatusOr<TokenId> GgufId(const GgufFile& file, const std::string& key, int64_t vocab_size) {
  if (!file.Has(key)) return TokenId{-1};
  ASSIGN_OR_RETURN(const int64_t id, file.GetInt(key));
  if (id < 0 || id >= vocab_size) {
    return InvalidArgument("{}: {}={} must be in [0, {}) (rows of the embedding)", file.file_name(),
                           key, id, vocab_size);
  }
  return static_cast<TokenId>(id);
}

absl::StatusOr<ModelConfig> ConfigFromGguf(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::string name, file.GetString("general.architecture"));
  const absl::StatusOr<const Architecture*> architecture = FindArchitecture(name);
  if (!architecture.ok()) {
    return Annotate(architecture.status(), file.file_name() + ": general.architecture");
  }
  if ((*architecture)->from_gguf == nullptr) {
    return Error(absl::StatusCode::kUnimplemented,
                 "{}: general.architecture=\"{}\" is read from safetensors only", file.file_name(),
                 name);
  }
  ASSIGN_OR_RETURN(ModelConfig config, (*architecture)->from_gguf(GgufFields(file, name)));
  config.architecture = std::string((*architecture)->hf_name);
  config.gguf_tensor_names = true;
  config.name = file.file_name();
  if (file.Has("general.name")) {
    ASSIGN_OR_RETURN(config.name, file.GetString("general.name"));
  }
  const int64_t vocab = config.vocab_size;
  ASSIGN_OR_RETURN(config.bos_token_id, GgufId(file, "tokenizer.ggml.bos_token_id", vocab));
  ASSIGN_OR_RETURN(config.pad_token_id, GgufId(file, "tokenizer.ggml.padding_token_id", vocab));
  // The end of the text, of a turn, of a message: each ends a sequence.
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    ASSIGN_OR_RETURN(const TokenId id, GgufId(file, key, vocab));
    if (id >= 0) AddIds({id}, config.eos_token_ids);
  }
  const uint64_t num_tokens = file.ArraySize("tokenizer.ggml.tokens");
  if (num_tokens > static_cast<uint64_t>(vocab)) {
    return InvalidArgument(
        "{}: tokenizer.ggml.tokens has {} entries, but the embedding only {} rows",
        file.file_name(), num_tokens, vocab);
  }
  return config;
}

}  // namespace

absl::StatusOr<LoadedCheckpoint> OpenCheckpoint(const std::string& path) {
  LoadedCheckpoint out;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    ASSIGN_OR_RETURN(out.config, ConfigFromDirectory(path));
    ASSIGN_OR_RETURN(auto weights, SafetensorsSource::OpenDirectory(path));
    if (!weights->ignored_files().empty()) {
      std::string names;
      for (const std::string& name : weights->ignored_files()) {
        names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
      }
      out.notes.push_back(
          fmt::format("ignored, as {} does not name them: {}", kSafetensorsIndex, names));
    }
    const std::vector<std::string> tensors = weights->Names();
    const auto scales = std::count_if(tensors.begin(), tensors.end(), IsCacheScale);
    if (scales > 0) {
      out.notes.push_back(fmt::format(
          "{} scales for a quantised cache (k_scale and the like) are not used: an int8 "
          "cache has scales of its own for each token",
          scales));
    }
    out.weights = std::move(weights);
    return out;
  }
  ASSIGN_OR_RETURN(out.weights, OpenWeights(path));
  out.gguf = dynamic_cast<const GgufFile*>(out.weights.get());
  if (out.gguf == nullptr) {
    return InvalidArgument("model={}: give its directory, which has config.json too", path);
  }
  ASSIGN_OR_RETURN(out.config, ConfigFromGguf(*out.gguf));
  return out;
}

}  // namespace quire
