#include "models/rope_reader.h"

#include <cmath>
#include <cstring>

namespace quire {
namespace {

constexpr float kDefaultTheta = 10000.0f;

struct RopeTypeName {
  std::string_view name;
  RopeType type;
};
constexpr RopeTypeName kJsonTypes[] = {
    {"default", RopeType::kDefault},   {"linear", RopeType::kLinear},
    {"dynamic", RopeType::kDynamic},   {"yarn", RopeType::kYarn},
    {"longrope", RopeType::kLongrope}, {"llama3", RopeType::kLlama3},
};
constexpr RopeTypeName kGgufTypes[] = {
    {"none", RopeType::kDefault},
    {"linear", RopeType::kLinear},
    {"yarn", RopeType::kYarn},
    {"longrope", RopeType::kLongrope},
};

template <size_t N>
std::optional<RopeType> FindType(const RopeTypeName (&types)[N], std::string_view name,
                                 std::string* known) {
  for (const RopeTypeName& t : types) {
    if (name == t.name) return t.type;
    *known += fmt::format("{}{}", known->empty() ? "" : ", ", t.name);
  }
  return std::nullopt;
}

// Combinations in which a formula of rope_config.cc would divide by zero or take a bad logarithm.
absl::Status CheckFormula(const RopeConfig& rope, const std::string& where) {
  if (rope.type == RopeType::kDynamic && rope.rotary_dim <= 2) {
    return InvalidArgument("{}: dynamic rope needs more than 2 rotated dimensions, has {}", where,
                           rope.rotary_dim);
  }
  if (rope.type == RopeType::kDynamic && rope.factor < 1.0f) {
    return InvalidArgument("{}: factor={} of dynamic rope must be at least 1", where, rope.factor);
  }
  if (rope.type == RopeType::kYarn && rope.theta <= 1.0f) {
    return InvalidArgument("{}: rope_theta={} of yarn must be above 1", where, rope.theta);
  }
  if (rope.type == RopeType::kLongrope && rope.original_max_position < 2) {
    return InvalidArgument("{}: original_max_position_embeddings={} of longrope must be at least 2",
                           where, rope.original_max_position);
  }
  if (rope.type == RopeType::kLlama3 && !(rope.high_freq_factor > rope.low_freq_factor)) {
    return InvalidArgument("{}: high_freq_factor={} of llama3 must be above low_freq_factor={}",
                           where, rope.high_freq_factor, rope.low_freq_factor);
  }
  return absl::OkStatus();
}

absl::Status ReadJsonScaling(const JsonFields& params, const JsonFields& config,
                             int32_t max_position, RopeConfig& rope) {
  const bool has_original = rope.type == RopeType::kYarn || rope.type == RopeType::kLongrope ||
                            rope.type == RopeType::kLlama3;
  if (has_original) {
    // The top-level key wins; without any, the model's own limit stands.
    const JsonFields& source = config.Has("original_max_position_embeddings") ? config : params;
    ASSIGN_OR_RETURN(const int64_t original,
                     source.Int("original_max_position_embeddings", max_position, 1, kMaxPosition));
    rope.original_max_position = static_cast<int32_t>(original);
  }
  if (rope.type == RopeType::kYarn || rope.type == RopeType::kLongrope) {
    const float ratio =
        static_cast<float>(max_position) / static_cast<float>(rope.original_max_position);
    ASSIGN_OR_RETURN(rope.factor, params.Positive("factor", ratio));
    ASSIGN_OR_RETURN(rope.attention_factor, params.Positive("attention_factor", 0.0f));
  } else if (rope.type != RopeType::kDefault) {
    ASSIGN_OR_RETURN(rope.factor, params.Positive("factor", std::nullopt));
  }
  if (rope.type == RopeType::kYarn) {
    // 0 and null mean "the usual", as in transformers.
    const auto read = [&params](std::string_view key, float fallback) -> absl::StatusOr<float> {
      if (params.json()[key].as_double() == 0.0) return fallback;
      return params.Positive(key, fallback);
    };
    ASSIGN_OR_RETURN(rope.beta_fast, read("beta_fast", rope.beta_fast));
    ASSIGN_OR_RETURN(rope.beta_slow, read("beta_slow", rope.beta_slow));
    ASSIGN_OR_RETURN(rope.mscale, read("mscale", 0.0f));
    ASSIGN_OR_RETURN(rope.mscale_all_dim, read("mscale_all_dim", 0.0f));
    ASSIGN_OR_RETURN(rope.truncate, params.Bool("truncate", true));
  }
  if (rope.type == RopeType::kLlama3) {
    ASSIGN_OR_RETURN(rope.low_freq_factor, params.Positive("low_freq_factor", std::nullopt));
    ASSIGN_OR_RETURN(rope.high_freq_factor, params.Positive("high_freq_factor", std::nullopt));
  }
  if (rope.type == RopeType::kLongrope) {
    const auto half = static_cast<size_t>(rope.rotary_dim / 2);
    ASSIGN_OR_RETURN(rope.short_factor, params.PositiveList("short_factor", half));
    ASSIGN_OR_RETURN(rope.long_factor, params.PositiveList("long_factor", half));
  }
  return absl::OkStatus();
}

// All but theta, which has a key of its own in old files.
absl::Status ReadJsonRope(const JsonFields& params, const JsonFields& config, int32_t head_dim,
                          int32_t max_position, RopeConfig& rope) {
  const std::string type_key = params.Has("rope_type") ? "rope_type" : "type";
  ASSIGN_OR_RETURN(const std::string name, params.String(type_key, "default"));
  std::string known;
  const std::optional<RopeType> type = FindType(kJsonTypes, name, &known);
  if (!type) {
    return params.Refuse(type_key, "is not known; known: " + known,
                         absl::StatusCode::kUnimplemented);
  }
  rope.type = *type;
  const JsonFields& partial_source = params.Has("partial_rotary_factor") ? params : config;
  ASSIGN_OR_RETURN(const float partial, partial_source.Positive("partial_rotary_factor", 1.0f));
  if (partial > 1.0f) {
    return partial_source.Refuse("partial_rotary_factor", "must be in (0, 1]");
  }
  rope.rotary_dim = static_cast<int32_t>(static_cast<float>(head_dim) * partial);
  RETURN_IF_ERROR(ReadJsonScaling(params, config, max_position, rope));
  return CheckFormula(rope, config.file());
}

// A one-dimensional float32 tensor of `size` finite numbers above zero; empty if it is absent.
absl::StatusOr<std::vector<float>> ReadFactors(const GgufFile& file, const std::string& name,
                                               size_t size) {
  const std::optional<TensorView> view = file.Find(name);
  if (!view) return std::vector<float>();
  if (view->dtype != DType::kF32 || view->rank != 1 ||
      view->shape[0] != static_cast<int64_t>(size)) {
    return InvalidArgument("{}: tensor {} is {}, must be [{}] F32", file.file_name(), name,
                           view->ToString(), size);
  }
  std::vector<float> out(size);
  std::memcpy(out.data(), view->data, size * sizeof(float));
  for (size_t i = 0; i < size; ++i) {
    if (!std::isfinite(out[i]) || !(out[i] > 0.0f)) {
      return InvalidArgument("{}: tensor {}[{}]={} must be a finite number above 0",
                             file.file_name(), name, i, out[i]);
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<RopeConfig> RopeFromJson(const JsonFields& config, int32_t head_dim,
                                        int32_t max_position) {
  ASSIGN_OR_RETURN(const JsonFields scaling, config.Object("rope_scaling"));
  ASSIGN_OR_RETURN(const JsonFields parameters, config.Object("rope_parameters"));
  const JsonFields& params = scaling.json().size() > 0 ? scaling : parameters;
  for (const std::string& key : params.json().keys()) {
    if (params.json()[key].is_object()) {
      return params.Refuse(key, "differs by layer type, which this architecture does not have",
                           absl::StatusCode::kUnimplemented);
    }
  }
  RopeConfig rope;
  const JsonFields& theta_source = params.Has("rope_theta") ? params : config;
  ASSIGN_OR_RETURN(rope.theta, theta_source.Positive("rope_theta", kDefaultTheta));
  RETURN_IF_ERROR(ReadJsonRope(params, config, head_dim, max_position, rope));
  return rope;
}

absl::StatusOr<RopeConfig> RopeOfLayerType(const JsonFields& config, const LayerTypeRope& type,
                                           int32_t head_dim, int32_t max_position) {
  ASSIGN_OR_RETURN(const JsonFields scaling, config.Object("rope_scaling"));
  ASSIGN_OR_RETURN(const JsonFields by_type, config.Object("rope_parameters"));
  const bool new_style = by_type.json().size() > 0;
  if (new_style && scaling.json().size() > 0) {
    return config.Refuse("rope_scaling", "contradicts rope_parameters; keep one of them");
  }
  for (const std::string& key : by_type.json().keys()) {
    if (!by_type.json()[key].is_object() && by_type.Has(key)) {
      return by_type.Refuse(key, "must be an object, one for each layer type");
    }
  }
  const JsonFields none(Json(), config.file());
  ASSIGN_OR_RETURN(const JsonFields own, by_type.Object(type.layer_type));
  const JsonFields& params = new_style ? own : type.takes_scaling ? scaling : none;
  RopeConfig rope;
  if (params.Has("rope_theta")) {
    ASSIGN_OR_RETURN(rope.theta, params.Positive("rope_theta", std::nullopt));
  } else {
    ASSIGN_OR_RETURN(rope.theta, config.Positive(type.theta_key, type.default_theta));
  }
  RETURN_IF_ERROR(ReadJsonRope(params, config, head_dim, max_position, rope));
  return rope;
}

absl::StatusOr<RopeConfig> RopeFromGguf(const GgufFields& fields, int32_t head_dim,
                                        int32_t max_position) {
  RopeConfig rope;
  ASSIGN_OR_RETURN(rope.theta, fields.Positive("rope.freq_base", kDefaultTheta));
  ASSIGN_OR_RETURN(const int64_t rotary_dim,
                   fields.Int("rope.dimension_count", head_dim, 2, head_dim));
  rope.rotary_dim = static_cast<int32_t>(rotary_dim);
  const auto half = static_cast<size_t>(rope.rotary_dim / 2);

  // Without a type the factor means linear scaling; rope.scale_linear is its older name.
  ASSIGN_OR_RETURN(const std::string name, fields.String("rope.scaling.type", "linear"));
  std::string known;
  const std::optional<RopeType> type = FindType(kGgufTypes, name, &known);
  if (!type) {
    return fields.Refuse("rope.scaling.type", Printable(name), "is not known; known: " + known,
                         absl::StatusCode::kUnimplemented);
  }
  rope.type = *type;
  const std::string_view factor_key =
      fields.Has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
  const bool no_factor =
      fields.Has(factor_key) && fields.file().GetFloat(fields.Key(factor_key)).value_or(1.0) == 0.0;
  if (!no_factor) {
    ASSIGN_OR_RETURN(rope.factor, fields.Positive(factor_key, 1.0f));
  }
  if (rope.type == RopeType::kLinear && rope.factor == 1.0f) rope.type = RopeType::kDefault;
  if (rope.type == RopeType::kDefault) rope.factor = 1.0f;

  ASSIGN_OR_RETURN(const int64_t original, fields.Int("rope.scaling.original_context_length",
                                                      max_position, 1, kMaxPosition));
  ASSIGN_OR_RETURN(const float attention, fields.Positive("rope.scaling.attn_factor", 1.0f));
  if (rope.type == RopeType::kYarn) {
    rope.original_max_position = static_cast<int32_t>(original);
    ASSIGN_OR_RETURN(rope.beta_fast, fields.Positive("rope.scaling.yarn_beta_fast", 32.0f));
    ASSIGN_OR_RETURN(rope.beta_slow, fields.Positive("rope.scaling.yarn_beta_slow", 1.0f));
    // The factor multiplies YaRN's own 0.1 ln(s) + 1.
    if (attention != 1.0f) {
      const double own = rope.factor > 1.0f ? 0.1 * std::log(double{rope.factor}) + 1.0 : 1.0;
      rope.attention_factor = static_cast<float>(attention * own);
    }
  } else if (rope.type == RopeType::kLongrope) {
    rope.original_max_position = static_cast<int32_t>(original);
    rope.attention_factor = attention;  // the converter writes the final value
    ASSIGN_OR_RETURN(rope.short_factor,
                     ReadFactors(fields.file(), "rope_factors_short.weight", half));
    ASSIGN_OR_RETURN(rope.long_factor,
                     ReadFactors(fields.file(), "rope_factors_long.weight", half));
    if (rope.short_factor.empty() || rope.long_factor.empty()) {
      return fields.Refuse("rope.scaling.type", name,
                           "needs tensors rope_factors_short.weight and rope_factors_long.weight");
    }
  } else if (attention != 1.0f) {
    rope.attention_factor = attention;
  }
  ASSIGN_OR_RETURN(rope.freq_divisors, ReadFactors(fields.file(), "rope_freqs.weight", half));
  RETURN_IF_ERROR(CheckFormula(rope, fields.file().file_name()));
  return rope;
}

}  // namespace quire
