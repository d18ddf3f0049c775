// server/load_model.cc -- see load_model.h.
#include "server/load_model.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "models/weights/gguf.h"
#include "server/scheduling.h"
#include "server/tokenizer_files.h"
#include "tokenizer/chat_template.h"

namespace quire {
namespace {

// Absent keys are fine: the tokenizer names what it can't do without. A key of the wrong type
// isn't.
template <typename T, typename Value>
absl::Status Take(const absl::StatusOr<T>& found, Value& out) {
  if (found.ok()) {
    out = *found;
    return absl::OkStatus();
  }
  return found.status().code() == absl::StatusCode::kNotFound ? absl::OkStatus() : found.status();
}

absl::StatusOr<GgufVocabulary> ReadVocabulary(const GgufFile& file) {
  const std::string prefix = "tokenizer.ggml.";
  GgufVocabulary v;
  RETURN_IF_ERROR(Take(file.GetString(prefix + "model"), v.model));
  RETURN_IF_ERROR(Take(file.GetString(prefix + "pre"), v.pre));
  RETURN_IF_ERROR(Take(file.GetStringArray(prefix + "tokens"), v.tokens));
  RETURN_IF_ERROR(Take(file.GetStringArray(prefix + "merges"), v.merges));
  std::vector<int64_t> types;
  RETURN_IF_ERROR(Take(file.GetIntArray(prefix + "token_type"), types));
  v.token_types.reserve(types.size());
  for (const int64_t type : types) v.token_types.push_back(static_cast<int32_t>(type));
  std::vector<double> scores;
  RETURN_IF_ERROR(Take(file.GetFloatArray(prefix + "scores"), scores));
  v.scores.reserve(scores.size());
  for (const double score : scores) v.scores.push_back(static_cast<float>(score));
  RETURN_IF_ERROR(Take(file.GetInt(prefix + "bos_token_id"), v.bos_token_id));
  RETURN_IF_ERROR(Take(file.GetInt(prefix + "eos_token_id"), v.eos_token_id));
  RETURN_IF_ERROR(Take(file.GetInt(prefix + "eot_token_id"), v.eot_token_id));
  RETURN_IF_ERROR(Take(file.GetInt(prefix + "unknown_token_id"), v.unknown_token_id));
  RETURN_IF_ERROR(Take(file.GetInt(prefix + "padding_token_id"), v.padding_token_id));
  RETURN_IF_ERROR(Take(file.GetBool(prefix + "add_bos_token"), v.add_bos_token));
  RETURN_IF_ERROR(Take(file.GetBool(prefix + "add_eos_token"), v.add_eos_token));
  RETURN_IF_ERROR(Take(file.GetBool(prefix + "add_space_prefix"), v.add_space_prefix));
  RETURN_IF_ERROR(Take(file.GetString("tokenizer.chat_template"), v.chat_template));
  return v;
}

// gguf: null for a directory.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(const std::string& path,
                                                               const GgufFile* gguf) {
  std::unique_ptr<Tokenizer> tokenizer;
  if (gguf != nullptr) {
    ASSIGN_OR_RETURN(const GgufVocabulary vocabulary, ReadVocabulary(*gguf));
    ASSIGN_OR_RETURN(tokenizer, Tokenizer::FromGguf(vocabulary));
  } else {
    ASSIGN_OR_RETURN(tokenizer, Tokenizer::FromDirectory(path));
  }
  return std::shared_ptr<const Tokenizer>(std::move(tokenizer));
}

// Guesses are ids, so both models must mean the same text by them. A few may differ: reserved
// tokens often have other names in a fine-tuned model.
absl::Status CheckDraftTokenizer(const std::string& path, const Tokenizer& target) {
  std::error_code error;
  std::unique_ptr<GgufFile> gguf;
  if (!std::filesystem::is_directory(path, error)) {
    ASSIGN_OR_RETURN(gguf, GgufFile::Open(path));
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> draft, LoadTokenizer(path, gguf.get()));
  const TokenId shared = std::min(draft->vocab_size(), target.vocab_size());
  TokenId differ = std::max(draft->vocab_size(), target.vocab_size()) - shared;
  TokenId first = shared;
  for (TokenId id = shared - 1; id >= 0; --id) {
    if (draft->TokenText(id) == target.TokenText(id)) continue;
    ++differ;
    first = id;
  }
  if (differ <= target.vocab_size() / 100) return absl::OkStatus();
  return InvalidArgument(
      "draft_model={} has another tokenizer: {} of {} tokens differ, the first is {}; give a model "
      "of the same family",
      path, differ, target.vocab_size(), first);
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return Error(absl::StatusCode::kNotFound, "chat_template={} is not a file", path);
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return InvalidArgument("chat_template={} can't be read", path);
  return text;
}

// The daemon serves all but chat if this fails.
absl::Status StartChatTemplate(const ServerOptions& options, ServedModel& served) {
  ChatTemplateOptions chat;
  if (options.chat_template.empty()) {
    chat.template_text = served.tokenizer->chat_template();
    if (chat.template_text.empty()) {
      return absl::FailedPreconditionError(
          "the model has no chat template; give one by --chat-template, or send text");
    }
  } else {
    ASSIGN_OR_RETURN(chat.template_text, ReadFile(options.chat_template));
  }
  served.chat_template = chat.template_text;
  chat.special_tokens = served.tokenizer->special_tokens();
  chat.python = options.python;
  ASSIGN_OR_RETURN(std::shared_ptr<ChatTemplate> started, ChatTemplate::Create(std::move(chat)));
  served.render_chat = [started = std::move(started)](const ChatPrompt& prompt) {
    return started->Render({.messages_json = prompt.messages_json,
                            .tools_json = prompt.tools_json,
                            .documents_json = prompt.documents_json,
                            .kwargs_json = prompt.kwargs_json,
                            .add_generation_prompt = prompt.add_generation_prompt,
                            .continue_final_message = prompt.continue_final_message});
  };
  return absl::OkStatus();
}

// Every id that ends an answer: the model's files and the tokenizer may each know some.
std::vector<TokenId> EndTokens(const ModelConfig& config, const Tokenizer& tokenizer) {
  std::vector<TokenId> ids = config.eos_token_ids;
  if (tokenizer.eos_id()) ids.push_back(*tokenizer.eos_id());
  if (tokenizer.eot_id()) ids.push_back(*tokenizer.eot_id());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

RuntimeOptions ToRuntimeOptions(const ServerOptions& options) {
  return {.model = options.model,
          .attention = options.attention,
          .attention_library = options.attention_library,
          .compute = options.compute,
          .quantization = options.quantization,
          .cpu_isa = options.cpu_isa,
          .num_threads = options.num_threads,
          .kv_cache_dtype = options.kv_cache_dtype,
          .block_size = options.block_size,
          .max_model_len = options.max_model_len,
          .max_num_seqs = options.max_num_seqs,
          .max_logit_rows = MaxLogitRows(options),
          .max_num_batched_tokens = options.max_num_batched_tokens,
          .host_cache_memory_bytes = options.host_cache_memory_bytes,
          .cache_directory = options.cache_directory,
          .cache_directory_bytes = options.cache_directory_bytes,
          .prefault_mib = options.prefault_mib,
          .max_pinned_share = options.max_pinned_share,
          .prefix_hash_algorithm = options.prefix_hash_algorithm,
          .max_num_blocks = options.max_num_blocks,
          .draft_model = options.draft_model,
          .draft_num_blocks = options.draft_num_blocks,
          .memory = {.memory_utilization = options.memory_utilization,
                     .kv_cache_memory_bytes = options.kv_cache_memory_bytes,
                     .num_blocks = options.num_blocks}};
}

absl::StatusOr<LoadedModel> LoadModel(const ServerOptions& options) {
  LoadedModel loaded;
  ASSIGN_OR_RETURN(loaded.runtime, ModelRuntime::Load(ToRuntimeOptions(options)));
  const ModelRuntime& runtime = *loaded.runtime;
  ServedModel& served = loaded.served;
  ASSIGN_OR_RETURN(served.tokenizer, LoadTokenizer(options.model, runtime.gguf()));
  if (served.tokenizer->vocab_size() > runtime.config().vocab_size) {
    return InvalidArgument(
        "{}: the tokenizer has {} tokens, the model only {} rows; they don't "
        "belong together",
        options.model, served.tokenizer->vocab_size(), runtime.config().vocab_size);
  }
  if (!options.draft_model.empty()) {
    RETURN_IF_ERROR(CheckDraftTokenizer(options.draft_model, *served.tokenizer));
  }
  const std::filesystem::path path(options.model);
  served.name = !options.served_model_name.empty() ? options.served_model_name
                : path.has_filename()              ? path.stem().string()
                                                   : path.parent_path().filename().string();
  served.vocab_size = runtime.config().vocab_size;
  served.max_model_len = runtime.max_model_len();
  served.default_max_tokens = options.default_max_tokens;
  served.max_message_bytes = static_cast<size_t>(options.max_message_bytes);
  served.eos_token_ids = EndTokens(runtime.config(), *served.tokenizer);
  served.no_chat = StartChatTemplate(options, served);
  std::string chat_template = served.tokenizer->chat_template();
  if (!options.chat_template.empty()) {
    ASSIGN_OR_RETURN(chat_template, ReadFile(options.chat_template));
  }
  served.tokenizer_files = [path = options.model, is_gguf = runtime.gguf() != nullptr,
                            config = runtime.config(), eos_token_ids = served.eos_token_ids,
                            max_model_len = served.max_model_len,
                            chat_template]() -> absl::StatusOr<std::vector<TextFile>> {
    if (!is_gguf) return ReadTokenizerFiles(path);
    ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
    ASSIGN_OR_RETURN(const GgufVocabulary vocabulary, ReadVocabulary(*file));
    return MakeTokenizerFiles(vocabulary, chat_template, config, eos_token_ids, max_model_len);
  };
  // A template that the operator chose and that can't be used is a mistake of the configuration.
  if (!options.chat_template.empty()) RETURN_IF_ERROR(served.no_chat);
  return loaded;
}

}  // namespace quire
