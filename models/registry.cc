#include "models/registry.h"

namespace quire {

absl::StatusOr<ModelConfig> Gemma3FromJson(const JsonFields& json);
absl::StatusOr<ModelConfig> Gemma3FromGguf(const GgufFields& fields);
TensorNames Gemma3TensorNames(bool gguf);
absl::StatusOr<ModelConfig> LlamaFromJson(const JsonFields& config);
absl::StatusOr<ModelConfig> LlamaFromGguf(const GgufFields& fields);
TensorNames LlamaTensorNames(bool gguf);
absl::StatusOr<ModelConfig> MistralFromJson(const JsonFields& config);

std::span<const Architecture> Architectures() {
  static constexpr Architecture kRows[] = {
      {"LlamaForCausalLM", "llama", LlamaFromJson, LlamaFromGguf, LlamaTensorNames},
      {"MistralForCausalLM", "", MistralFromJson, nullptr, LlamaTensorNames},
      {"Gemma3ForCausalLM", "gemma3", Gemma3FromJson, Gemma3FromGguf, Gemma3TensorNames},
  };
  return kRows;
}

absl::StatusOr<const Architecture*> FindArchitecture(std::string_view name) {
  std::string known;
  for (const Architecture& a : Architectures()) {
    if (!name.empty() && (name == a.hf_name || name == a.gguf_name)) return &a;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", a.hf_name);
    if (!a.gguf_name.empty()) known += fmt::format(" ({} in GGUF)", a.gguf_name);
  }
  return Error(absl::StatusCode::kUnimplemented, "architecture=\"{}\" is not known; known: {}",
               Printable(name), known);
}

}  // namespace quire
