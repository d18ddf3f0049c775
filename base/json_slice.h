// base/json_slice.h -- parts of a JSON text as they were written.
//
// Json (json.h) sorts an object's members. Where their order counts -- a tool's parameters in a
// chat template, the properties of a schema -- the text itself is passed on. Pure; any thread.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

// All of these: REQUIRES: `json` is a whole valid value (Json::Parse took it).

// The value of a member of an object, without white space around; nullopt if there is none. Of
// equal keys the last one, as Json does.
std::optional<std::string_view> RawMember(std::string_view json, std::string_view key);

// An object's members in their order: keys as written, without quotes, escapes left alone.
std::vector<std::pair<std::string_view, std::string_view>> RawMembers(std::string_view json);

// An array's elements in their order; empty for anything else.
std::vector<std::string_view> RawElements(std::string_view json);

}  // namespace quire
