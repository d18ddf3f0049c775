#include "models/config_reader.h"

#include <cmath>

namespace quire {
namespace {

// The float is what is computed with: it must be finite and positive after rounding, too.
std::optional<float> PositiveFloat(double value) {
  const auto f = static_cast<float>(value);
  if (!std::isfinite(value) || !std::isfinite(f) || !(f > 0.0f)) return std::nullopt;
  return f;
}

struct ActivationName {
  std::string_view name;
  kernels::Activation activation;
};
constexpr ActivationName kActivations[] = {
    {"silu", kernels::Activation::kSilu},
    {"swish", kernels::Activation::kSilu},
    {"gelu", kernels::Activation::kGelu},
    {"gelu_new", kernels::Activation::kGeluTanh},
    {"gelu_fast", kernels::Activation::kGeluTanh},
    {"gelu_pytorch_tanh", kernels::Activation::kGeluTanh},
    {"relu", kernels::Activation::kRelu},
};

}  // namespace

absl::Status JsonFields::Refuse(std::string_view key, std::string_view constraint,
                                absl::StatusCode code) const {
  const std::string value = HasKey(key) ? Printable(object_[key].Dump()) : "(absent)";
  return Error(code, "{}: {}{}={} {}", file_, path_, key, value, constraint);
}

absl::StatusOr<int64_t> JsonFields::Int(std::string_view key, std::optional<int64_t> fallback,
                                        int64_t min, int64_t max) const {
  if (!Has(key) && fallback) return *fallback;
  const std::optional<int64_t> value = object_[key].as_int();
  if (!value || *value < min || *value > max) {
    return Refuse(key, fmt::format("must be an integer in [{}, {}]", min, max));
  }
  return *value;
}

absl::StatusOr<float> JsonFields::Positive(std::string_view key,
                                           std::optional<float> fallback) const {
  if (!Has(key) && fallback) return *fallback;
  const std::optional<double> value = object_[key].as_double();
  const std::optional<float> f = value ? PositiveFloat(*value) : std::nullopt;
  if (!f) return Refuse(key, "must be a finite number above 0");
  return *f;
}

absl::StatusOr<bool> JsonFields::Bool(std::string_view key, bool fallback) const {
  if (!Has(key)) return fallback;
  const std::optional<bool> value = object_[key].as_bool();
  if (!value) return Refuse(key, "must be true or false");
  return *value;
}

absl::StatusOr<std::string> JsonFields::String(std::string_view key,
                                               std::string_view fallback) const {
  if (!Has(key)) return std::string(fallback);
  const std::optional<std::string_view> value = object_[key].as_string();
  if (!value) return Refuse(key, "must be a string");
  return std::string(*value);
}

absl::StatusOr<std::vector<float>> JsonFields::PositiveList(std::string_view key,
                                                            size_t size) const {
  const Json list = object_[key];
  if (!list.is_array() || list.size() != size) {
    return Refuse(key, fmt::format("must be a list of {} numbers", size));
  }
  std::vector<float> out;
  out.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    const std::optional<double> value = list.at(i).as_double();
    const std::optional<float> f = value ? PositiveFloat(*value) : std::nullopt;
    if (!f) return Refuse(key, fmt::format("must hold finite numbers above 0 (element {})", i));
    out.push_back(*f);
  }
  return out;
}

absl::StatusOr<std::vector<std::string>> JsonFields::StringList(std::string_view key,
                                                                size_t size) const {
  const Json list = object_[key];
  if (!list.is_array() || list.size() != size) {
    return Refuse(key, fmt::format("must be a list of {} strings", size));
  }
  std::vector<std::string> out;
  out.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    const std::optional<std::string_view> value = list.at(i).as_string();
    if (!value) return Refuse(key, fmt::format("must hold strings (element {})", i));
    out.emplace_back(*value);
  }
  return out;
}

absl::StatusOr<std::vector<TokenId>> JsonFields::TokenIds(std::string_view key,
                                                          int64_t vocab_size) const {
  std::vector<TokenId> out;
  if (!Has(key)) return out;
  const Json value = object_[key];
  const size_t count = value.is_array() ? value.size() : 1;
  for (size_t i = 0; i < count; ++i) {
    const std::optional<int64_t> id = (value.is_array() ? value.at(i) : value).as_int();
    if (!id || *id < 0 || *id >= vocab_size) {
      return Refuse(key, fmt::format("must be token ids in [0, {}) (vocab_size)", vocab_size));
    }
    out.push_back(static_cast<TokenId>(*id));
  }
  return out;
}

absl::StatusOr<JsonFields> JsonFields::Object(std::string_view key) const {
  if (Has(key) && !object_[key].is_object()) return Refuse(key, "must be an object");
  return JsonFields(object_[key], file_, fmt::format("{}{}.", path_, key));
}

absl::Status GgufFields::Refuse(std::string_view key, std::string_view value,
                                std::string_view constraint, absl::StatusCode code) const {
  return Error(code, "{}: {}={} {}", file_.file_name(), Key(key), value, constraint);
}

