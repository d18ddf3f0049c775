#include "models/plan/shape_readers.h"

#include <algorithm>
#include <set>

namespace quire {

std::span<const ShapeReader> ShapeReaders() {
  static constexpr ShapeReader kRows[] = {
      {"LlamaForCausalLM", "llama", LlamaShape},
      {"MistralForCausalLM", "mistral", MistralShape},
      {"MixtralForCausalLM", "mixtral", MixtralShape},
      {"Qwen2ForCausalLM", "qwen2", Qwen2Shape},
      {"Qwen2MoeForCausalLM", "qwen2_moe", Qwen2MoeShape},
      {"Qwen3ForCausalLM", "qwen3", Qwen3Shape},
      {"Qwen3MoeForCausalLM", "qwen3_moe", Qwen3MoeShape},
      {"Qwen3NextForCausalLM", "qwen3_next", QwenHybridMoeShape},
      {"Qwen3_5ForCausalLM", "qwen3_5_text", QwenHybridShape},
      {"Qwen3_5ForConditionalGeneration", "qwen3_5", QwenHybridShape},
      {"Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", QwenHybridMoeShape},
      {"Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", QwenHybridMoeShape},
      {"GemmaForCausalLM", "gemma", GemmaShape},
      {"Gemma2ForCausalLM", "gemma2", Gemma2Shape},
      {"Gemma3ForCausalLM", "gemma3_text", Gemma3Shape},
      {"Gemma3ForConditionalGeneration", "gemma3", Gemma3Shape},
      {"Gemma3nForCausalLM", "gemma3n_text", Gemma3nShape},
      {"Gemma3nForConditionalGeneration", "gemma3n", Gemma3nShape},
      {"Gemma4ForCausalLM", "gemma4_text", Gemma4Shape},
      {"Gemma4ForConditionalGeneration", "gemma4", Gemma4Shape},
      {"Phi3ForCausalLM", "phi3", Phi3Shape},
      {"SmolLM3ForCausalLM", "smollm3", SmolLm3Shape},
      {"Starcoder2ForCausalLM", "starcoder2", Starcoder2Shape},
      {"Olmo2ForCausalLM", "olmo2", Olmo2Shape},
      {"Olmo3ForCausalLM", "olmo3", Olmo3Shape},
      {"OlmoHybridForCausalLM", "olmo_hybrid", OlmoHybridShape},
      {"Cohere2ForCausalLM", "cohere2", Cohere2Shape},
      {"Exaone4ForCausalLM", "exaone4", Exaone4Shape},
      {"Glm4MoeForCausalLM", "glm4_moe", Glm4MoeShape},
      {"GlmMoeDsaForCausalLM", "glm_moe_dsa", DeepseekIndexedShape},
      {"Glm5NextForConditionalGeneration", "glm5_next", Glm5NextShape},
      {"GptOssForCausalLM", "gpt_oss", GptOssShape},
      {"Llama4ForCausalLM", "llama4_text", Llama4Shape},
      {"Llama4ForConditionalGeneration", "llama4", Llama4Shape},
      {"MiniMaxForCausalLM", "minimax", MiniMaxShape},
      {"MiniMaxM2ForCausalLM", "minimax_m2", MiniMaxM2Shape},
      {"DeepseekV2ForCausalLM", "deepseek_v2", DeepseekShape},
      {"DeepseekV3ForCausalLM", "deepseek_v3", DeepseekShape},
      {"DeepseekV32ForCausalLM", "deepseek_v32", DeepseekIndexedShape},
      {"DeepseekV4ForCausalLM", "deepseek_v4", DeepseekV4Shape},
      {"LongcatFlashForCausalLM", "longcat_flash", LongcatFlashShape},
      {"GPT2LMHeadModel", "gpt2", Gpt2Shape},
      {"GPTBigCodeForCausalLM", "gpt_bigcode", GptBigCodeShape},
      {"GPTNeoXForCausalLM", "gpt_neox", GptNeoxShape},
      {"FalconForCausalLM", "falcon", FalconShape},
      {"FalconH1ForCausalLM", "falcon_h1", FalconH1Shape},
      {"MambaForCausalLM", "mamba", MambaShape},
      {"Mamba2ForCausalLM", "mamba2", Mamba2Shape},
      {"JambaForCausalLM", "jamba", JambaShape},
      {"BambaForCausalLM", "bamba", BambaShape},
      {"GraniteMoeHybridForCausalLM", "granitemoehybrid", GraniteHybridShape},
      {"NemotronHForCausalLM", "nemotron_h", NemotronHShape},
      {"Zamba2ForCausalLM", "zamba2", Zamba2Shape},
      {"Lfm2ForCausalLM", "lfm2", Lfm2Shape},
      {"Lfm2MoeForCausalLM", "lfm2_moe", Lfm2Shape},
      {"T5ForConditionalGeneration", "t5", T5Shape},
      {"BartForConditionalGeneration", "bart", BartShape},
  };
  return kRows;
}

namespace {

absl::StatusOr<const ShapeReader*> FindReader(const JsonFields& config) {
  const std::string_view named =
      config.json()["architectures"].at(0).as_string().value_or(std::string_view());
  const std::string_view type = config.json()["model_type"].as_string().value_or("");
  std::string known;
  for (const ShapeReader& reader : ShapeReaders()) {
    if (named.empty() ? type == reader.model_type && !type.empty() : named == reader.hf_name) {
      return &reader;
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", reader.hf_name);
  }
  return Error(absl::StatusCode::kUnimplemented,
               "{}: architectures=\"{}\" (model_type=\"{}\") is not known; known: {}",
               config.file(), Printable(named), Printable(type), known);
}

}  // namespace

absl::StatusOr<ModelShape> ReadShape(const JsonFields& config) {
  ASSIGN_OR_RETURN(const ShapeReader* const reader, FindReader(config));
  const bool nested = config.json()["text_config"].is_object();
  ASSIGN_OR_RETURN(const JsonFields text,
                   nested ? config.Object("text_config") : absl::StatusOr<JsonFields>(config));
  ASSIGN_OR_RETURN(ModelShape shape, reader->read(text));
  shape.architecture = std::string(reader->hf_name);
  shape.name = config.file();
  for (const std::string_view key : {"dtype", "torch_dtype"}) {
    if (!shape.weight_type.empty()) break;
    for (const JsonFields& fields : {text, config}) {
      const std::optional<std::string_view> type = fields.json()[key].as_string();
      if (type && shape.weight_type.empty()) shape.weight_type = std::string(*type);
    }
  }
  const Json quantised = config.json()["quantization_config"];
  if (quantised.is_object()) {
    const std::string method(quantised["quant_method"].as_string().value_or("unknown"));
    if (method == "fp8") {
      shape.weight_type = "fp8";
    } else {
      shape.notes.push_back(fmt::format("quantization_config ({}) is not read: give --weight-dtype",
                                        Printable(method)));
    }
  }
  if (nested) shape.notes.push_back("only the text model is counted");
  RETURN_IF_ERROR(CheckShape(shape));
  return shape;
}

}  // namespace quire
