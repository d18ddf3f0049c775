#include "tokenizer/decoder.h"

#include "tokenizer/byte_level.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The byte of "<0x0A>", or -1.
int ByteOfToken(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  const int high = HexDigit(text[3]);
  const int low = HexDigit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t end = 0;
  for (size_t pos = 0; (pos = text.find(from, end)) != std::string_view::npos;) {
    out.append(text, end, pos - end);
    out += to;
    end = pos + from.size();
  }
  out.append(text, end);
  return out;
}

// State while a decoder's Sequence is read: after Fuse there is one text, before it are tokens.
struct ParseState {
  bool fused = false;
  bool any = false;
};

absl::Status Parse(const Json& json, DecoderSpec& spec, ParseState& state) {
  if (!json.is_object()) return InvalidArgument("decoder={} must be an object", json.Dump());
  const std::string_view type = json["type"].as_string().value_or("");
  const bool first = !state.any;
  if (type != "Sequence") state.any = true;
  if (type == "Sequence") {
    const Json parts = json["decoders"];
    if (!parts.is_array()) return InvalidArgument("decoder.decoders must be an array");
    for (size_t i = 0; i < parts.size(); ++i) RETURN_IF_ERROR(Parse(parts.at(i), spec, state));
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {
    if (!first) return InvalidArgument("unsupported decoder ByteLevel behind another decoder");
    spec.kind = DecoderSpec::Kind::kByteLevel;
    return absl::OkStatus();
  }
  if (first) spec.kind = DecoderSpec::Kind::kText;
  if (spec.kind == DecoderSpec::Kind::kByteLevel) {
    return InvalidArgument("unsupported decoder {} behind ByteLevel", type);
  }
  if (type == "Fuse") {
    state.fused = true;
    return absl::OkStatus();
  }
  if (type == "Replace" && !state.fused && !spec.byte_fallback) {
    const auto from = json["pattern"]["String"].as_string();
    const auto to = json["content"].as_string();
    if (!from || from->empty() || !to) {
      return InvalidArgument("decoder.pattern={} must be {{\"String\": text}}, with a content",
                             json["pattern"].Dump());
    }
    spec.replacements.push_back({std::string(*from), std::string(*to)});
    return absl::OkStatus();
  }
  if (type == "ByteFallback" && !state.fused) {
    spec.byte_fallback = true;
    return absl::OkStatus();
  }
  if (type == "Strip" && state.fused) {
    const auto content = json["content"].as_string();
    const auto start = json["start"].as_int();
    const auto stop = json["stop"].as_int();
    if (!content || content->empty() || !start || *start < 0 || stop != 0) {
      return InvalidArgument("decoder Strip={} must have a content, start >= 0 and stop = 0",
                             json.Dump());
    }
    spec.strip_content = std::string(*content);
    spec.strip_left = *start;
    return absl::OkStatus();
  }
  if (type == "Metaspace" && first) {
    spec.metaspace = std::string(json["replacement"].as_string().value_or("\xE2\x96\x81"));
    if (spec.metaspace.empty()) return InvalidArgument("decoder.replacement must not be empty");
    const bool prefix = json["add_prefix_space"].as_bool().value_or(true);
    const std::string_view scheme =
        json["prepend_scheme"].as_string().value_or(prefix ? "always" : "never");
    spec.metaspace_drops_first = scheme != "never";
    return absl::OkStatus();
  }
  return InvalidArgument(
      "unsupported decoder {}{}; supported are ByteLevel, Metaspace, and the "
      "sequence Replace, ByteFallback, Fuse, Strip",
      type.empty() ? json.Dump() : std::string(type), first ? "" : " in this place");
}

}  // namespace

absl::StatusOr<DecoderSpec> DecoderSpec::FromJson(const Json& json) {
  DecoderSpec spec;
  ParseState state;
  RETURN_IF_ERROR(Parse(json, spec, state));
  if (!state.any) return InvalidArgument("decoder={} has no step", json.Dump());
  return spec;
}

DecodedToken DecodeTokenText(const DecoderSpec& spec, std::string_view text) {
  DecodedToken token;
  if (spec.kind == DecoderSpec::Kind::kByteLevel) {
    token.bytes = UnmapBytes(text);
    return token;
  }
  token.bytes = std::string(text);
  for (const DecoderSpec::Replacement& r : spec.replacements) {
    token.bytes = ReplaceAll(token.bytes, r.from, r.to);
  }
  const int byte = spec.byte_fallback ? ByteOfToken(token.bytes) : -1;
  if (byte >= 0) {
    token.bytes.assign(1, static_cast<char>(byte));
    token.is_byte = true;
  }
  return token;
}

void TextAssembler::Emit(std::string_view text, std::string& out) {
  while (strip_left_ > 0 && !text.empty()) {
    if (text.substr(0, spec_->strip_content.size()) != std::string_view(spec_->strip_content)) {
      strip_left_ = 0;
      break;
    }
    text.remove_prefix(spec_->strip_content.size());
    --strip_left_;
  }
  out += text;
}

void TextAssembler::PushByte(char byte, std::string& out) {
  if (bad_run_) {
    Emit(kReplacementChar, out);
    return;
  }
  pending_ += byte;
  const Utf8Prefix prefix = ScanUtf8(pending_, 0);
  if (prefix.kind == Utf8Prefix::Kind::kIncomplete) return;
  if (prefix.kind == Utf8Prefix::Kind::kValid) {
    Emit(pending_, out);
  } else {
    for (size_t i = 0; i < pending_.size(); ++i) Emit(kReplacementChar, out);
    bad_run_ = true;
  }
  pending_.clear();
}

void TextAssembler::EndByteRun(std::string& out) {
  for (size_t i = 0; i < pending_.size(); ++i) Emit(kReplacementChar, out);
  pending_.clear();
  bad_run_ = false;
}

void TextAssembler::Push(const DecodedToken& token, std::string& out) {
  if (spec_->kind == DecoderSpec::Kind::kByteLevel) {
    if (pending_.empty()) {
      const size_t used = AppendLossyUtf8(token.bytes, /*keep_incomplete=*/true, out);
      pending_.assign(token.bytes, used);
    } else {
      pending_ += token.bytes;
      pending_.erase(0, AppendLossyUtf8(pending_, /*keep_incomplete=*/true, out));
    }
    return;
  }
  if (token.is_byte) {
    PushByte(token.bytes[0], out);
  } else {
    EndByteRun(out);
    if (spec_->metaspace.empty()) {
      Emit(token.bytes, out);
    } else {
      const bool drop = first_ && spec_->metaspace_drops_first;
      Emit(ReplaceAll(token.bytes, spec_->metaspace, drop ? "" : " "), out);
    }
  }
  first_ = false;
}

void TextAssembler::Flush(std::string& out) {
  if (spec_->kind == DecoderSpec::Kind::kByteLevel) {
    AppendLossyUtf8(pending_, /*keep_incomplete=*/false, out);
    pending_.clear();
  } else {
    EndByteRun(out);
  }
}

}  // namespace quire