absl::StatusOr<int64_t> GgufFields::Int(std::string_view key, std::optional<int64_t> fallback,
                                        int64_t min, int64_t max) const {
  if (!Has(key) && fallback) return *fallback;
  ASSIGN_OR_RETURN(const int64_t value, file_.GetInt(Key(key)));
  if (value < min || value > max) {
    return Refuse(key, fmt::format("{}", value), fmt::format("must be in [{}, {}]", min, max));
  }
  return value;
}

absl::StatusOr<float> GgufFields::Positive(std::string_view key,
                                           std::optional<float> fallback) const {
  if (!Has(key) && fallback) return *fallback;
  ASSIGN_OR_RETURN(const double value, file_.GetFloat(Key(key)));
  const std::optional<float> f = PositiveFloat(value);
  if (!f) return Refuse(key, fmt::format("{}", value), "must be a finite number above 0");
  return *f;
}

absl::StatusOr<std::string> GgufFields::String(std::string_view key,
                                               std::string_view fallback) const {
  if (!Has(key)) return std::string(fallback);
  return file_.GetString(Key(key));
}

absl::StatusOr<std::vector<bool>> GgufFields::Exceptions(std::string_view key, int64_t fallback,
                                                         size_t num_layers) const {
  std::vector<bool> out(num_layers);
  if (file_.TypeOf(Key(key)) == GgufType::kArray) {
    if (file_.ArraySize(Key(key)) != num_layers) {
      return Refuse(key, fmt::format("array of {}", file_.ArraySize(Key(key))),
                    fmt::format("must have {} elements, one for each layer", num_layers));
    }
    ASSIGN_OR_RETURN(const std::vector<bool> regular, file_.GetBoolArray(Key(key)));
    for (size_t i = 0; i < num_layers; ++i) out[i] = !regular[i];
    return out;
  }
  ASSIGN_OR_RETURN(const int64_t period, Int(key, fallback, 0, kMaxLayers));
  for (size_t i = 0; period > 0 && i < num_layers; ++i) {
    out[i] = (static_cast<int64_t>(i) + 1) % period == 0;
  }
  return out;
}

absl::StatusOr<std::vector<int64_t>> GgufFields::PerLayer(std::string_view key,
                                                          const std::vector<int64_t>& fallback,
                                                          size_t num_layers, int64_t min,
                                                          int64_t max) const {
  if (!Has(key) && !fallback.empty()) return fallback;
  if (file_.TypeOf(Key(key)) != GgufType::kArray) {
    ASSIGN_OR_RETURN(const int64_t value, Int(key, std::nullopt, min, max));
    return std::vector<int64_t>(num_layers, value);
  }
  if (file_.ArraySize(Key(key)) != num_layers) {
    return Refuse(key, fmt::format("array of {}", file_.ArraySize(Key(key))),
                  fmt::format("must have {} elements, one for each layer", num_layers));
  }
  ASSIGN_OR_RETURN(std::vector<int64_t> values, file_.GetIntArray(Key(key)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < min || values[i] > max) {
      return Refuse(fmt::format("{}[{}]", key, i), fmt::format("{}", values[i]),
                    fmt::format("must be in [{}, {}]", min, max));
    }
  }
  return values;
}

absl::StatusOr<kernels::Activation> ActivationFromName(const JsonFields& fields,
                                                       std::string_view key,
                                                       std::string_view fallback) {
  ASSIGN_OR_RETURN(const std::string name, fields.String(key, fallback));
  std::string known;
  for (const ActivationName& a : kActivations) {
    if (name == a.name) return a.activation;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", a.name);
  }
  return fields.Refuse(key, "is not known; known: " + known, absl::StatusCode::kUnimplemented);
}

absl::Status CheckConfig(const ModelConfig& config, const KeyNames& names) {
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const LayerConfig& layer = config.layers[i];
    if (layer.num_kv_heads > layer.num_heads || layer.num_heads % layer.num_kv_heads != 0) {
      return InvalidArgument("{}: {}={} must divide {}={} (layer {})", names.file,
                             names.num_kv_heads, layer.num_kv_heads, names.num_heads,
                             layer.num_heads, i);
    }
    if (int64_t{layer.num_heads} * layer.head_dim > kMaxWidth) {
      return InvalidArgument("{}: {}={} x {}={} must be at most {} (layer {})", names.file,
                             names.num_heads, layer.num_heads, names.head_dim, layer.head_dim,
                             kMaxWidth, i);
    }
    const RopeConfig& rope = config.ropes[static_cast<size_t>(layer.rope)];
    if (rope.type == RopeType::kNone) continue;
    if (rope.rotary_dim <= 0 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > layer.head_dim) {
      return InvalidArgument(
          "{}: {}={} with rotary dimension {} cannot be rotated: it must be even, above 0 and at "
          "most {}",
          names.file, names.head_dim, layer.head_dim, rope.rotary_dim, names.head_dim);
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
