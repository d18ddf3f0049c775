// server/convert_fields.h -- fields of our own structs, found in the proto by their names.
//
// Used by the files of convert.h only; any thread. A struct with VisitFields(name, member, ...) is
// filled from whichever part of a GenerateRequest has a field of that name; what the client left
// out stays as the struct has it.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <array>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "quire/v1/quire.pb.h"
#include "server/served_model.h"

namespace quire {

namespace pb = ::quire::v1;

// The submessages in which such a field may live, with their names in GenerateRequest.
struct RequestPart {
  const char* path;
  const google::protobuf::Message* message;
};
inline std::array<RequestPart, 5> RequestParts(const pb::GenerateRequest& r) {
  return {{{"sampling", &r.sampling()},
           {"stopping", &r.stopping()},
           {"response", &r.response()},
           {"beam", &r.beam()},
           {"spec", &r.spec()}}};
}

inline const google::protobuf::FieldDescriptor* FindField(const RequestPart& part,
                                                          std::string_view name) {
  return part.message->GetDescriptor()->FindFieldByName(std::string(name));
}

template <typename T>
bool HasType(const google::protobuf::FieldDescriptor* field) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, int32_t>, "map this type, too");
  using google::protobuf::FieldDescriptor;
  return field->has_presence() &&
         field->cpp_type() == (std::is_same_v<T, float> ? FieldDescriptor::CPPTYPE_FLOAT
                                                        : FieldDescriptor::CPPTYPE_INT32);
}

template <typename Params>
void ReadFields(const pb::GenerateRequest& r, Params& params) {
  Params::VisitFields(params, [&](std::string_view name, auto& member, auto, auto) {
    using T = std::decay_t<decltype(member)>;
    for (const RequestPart& part : RequestParts(r)) {
      const google::protobuf::FieldDescriptor* const field = FindField(part, name);
      if (field == nullptr || !HasType<T>(field)) continue;
      const google::protobuf::Reflection* const reflection = part.message->GetReflection();
      if (!reflection->HasField(*part.message, field)) continue;  // the default stays
      if constexpr (std::is_same_v<T, float>) {
        member = reflection->GetFloat(*part.message, field);
      } else {
        member = reflection->GetInt32(*part.message, field);
      }
    }
  });
}

template <typename Params>
void AddFieldsWithoutTwin(std::vector<std::string>& missing) {
  const pb::GenerateRequest r;
  Params params;
  Params::VisitFields(params, [&](std::string_view name, auto& member, auto, auto) {
    int twins = 0;
    for (const RequestPart& part : RequestParts(r)) {
      const google::protobuf::FieldDescriptor* const field = FindField(part, name);
      twins += field != nullptr && HasType<std::decay_t<decltype(member)>>(field);
    }
    if (twins != 1) missing.emplace_back(name);
  });
}

// "temperature=5 is ..." becomes "sampling.temperature=5 is ...".
inline absl::Status WithPath(const absl::Status& status, const pb::GenerateRequest& r) {
  if (status.ok()) return status;
  const std::string message = Message(status);
  const std::string name = message.substr(0, message.find_first_of("=[. "));
  for (const RequestPart& part : RequestParts(r)) {
    if (FindField(part, name) != nullptr) {
      return absl::Status(status.code(), fmt::format("{}.{}", part.path, message));
    }
  }
  return status;
}

}  // namespace quire
