// tokenizer/gguf_pre.cc -- see gguf_pre.h.
#include "tokenizer/gguf_pre.h"

#include <string>

#include "tokenizer/split_pattern.h"

namespace quire {
namespace {

const std::vector<GgufPre>& Table() {
  static const auto* const table = [] {
    const auto text = [](KnownPattern pattern) { return PatternText(pattern); };
    const std::vector<std::string_view> gpt2 = {text(KnownPattern::kGpt2)};
    const std::vector<std::string_view> smollm = {text(KnownPattern::kNumber),
                                                  text(KnownPattern::kGpt2)};
    const std::vector<std::string_view> llama3 = {text(KnownPattern::kLlama3)};
    const std::vector<std::string_view> qwen2 = {text(KnownPattern::kQwen2)};
    const std::vector<std::string_view> deepseek_v3 = {text(KnownPattern::kNumbersOf3),
                                                       text(KnownPattern::kDeepseekCjk),
                                                       text(KnownPattern::kDeepseekWords)};
    const std::vector<std::string_view> o200k = {text(KnownPattern::kO200k)};
    // What llama.cpp itself does for this name, as no Hugging Face file has it.
    const std::vector<std::string_view> other = {
        R"([\p{P}\$\+<=>\^~\|]+)",
        R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))", R"(\p{N}+)",
        "[0-9][0-9][0-9]"};
    return new std::vector<GgufPre>{
        {"gpt-2", gpt2},
        {"gpt2", gpt2},
        {"default", other},
        {"smollm", smollm},
        {"starcoder", smollm},
        {"llama-bpe", llama3, true, true},
        {"llama3", llama3, true, true},
        {"llama-v3", llama3, true, true},
        {"qwen2", qwen2, false, false, true},
        {"deepseek-r1-qwen", qwen2, false, false, true},
        {"deepseek-v3", deepseek_v3},
        {"gpt-4o", o200k},
        {"o200k", o200k},
        {"llama4", o200k},
    };
  }();
  return *table;
}

}  // namespace

absl::StatusOr<const GgufPre*> FindGgufPre(std::string_view name) {
  std::string known;
  for (const GgufPre& row : Table()) {
    if (row.name == name) return &row;
    known += known.empty() ? "" : ", ";
    known += row.name;
  }
  if (name.empty()) {
    return InvalidArgument("tokenizer.ggml.pre is missing; convert the model anew. Known: {}",
                           known);
  }
  return InvalidArgument("tokenizer.ggml.pre='{}' is not supported; known are {}", name, known);
}

}  // namespace quire
