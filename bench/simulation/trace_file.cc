#include "bench/simulation/trace_file.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/json.h"

namespace quire {
namespace {

constexpr size_t kMaxLine = size_t{64} << 20;
constexpr size_t kMaxName = 256;
constexpr size_t kMaxSegments = 4096;
constexpr double kMaxArrivalMs = 1e12;

// A name's text: "#" and 16 hexadecimal digits are the id itself, all else is hashed (FNV-1a).
uint64_t TextOf(std::string_view name) {
  if (name.size() == 17 && name[0] == '#') {
    uint64_t id = 0;
    const std::from_chars_result r =
        std::from_chars(name.data() + 1, name.data() + name.size(), id, 16);
    if (r.ec == std::errc() && r.ptr == name.data() + name.size()) return id;
  }
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return MixBits(hash);
}

absl::StatusOr<int64_t> Whole(const Json& json, std::string_view field, int64_t min, int64_t max) {
  const std::optional<int64_t> value = json.as_int();
  if (!value || *value < min || *value > max) {
    return InvalidArgument("{}={} must be a whole number in [{}, {}]", field, json.Dump(), min,
                           max);
  }
  return *value;
}

absl::StatusOr<std::string> Name(const Json& json, std::string_view field) {
  const std::optional<std::string_view> value = json.as_string();
  if (!value || value->size() > kMaxName) {
    return InvalidArgument("{} must be a string of at most {} bytes", field, kMaxName);
  }
  return std::string(*value);
}

absl::Status ReadPrompt(const Json& json, int64_t line_number, TraceRequest& r) {
  if (json.Has("token_ids")) {
    const Json ids = json["token_ids"];
    if (!ids.is_array() || ids.size() == 0 || ids.size() > size_t{kMaxTraceTokens}) {
      return InvalidArgument("token_ids must be an array of 1 to {} ids", kMaxTraceTokens);
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      ASSIGN_OR_RETURN(const int64_t id,
                       Whole(ids.at(i), "token_ids", 0, std::numeric_limits<TokenId>::max()));
      r.token_ids.push_back(static_cast<TokenId>(id));
    }
    if (json.Has("prefix")) return InvalidArgument("prefix and token_ids exclude each other");
  }
  int64_t known = static_cast<int64_t>(r.token_ids.size());
  if (json.Has("prefix")) {
    const Json prefix = json["prefix"];
    if (!prefix.is_array() || prefix.size() > kMaxSegments) {
      return InvalidArgument("prefix must be an array of at most {} pairs", kMaxSegments);
    }
    for (size_t i = 0; i < prefix.size(); ++i) {
      const Json pair = prefix.at(i);
      if (!pair.is_array() || pair.size() != 2) {
        return InvalidArgument("prefix={} must hold pairs [name, tokens]", pair.Dump());
      }
      ASSIGN_OR_RETURN(const std::string name, Name(pair.at(0), "prefix name"));
      ASSIGN_OR_RETURN(const int64_t tokens,
                       Whole(pair.at(1), "prefix tokens", 1, kMaxTraceTokens));
      r.prompt.push_back({TextOf(name), static_cast<int32_t>(tokens)});
      known += tokens;
    }
  }
  int64_t prompt_tokens = known;
  if (json.Has("prompt_tokens")) {
    ASSIGN_OR_RETURN(prompt_tokens,
                     Whole(json["prompt_tokens"], "prompt_tokens", 1, kMaxTraceTokens));
  }
  if (prompt_tokens < 1 || prompt_tokens > kMaxTraceTokens) {
    return InvalidArgument("prompt_tokens={} must be in [1, {}]", prompt_tokens, kMaxTraceTokens);
  }
  if (prompt_tokens < known || (prompt_tokens > known && !r.token_ids.empty())) {
    return InvalidArgument("prompt_tokens={} contradicts the {} tokens of {}", prompt_tokens, known,
                           r.token_ids.empty() ? "prefix" : "token_ids");
  }
  if (prompt_tokens > known) {
    r.prompt.push_back({MixId(0, 10, static_cast<uint64_t>(line_number)),
                        static_cast<int32_t>(prompt_tokens - known)});
  }
  return absl::OkStatus();
}

class TraceFile final : public TraceSource {
 public:
  TraceFile(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  ~TraceFile() override { std::fclose(file_); }

  absl::StatusOr<bool> Next(TraceRequest& request) override {
    for (;;) {
      ASSIGN_OR_RETURN(const bool more, ReadLine());
      if (!more) return false;
      if (line_.find_first_not_of(" \t\r") != std::string::npos) break;
    }
    absl::StatusOr<TraceRequest> parsed = ParseTraceLine(line_, line_number_);
    if (!parsed.ok()) return Wrong(parsed.status());
    if (parsed->arrival_us < last_us_) {
      return Wrong(InvalidArgument("arrival_ms={} must be at least that of the line before, {}",
                                   static_cast<double>(parsed->arrival_us) / 1e3,
                                   static_cast<double>(last_us_) / 1e3));
    }
    last_us_ = parsed->arrival_us;
    request = *std::move(parsed);
    return true;
  }

 private:
  absl::Status Wrong(const absl::Status& why) const {
    return Annotate(why, fmt::format("{}:{}", path_, line_number_));
  }
  absl::StatusOr<bool> ReadLine() {
    line_.clear();
    ++line_number_;
    for (;;) {
      const int c = std::getc(file_);
      if (c == '\n') return true;
      if (c == EOF) {
        if (std::ferror(file_) != 0) return Wrong(absl::DataLossError("the file can't be read"));
        return !line_.empty();
      }
      if (line_.size() == kMaxLine) {
        return Wrong(InvalidArgument("the line has more than {} bytes", kMaxLine));
      }
      line_.push_back(static_cast<char>(c));
    }
  }

  const std::string path_;
  std::FILE* const file_;
  std::string line_;
  int64_t line_number_ = 0;
  int64_t last_us_ = 0;
};

}  // namespace

absl::StatusOr<TraceRequest> ParseTraceLine(std::string_view line, int64_t line_number) {
  ASSIGN_OR_RETURN(const Json json, Json::Parse(line, {.max_bytes = kMaxLine, .max_depth = 4}));
  if (!json.is_object()) return InvalidArgument("a line must be a JSON object");
  for (const std::string& key : json.keys()) {
    if (!(key == "arrival_ms" || key == "prompt_tokens" || key == "prefix" || key == "token_ids" ||
          key == "output_tokens" || key == "answer" || key == "priority" || key == "tenant")) {
      return InvalidArgument(
          "{} is not a member; known are arrival_ms, prompt_tokens, prefix, token_ids, "
          "output_tokens, answer, priority, tenant",
          key.substr(0, kMaxName));
    }
  }
  TraceRequest r;
  const std::optional<double> arrival = json["arrival_ms"].as_double();
  if (!arrival || !(*arrival >= 0 && *arrival <= kMaxArrivalMs)) {
    return InvalidArgument("arrival_ms={} must be a number in [0, {}]", json["arrival_ms"].Dump(),
                           kMaxArrivalMs);
  }
  r.arrival_us = std::llround(*arrival * 1e3);
  ASSIGN_OR_RETURN(const int64_t output,
                   Whole(json["output_tokens"], "output_tokens", 1, kMaxTraceTokens));
  r.output_tokens = static_cast<int32_t>(output);
  RETURN_IF_ERROR(ReadPrompt(json, line_number, r));
  r.answer = MixId(0, 11, static_cast<uint64_t>(line_number));
  if (json.Has("answer")) {
    ASSIGN_OR_RETURN(const std::string name, Name(json["answer"], "answer"));
    r.answer = TextOf(name);
  }
  if (json.Has("priority")) {
    ASSIGN_OR_RETURN(const int64_t priority,
                     Whole(json["priority"], "priority", std::numeric_limits<int32_t>::min(),
                           std::numeric_limits<int32_t>::max()));
    r.priority = static_cast<int32_t>(priority);
  }
  if (json.Has("tenant")) {
    ASSIGN_OR_RETURN(r.tenant, Name(json["tenant"], "tenant"));
  }
  return r;
}

std::string TraceLine(const TraceRequest& r) {
  const auto name = [](uint64_t text) { return fmt::format("#{:016x}", text); };
  JsonWriter w;
  w.BeginObject();
  w.Key("arrival_ms");
  w.Double(static_cast<double>(r.arrival_us) / 1e3);
  w.Key(r.token_ids.empty() ? "prefix" : "token_ids");
  w.BeginArray();
  for (const TokenId id : r.token_ids) w.Int(id);
  for (const PromptSegment& segment : r.prompt) {
    w.BeginArray();
    w.String(name(segment.text));
    w.Int(segment.num_tokens);
    w.EndArray();
  }
  w.EndArray();
  w.Key("output_tokens");
  w.Int(r.output_tokens);
  w.Key("answer");
  w.String(name(r.answer));
  if (r.priority != 0) {
    w.Key("priority");
    w.Int(r.priority);
  }
  if (!r.tenant.empty()) {
    w.Key("tenant");
    w.String(r.tenant);
  }
  w.EndObject();
  return w.text() + "\n";
}

absl::StatusOr<std::unique_ptr<TraceSource>> OpenTrace(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return Error(absl::StatusCode::kNotFound, "trace={} can't be opened", path);
  return std::make_unique<TraceFile>(path, file);
}

}  // namespace quire
