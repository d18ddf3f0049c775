// base/json.h -- the one door to JSON: no exceptions, bounded depth and size, errors that name the
// path. nlohmann/json stays behind it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

struct JsonLimits {
  size_t max_bytes = size_t{256} << 20;
  int32_t max_depth = 128;
};

// An immutable value in a parsed document. Cheap to copy: it points into the document, which it
// keeps alive. A default-constructed Json is null. Duplicate keys: the last one wins, as in
// Python's json.
class Json {
 public:
  enum class Type : uint8_t { kNull, kBool, kInt, kUint, kDouble, kString, kArray, kObject };

  Json() = default;

  // ERRORS: kInvalidArgument with the byte offset; too deep, too large, not UTF-8, trailing text.
  // Integers beyond 64 bits become doubles; NaN and infinity literals are refused.
  static absl::StatusOr<Json> Parse(std::string_view text, const JsonLimits& limits = {});

  Type type() const;
  bool is_null() const { return type() == Type::kNull; }
  bool is_object() const { return type() == Type::kObject; }
  bool is_array() const { return type() == Type::kArray; }
  bool is_string() const { return type() == Type::kString; }
  bool is_bool() const { return type() == Type::kBool; }
  bool is_number() const {
    return type() == Type::kInt || type() == Type::kUint || type() == Type::kDouble;
  }
  bool is_integer() const { return type() == Type::kInt || type() == Type::kUint; }

  // Arrays and objects; 0 for others.
  size_t size() const;
  // Array element; null Json if out of range or not an array.
  Json at(size_t i) const;
  // Object member; null Json if absent or not an object. Has() tells absent from null.
  Json operator[](std::string_view key) const;
  bool Has(std::string_view key) const;
  // An object's members, sorted by key (bytewise); linear.
  std::vector<std::string> keys() const;
  void ForEach(const std::function<void(std::string_view, const Json&)>& fn) const;

  // Exact type or nullopt: no conversion from string to number or back. as_int takes integers in
  // int64 range and doubles that are whole ("3.0"); as_double takes every number.
  std::optional<bool> as_bool() const;
  std::optional<int64_t> as_int() const;
  std::optional<double> as_double() const;
  std::optional<std::string_view> as_string() const;

  // Compact text; invalid UTF-8 cannot occur, as Parse refuses it.
  std::string Dump() const;

 private:
  std::shared_ptr<const void> document_;
  const void* value_ = nullptr;
};

// Writes JSON text. Strings are escaped; invalid UTF-8 becomes U+FFFD. Usage:
//   JsonWriter w; w.BeginObject(); w.Key("id"); w.Int(3); w.EndObject(); w.text();
class JsonWriter {
 public:
  void BeginObject();
  void EndObject();
  void BeginArray();
  void EndArray();
  void Key(std::string_view key);
  void String(std::string_view s);
  void Int(int64_t v);
  void Uint(uint64_t v);
  void Double(double v);  // NaN and infinities become null
  void Bool(bool v);
  void Null();
  // An already serialised value.
  void Raw(std::string_view json);
  const std::string& text() const { return out_; }

 private:
  void Separate();
  std::string out_;
  std::vector<bool> has_items_;
  bool after_key_ = false;
};

}  // namespace quire
