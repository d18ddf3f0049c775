// server/openai/fields.h -- members of a JSON body by type, with errors that name them.
//
// null counts as absent, as clients send it. The first error stays in status(); later reads give
// nothing. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace quire {

class Fields {
 public:
  // path: of the object within the body, "stream_options."; empty for the body itself.
  explicit Fields(Json object, std::string path = {})
      : object_(std::move(object)), path_(std::move(path)) {}

  const absl::Status& status() const { return status_; }
  const Json& json() const { return object_; }
  bool Has(std::string_view name) const { return !object_[name].is_null(); }

  std::optional<bool> Bool(std::string_view name);
  // In the range of int32.
  std::optional<int32_t> Int(std::string_view name);
  std::optional<int64_t> Int64(std::string_view name);
  std::optional<double> Number(std::string_view name);
  std::optional<std::string> String(std::string_view name);
  std::optional<Fields> Object(std::string_view name);
  // Not empty if it is there.
  std::vector<Json> Array(std::string_view name);
  // "a" or ["a", "b"].
  std::vector<std::string> Strings(std::string_view name);
  std::vector<int64_t> Ints(std::string_view name);

  // Refuses the member, whatever it is; `why` ends the message.
  void Refuse(std::string_view name, std::string_view why);
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  // Takes over the error of an object within.
  void Merge(const Fields& inner) { Fail(inner.status()); }

 private:
  // The member if it is there and no error is known.
  std::optional<Json> Find(std::string_view name) const;
  void WrongType(std::string_view name, const Json& value, std::string_view wanted);

  Json object_;
  std::string path_;
  absl::Status status_;
};

// The start of a value, for messages.
std::string Shown(const Json& value);

}  // namespace quire
