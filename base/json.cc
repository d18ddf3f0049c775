#include "base/json.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace quire {
namespace {

// Not ordered_json: its look-ups are linear, and vocabularies have 10^5 members.
using Value = nlohmann::json;
const Value kNullValue;

const Value& Of(const void* value) {
  return value == nullptr ? kNullValue : *static_cast<const Value*>(value);
}

// Bounds depth before nlohmann recurses (its destructor and dump would, too) and keeps the parser
// from throwing.
class DepthGuard {
 public:
  static bool Ok(std::string_view text, int32_t max_depth, size_t& offset) {
    int32_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (in_string) {
        if (c == '\\') {
          ++i;
        } else if (c == '"') {
          in_string = false;
        }
      } else if (c == '"') {
        in_string = true;
      } else if (c == '[' || c == '{') {
        if (++depth > max_depth) {
          offset = i;
          return false;
        }
      } else if (c == ']' || c == '}') {
        --depth;
      }
    }
    return true;
  }
};

// Remembers where and why parsing stopped. nlohmann's DOM builder does the rest.
class ErrorSax : public nlohmann::json_sax<Value> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t v, const string_t&) override { return std::isfinite(v); }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& e) override {
    offset = position;
    const std::string_view what = e.what();
    const size_t colon = what.rfind(": ");
    message =
        colon == std::string_view::npos ? std::string(what) : std::string(what.substr(colon + 2));
    return false;
  }
  size_t offset = 0;
  std::string message = "number out of range";
};

}  // namespace

absl::StatusOr<Json> Json::Parse(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return InvalidArgument("json has {} bytes, limit is {}", text.size(), limits.max_bytes);
  }
  // The parser takes a NUL for the end and would ignore what follows; no JSON text has a raw one.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return InvalidArgument("json is malformed at byte {}: NUL", nul);
  }
  size_t offset = 0;
  if (!DepthGuard::Ok(text, limits.max_depth, offset)) {
    return InvalidArgument("json nests deeper than {} at byte {}", limits.max_depth, offset);
  }
  auto document = std::make_shared<Value>(
      Value::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false));
  if (document->is_discarded()) {
    ErrorSax sax;
    Value::sax_parse(text.begin(), text.end(), &sax);
    return InvalidArgument("json is malformed at byte {}: {}", sax.offset, sax.message);
  }
  Json json;
  json.value_ = document.get();
  json.document_ = std::move(document);
  return json;
}

Json::Type Json::type() const {
  switch (Of(value_).type()) {
    case nlohmann::detail::value_t::boolean:
      return Type::kBool;
    case nlohmann::detail::value_t::number_integer:
      return Type::kInt;
    case nlohmann::detail::value_t::number_unsigned:
      return Type::kUint;
    case nlohmann::detail::value_t::number_float:
      return Type::kDouble;
    case nlohmann::detail::value_t::string:
      return Type::kString;
    case nlohmann::detail::value_t::array:
      return Type::kArray;
    case nlohmann::detail::value_t::object:
      return Type::kObject;
    default:
      return Type::kNull;
  }
}

size_t Json::size() const {
  const Value& v = Of(value_);
  return v.is_array() || v.is_object() ? v.size() : 0;
}

Json Json::at(size_t i) const {
  Json out;
  const Value& v = Of(value_);
  if (!v.is_array() || i >= v.size()) return out;
  out.document_ = document_;
  out.value_ = &v[i];
  return out;
}

Json Json::operator[](std::string_view key) const {
  Json out;
  const Value& v = Of(value_);
  if (!v.is_object()) return out;
  const auto it = v.find(std::string(key));
  if (it == v.end()) return out;
  out.document_ = document_;
  out.value_ = &*it;
  return out;
}

bool Json::Has(std::string_view key) const {
  const Value& v = Of(value_);
  return v.is_object() && v.contains(std::string(key));
}

std::vector<std::string> Json::keys() const {
  std::vector<std::string> out;
  const Value& v = Of(value_);
  if (!v.is_object()) return out;
  out.reserve(v.size());
  for (auto it = v.begin(); it != v.end(); ++it) out.push_back(it.key());
  return out;
}

void Json::ForEach(const std::function<void(std::string_view, const Json&)>& fn) const {
  const Value& v = Of(value_);
  if (!v.is_object()) return;
  Json member;
  member.document_ = document_;
  for (auto it = v.begin(); it != v.end(); ++it) {
    member.value_ = &it.value();
    fn(it.key(), member);
  }
}

std::optional<bool> Json::as_bool() const {
  const Value& v = Of(value_);
  if (!v.is_boolean()) return std::nullopt;
  return v.get<bool>();
}

std::optional<int64_t> Json::as_int() const {
  const Value& v = Of(value_);
  if (v.is_number_unsigned()) {
    const auto u = v.get<uint64_t>();
    if (u > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(u);
  }
  if (v.is_number_integer()) return v.get<int64_t>();
  if (v.is_number_float()) {
    const double d = v.get<double>();
    if (d != std::floor(d) || d < -9007199254740992.0 || d > 9007199254740992.0)
      return std::nullopt;
    return static_cast<int64_t>(d);
  }
  return std::nullopt;
}

std::optional<double> Json::as_double() const {
  const Value& v = Of(value_);
  if (!v.is_number()) return std::nullopt;
  return v.get<double>();
}

std::optional<std::string_view> Json::as_string() const {
  const Value& v = Of(value_);
  if (!v.is_string()) return std::nullopt;
  return std::string_view(v.get_ref<const std::string&>());
}

std::string Json::Dump() const {
  return Of(value_).dump(-1, ' ', false, nlohmann::detail::error_handler_t::replace);
}

void JsonWriter::Separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (has_items_.empty()) return;
  if (has_items_.back()) out_ += ',';
  has_items_.back() = true;
}

void JsonWriter::BeginObject() {
  Separate();
  out_ += '{';
  has_items_.push_back(false);
}
void JsonWriter::EndObject() {
  out_ += '}';
  has_items_.pop_back();
}
void JsonWriter::BeginArray() {
  Separate();
  out_ += '[';
  has_items_.push_back(false);
}
void JsonWriter::EndArray() {
  out_ += ']';
  has_items_.pop_back();
}
void JsonWriter::Key(std::string_view key) {
  Separate();
  out_ += Value(std::string(key)).dump(-1, ' ', false, nlohmann::detail::error_handler_t::replace);
  out_ += ':';
  after_key_ = true;
}
void JsonWriter::String(std::string_view s) {
  Separate();
  out_ += Value(std::string(s)).dump(-1, ' ', false, nlohmann::detail::error_handler_t::replace);
}
void JsonWriter::Int(int64_t v) {
  Separate();
  out_ += fmt::format("{}", v);
}
void JsonWriter::Uint(uint64_t v) {
  Separate();
  out_ += fmt::format("{}", v);
}
void JsonWriter::Double(double v) {
  Separate();
  out_ += std::isfinite(v) ? Value(v).dump() : "null";
}
void JsonWriter::Bool(bool v) {
  Separate();
  out_ += v ? "true" : "false";
}
void JsonWriter::Null() {
  Separate();
  out_ += "null";
}
void JsonWriter::Raw(std::string_view json) {
  Separate();
  out_ += json;
}

}  // namespace quire
