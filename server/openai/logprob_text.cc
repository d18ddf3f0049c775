#include "server/openai/logprob_text.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "tokenizer/unicode.h"

namespace quire {
namespace {

// JSON has no infinity; what is banned has a logprob that any client takes for zero.
constexpr double kLeastLogprob = -9999.0;

double Finite(float logprob) {
  return std::isfinite(logprob) ? std::max<double>(logprob, kLeastLogprob) : kLeastLogprob;
}

std::string JsonString(std::string_view text) {
  JsonWriter w;
  w.String(text);
  return w.text();
}

std::string JsonNumber(double value) {
  JsonWriter w;
  w.Double(value);
  return w.text();
}

void AppendTo(std::string& list, std::string_view element) {
  if (!list.empty()) list += ',';
  list += element;
}

void WriteBytes(std::string_view bytes, JsonWriter& w) {
  w.BeginArray();
  for (const char c : bytes) w.Int(static_cast<uint8_t>(c));
  w.EndArray();
}

}  // namespace

int64_t NumChars(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

std::string TokenNames::Text(TokenId id) const {
  if (as_ids_) return fmt::format("token_id:{}", id);
  std::string text;
  AppendLossyUtf8(tokenizer_.TokenBytes(id), /*keep_incomplete=*/false, text);
  return text;
}

void CompletionLogprobs::AddToken(const std::string& text) {
  AppendTo(tokens_, JsonString(text));
  AppendTo(offsets_, std::to_string(offset_));
  offset_ += NumChars(text);
  ++count_;
}

void CompletionLogprobs::AddUnknown(const TokenNames& names, TokenId id) {
  AddToken(names.Text(id));
  AppendTo(logprobs_, "null");
  AppendTo(tops_, "null");
}

void CompletionLogprobs::Add(const TokenNames& names, const Sampled& sampled, int32_t top) {
  const std::string text = names.Text(sampled.token);
  AddToken(text);
  AppendTo(logprobs_, JsonNumber(Finite(sampled.logprob)));
  JsonWriter w;
  w.BeginObject();
  std::set<std::string> told;  // ids may share a text; the best of them stays
  const auto tell = [&](TokenId id, float logprob) {
    std::string name = names.Text(id);
    if (!told.insert(name).second) return;
    w.Key(name);
    w.Double(Finite(logprob));
  };
  for (size_t i = 0; i < sampled.top.size() && i < static_cast<size_t>(std::max(0, top)); ++i) {
    tell(sampled.top[i].token, sampled.top[i].logprob);
  }
  tell(sampled.token, sampled.logprob);
  for (const TokenLogprob& asked : sampled.asked) tell(asked.token, asked.logprob);
  w.EndObject();
  AppendTo(tops_, w.text());
}

void CompletionLogprobs::Write(JsonWriter& w) const {
  w.BeginObject();
  w.Key("text_offset");
  w.Raw("[" + offsets_ + "]");
  w.Key("token_logprobs");
  w.Raw("[" + logprobs_ + "]");
  w.Key("tokens");
  w.Raw("[" + tokens_ + "]");
  w.Key("top_logprobs");
  w.Raw("[" + tops_ + "]");
  w.EndObject();
}

void CompletionLogprobs::Clear() {
  offsets_.clear();
  tokens_.clear();
  logprobs_.clear();
  tops_.clear();
  count_ = 0;
}

void WriteChatLogprob(const TokenNames& names, const Sampled& sampled, int32_t top, JsonWriter& w) {
  const auto entry = [&](TokenId id, float logprob) {
    w.Key("token");
    w.String(names.Text(id));
    w.Key("logprob");
    w.Double(Finite(logprob));
    w.Key("bytes");
    WriteBytes(names.Bytes(id), w);
  };
  w.BeginObject();
  entry(sampled.token, sampled.logprob);
  w.Key("top_logprobs");
  w.BeginArray();
  for (size_t i = 0; i < sampled.top.size() && i < static_cast<size_t>(std::max(0, top)); ++i) {
    w.BeginObject();
    entry(sampled.top[i].token, sampled.top[i].logprob);
    w.EndObject();
  }
  for (const TokenLogprob& asked : sampled.asked) {
    w.BeginObject();
    entry(asked.token, asked.logprob);
    w.EndObject();
  }
  w.EndArray();
  w.EndObject();
}

void WritePromptLogprobs(const TokenNames& names, const std::vector<PromptLogprob>& logprobs,
                         JsonWriter& w) {
  w.BeginArray();
  w.Null();
  for (const PromptLogprob& position : logprobs) {
    const Sampled& sampled = position.logprob;
    w.BeginObject();
    const auto entry = [&](TokenId id, float logprob, int64_t rank) {
      w.Key(std::to_string(id));
      w.BeginObject();
      w.Key("logprob");
      w.Double(Finite(logprob));
      w.Key("rank");
      if (rank > 0) {
        w.Int(rank);
      } else {
        w.Null();
      }
      w.Key("decoded_token");
      w.String(names.Text(id));
      w.EndObject();
    };
    bool told = false;
    for (size_t i = 0; i < sampled.top.size(); ++i) {
      told = told || sampled.top[i].token == sampled.token;
      entry(sampled.top[i].token, sampled.top[i].logprob, static_cast<int64_t>(i) + 1);
    }
    if (!told) entry(sampled.token, sampled.logprob, sampled.rank);
    w.EndObject();
  }
  w.EndArray();
}

}  // namespace quire
