// The typed getters of GgufFile. Offsets were checked when the file was opened, but each value is
// read through ByteReader again: a file that is overwritten meanwhile gives an error, not a crash.
#include "models/weights/gguf.h"

namespace quire {
namespace {

bool IsInteger(GgufType t) {
  switch (t) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kUint16:
    case GgufType::kInt16:
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kUint64:
    case GgufType::kInt64:
      return true;
    default:
      return false;
  }
}
bool IsFloat(GgufType t) { return t == GgufType::kFloat32 || t == GgufType::kFloat64; }
bool IsBool(GgufType t) { return t == GgufType::kBool; }
bool IsString(GgufType t) { return t == GgufType::kString; }

template <typename T>
absl::StatusOr<int64_t> ReadAs(ByteReader& in, std::string_view what) {
  ASSIGN_OR_RETURN(const T value, in.Read<T>(what));
  return static_cast<int64_t>(value);
}

absl::StatusOr<int64_t> ReadInt(ByteReader& in, GgufType type, std::string_view what) {
  switch (type) {
    case GgufType::kUint8:
      return ReadAs<uint8_t>(in, what);
    case GgufType::kInt8:
      return ReadAs<int8_t>(in, what);
    case GgufType::kUint16:
      return ReadAs<uint16_t>(in, what);
    case GgufType::kInt16:
      return ReadAs<int16_t>(in, what);
    case GgufType::kUint32:
      return ReadAs<uint32_t>(in, what);
    case GgufType::kInt32:
      return ReadAs<int32_t>(in, what);
    case GgufType::kInt64:
      return ReadAs<int64_t>(in, what);
    default:
      break;
  }
  CHECK(type == GgufType::kUint64);
  ASSIGN_OR_RETURN(const auto value, in.Read<uint64_t>(what));
  if (value > static_cast<uint64_t>(INT64_MAX)) {
    return InvalidArgument("{}={} must be below 2^63", what, value);
  }
  return static_cast<int64_t>(value);
}

absl::StatusOr<double> ReadFloat(ByteReader& in, GgufType type, std::string_view what) {
  if (type == GgufType::kFloat64) return in.Read<double>(what);
  ASSIGN_OR_RETURN(const auto value, in.Read<float>(what));
  return double{value};
}

}  // namespace

std::optional<GgufType> GgufFile::TypeOf(const std::string& key) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return std::nullopt;
  return it->second.type;
}

std::optional<GgufType> GgufFile::ElementTypeOf(const std::string& key) const {
  const auto it = values_.find(key);
  if (it == values_.end() || it->second.type != GgufType::kArray) return std::nullopt;
  return it->second.element_type;
}

uint64_t GgufFile::ArraySize(const std::string& key) const {
  const auto it = values_.find(key);
  if (it == values_.end() || it->second.type != GgufType::kArray) return 0;
  return it->second.count;
}

absl::StatusOr<GgufFile::Value> GgufFile::Expect(const std::string& key, std::string_view wanted,
                                                 bool array, bool (*accepts)(GgufType)) const {
  const auto it = values_.find(key);
  if (it == values_.end()) {
    return Error(absl::StatusCode::kNotFound, "{}: key {} is missing", file_name_, key);
  }
  const Value& value = it->second;
  const bool is_array = value.type == GgufType::kArray;
  if (is_array != array || !accepts(value.element_type)) {
    return InvalidArgument("{}: key {} is {}{}, must be {}{}", file_name_, key,
                           is_array ? "array of " : "", NameOf(value.element_type),
                           array ? "array of " : "", wanted);
  }
  return value;
}

absl::StatusOr<int64_t> GgufFile::GetInt(const std::string& key) const {
  ASSIGN_OR_RETURN(const Value value, Expect(key, "integer", false, IsInteger));
  ByteReader in(file_.bytes(), value.offset);
  return ReadInt(in, value.type, key);
}

absl::StatusOr<double> GgufFile::GetFloat(const std::string& key) const {
  ASSIGN_OR_RETURN(const Value value, Expect(key, "float", false, IsFloat));
  ByteReader in(file_.bytes(), value.offset);
  return ReadFloat(in, value.type, key);
}

absl::StatusOr<bool> GgufFile::GetBool(const std::string& key) const {
  ASSIGN_OR_RETURN(const Value value, Expect(key, "bool", false, IsBool));
  ByteReader in(file_.bytes(), value.offset);
  ASSIGN_OR_RETURN(const auto b, in.Read<uint8_t>(key));
  return b != 0;
}

absl::StatusOr<std::string> GgufFile::GetString(const std::string& key) const {
  ASSIGN_OR_RETURN(const Value value, Expect(key, "string", false, IsString));
  ByteReader in(file_.bytes(), value.offset);
  ASSIGN_OR_RETURN(const std::string_view s, in.ReadString(key, in.remaining()));
  return std::string(s);
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetIntArray(const std::string& key) const {
  ASSIGN_OR_RETURN(const Value value, Expect(key, "integer", true, IsInteger));
  ByteReader in(file_.bytes(), value.offset);
  std::vector<int64_t> out(value.count);
  for (int64_t& v : out) {
    ASSIGN_OR_RETURN(v, ReadInt(in, value.element_type, key));
  }
  return out;
}

absl::StatusOr<std::vector<double>> GgufFile::GetFloatArray(const std::string& key) const {
  ASSIGN_OR_RETURN(const Value value, Expect(key, "float", true, IsFloat));
  ByteReader in(file_.bytes(), value.offset);
  std::vector<double> out(value.count);
  for (double& v : out) {
    ASSIGN_OR_RETURN(v, ReadFloat(in, value.element_type, key));
  }
  return out;
}

absl::StatusOr<std::vector<bool>> GgufFile::GetBoolArray(const std::string& key) const {
  ASSIGN_OR_RETURN(const Value value, Expect(key, "bool", true, IsBool));
  ByteReader in(file_.bytes(), value.offset);
  std::vector<bool> out;
  out.reserve(value.count);
  for (uint64_t i = 0; i < value.count; ++i) {
    ASSIGN_OR_RETURN(const auto b, in.Read<uint8_t>(key));
    out.push_back(b != 0);
  }
  return out;
}

absl::StatusOr<std::vector<std::string>> GgufFile::GetStringArray(const std::string& key) const {
  ASSIGN_OR_RETURN(const Value value, Expect(key, "string", true, IsString));
  ByteReader in(file_.bytes(), value.offset);
  std::vector<std::string> out;
  out.reserve(value.count);
  for (uint64_t i = 0; i < value.count; ++i) {
    ASSIGN_OR_RETURN(const std::string_view s, in.ReadString(key, in.remaining()));
    out.emplace_back(s);
  }
  return out;
}

}  // namespace quire
