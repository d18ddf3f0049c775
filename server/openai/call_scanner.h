// server/openai/call_scanner.h -- one call of a tool, {"name": "f", "arguments": {...}}, character
// by character: the name when it is complete, the arguments as they come. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

class CallScanner {
 public:
  enum class Result : uint8_t { kMore, kDone, kBad };
  // What became known with a character.
  struct Told {
    bool has_name = false;  // `name` is set now
    std::string name;
    std::string arguments;  // a further part, as written
  };

  // An object with name and arguments (or parameters).
  CallScanner() = default;
  // The arguments alone; ends with them.
  static CallScanner ArgumentsOf(std::string name);

  // REQUIRES: no earlier result but kMore.
  Result Feed(char c, Told& told);

  // A call without arguments is told only at its end, see Feed; whether it has any.
  bool has_name() const { return has_name_; }
  bool has_arguments() const { return has_arguments_; }
  const std::string& name() const { return name_; }

 private:
  enum class State : uint8_t { kOpen, kKey, kKeyText, kColon, kValueStart, kValue };
  enum class Part : uint8_t { kOther, kName, kArguments };

  void BeginValue();
  Result InValue(char c, Told& told);
  void Append(char c, Told& told);
  bool EndValue(Told& told);

  State state_ = State::kOpen;
  Part part_ = Part::kOther;
  bool arguments_only_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
  int depth_ = 0;
  std::string key_;
  std::string value_;  // the name; arguments until the name is known, or if they are a string
  std::string name_;
  std::string waiting_;  // arguments that came before the name
  bool has_name_ = false;
  bool has_arguments_ = false;
  bool is_text_ = false;  // arguments as a JSON string
};

}  // namespace quire
