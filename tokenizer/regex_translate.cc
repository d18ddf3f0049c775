// tokenizer/regex_translate.cc -- Oniguruma (Ruby syntax) to PCRE2, construct by construct.
// Source: Oniguruma's doc/RE and pcre2pattern(3).
#include <array>

#include "tokenizer/regex.h"

namespace quire {
namespace {

constexpr std::string_view kWordClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Outside a class, Oniguruma's \w has the superscripts and fractions of Latin-1 besides; within one
// it has not (measured; nothing else differs).
constexpr std::string_view kWordExtra = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";
constexpr std::array<std::string_view, 8> kBooleanProperties = {
    "Alphabetic", "Uppercase",          "Lowercase",      "White_Space",
    "Emoji",      "Emoji_Presentation", "Emoji_Modifier", "Any"};

class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  absl::StatusOr<std::string> Run() {
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      if (c == '\\') {
        RETURN_IF_ERROR(Escape());
      } else if (in_class_) {
        RETURN_IF_ERROR(InClass(c));
      } else if (c == '[') {
        OpenClass();
      } else if (c == '(') {
        RETURN_IF_ERROR(Group());
      } else if (c == '{' && Next(1) == ',') {
        return Unsupported("{,n}");
      } else if (c == '}' && Next(1) == '+') {
        return Unsupported("{n,m}+");
      } else {
        Copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  char Next(size_t offset) const { return pos_ + offset < in_.size() ? in_[pos_ + offset] : '\0'; }
  void Copy(size_t count) {
    out_.append(in_, pos_, count);
    pos_ += count;
  }
  absl::Status Unsupported(std::string_view what) const {
    return InvalidArgument("pattern='{}' uses {} at byte {}, which is not supported", in_, what,
                           pos_);
  }

  void OpenClass() {
    in_class_ = true;
    Copy(1);
    if (Next(0) == '^') Copy(1);
    if (Next(0) == ']') Copy(1);  // a literal bracket in first place, in both dialects
  }

  absl::Status InClass(char c) {
    if (c == '[') return Unsupported("a class within a class");
    if (c == '&' && Next(1) == '&') return Unsupported("an intersection of classes");
    if (c == ']') in_class_ = false;
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Group() {
    if (Next(1) == '*') return Unsupported("(*");
    if (Next(1) != '?') {
      Copy(1);
      return absl::OkStatus();
    }
    for (const std::string_view known :
         {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?i)", "(?-i:", "(?-i)"}) {
      if (in_.substr(pos_, known.size()) == known) {
        Copy(known.size());
        return absl::OkStatus();
      }
    }
    return Unsupported(in_.substr(pos_, 3));
  }

  absl::Status Escape() {
    const char c = Next(1);
    const std::string_view text = in_.substr(pos_, 2);
    switch (c) {
      case 's':
        return Replace(2, R"(\p{White_Space})");
      case 'S':
        return Replace(2, R"(\P{White_Space})");
      case 'w':
        return Replace(
            2, in_class_ ? std::string(kWordClass) : fmt::format("[{}{}]", kWordClass, kWordExtra));
      case 'W':
        if (in_class_) return Unsupported("\\W in a class");
        return Replace(2, fmt::format("[^{}{}]", kWordClass, kWordExtra));
      case 'p':
      case 'P':
        return Property();
      case 'u':
        return Unicode4();
      case 'x':
        return Hex();
      case 'A':
      case 'z':
      case 'Z':
        if (in_class_) return Unsupported(text);
        Copy(2);
        return absl::OkStatus();
      case 'd':
      case 'D':
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        Copy(2);
        return absl::OkStatus();
      default:
        break;
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool digit = c >= '0' && c <= '9';
    if (c == '\0' || letter || digit || static_cast<unsigned char>(c) >= 0x80) {
      return Unsupported(text);
    }
    Copy(2);
    return absl::OkStatus();
  }

  absl::Status Replace(size_t count, std::string_view with) {
    out_ += with;
    pos_ += count;
    return absl::OkStatus();
  }

  // \p{Han} is the Script property in Oniguruma, Script_Extensions in PCRE2 unless one says sc:.
  absl::Status Property() {
    if (Next(2) != '{') return Unsupported(in_.substr(pos_, 3));
    const size_t close = in_.find('}', pos_);
    if (close == std::string_view::npos) return Unsupported("\\p without }");
    std::string_view name = in_.substr(pos_ + 3, close - pos_ - 3);
    std::string_view negation;
    if (!name.empty() && name[0] == '^') {
      negation = "^";
      name.remove_prefix(1);
    }
    bool plain = name.size() <= 2;
    for (const std::string_view property : kBooleanProperties) plain |= name == property;
    out_ += fmt::format("\\{}{{{}{}{}}}", in_[pos_ + 1], negation, plain ? "" : "sc:", name);
    pos_ = close + 1;
    return absl::OkStatus();
  }

  static bool IsHex(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  }

  absl::Status Unicode4() {
    for (size_t i = 2; i < 6; ++i) {
      if (!IsHex(Next(i))) return Unsupported("\\u without four hex digits");
    }
    return Replace(6, fmt::format("\\x{{{}}}", in_.substr(pos_ + 2, 4)));
  }

  // \xHH is a byte in Oniguruma and a code point in PCRE2: the same below 0x80 only.
  absl::Status Hex() {
    if (Next(2) == '{') {
      Copy(3);
      return absl::OkStatus();
    }
    if (Next(2) < '0' || Next(2) > '7' || !IsHex(Next(3))) return Unsupported("\\xHH above 7F");
    Copy(4);
    return absl::OkStatus();
  }

  std::string_view in_;
  size_t pos_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> TranslatePattern(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace quire
