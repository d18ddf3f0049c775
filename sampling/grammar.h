// sampling/grammar.h -- structured output: what a grammar allows as the next token.
//
// A GrammarSpec (JSON schema, regex, EBNF, choices, structural tags) is compiled once against the
// model's vocabulary; then each branch has a GrammarMatcher, which masks the logits, follows the
// tokens and can be rolled back and forked. The work is done by XGrammar (Apache-2.0), which stays
// behind this header. Its exceptions end here, and so do its excesses: a compilation or a mask that
// takes too much memory or time is an error of that request.
//
// Threads: GrammarCompiler any; CompiledGrammar is immutable; a GrammarMatcher has one user at a
// time (the engine thread), different ones may run at once.
//
// Rules that callers keep:
// - The end of the text: stop ids are allowed exactly where the grammar may end. Where it must end
//   (MustEnd) nothing else is allowed; min_tokens then gives way to the grammar.
// - ignore_eos: a matcher without stop ids never allows an end. Where the grammar must end the mask
//   is empty: end the branch if MustEnd().
// - Stop strings and the client's stop_token_ids cut a text as ever: it is then a beginning of one
//   that the grammar allows, and maybe no more than that.
// - max_tokens cuts as well; only a text that ended by a stop id or MustEnd() is complete.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace quire {

struct GrammarSpec {
  enum class Kind : uint8_t {
    kJsonObject,     // any JSON object; `text` unused
    kJsonSchema,     // text: a JSON schema
    kRegex,          // text: a regular expression for the whole output
    kEbnf,           // text: rules in GBNF style, the root rule is `root`
    kChoice,         // choices: the output is one of them
    kStructuralTag,  // text: a structural tag as JSON, in XGrammar's format
  };
  Kind kind = Kind::kJsonObject;
  std::string text;
  std::vector<std::string> choices;

  // JSON only.
  bool any_whitespace = true;         // else one line, with `separators`
  int32_t max_whitespace = 16;        // longest run of white space; any_whitespace only
  bool strict = true;                 // no properties and items but those that the schema names
  std::optional<int32_t> indent;      // not any_whitespace: line breaks and this many spaces
  std::string item_separator = ", ";  // not any_whitespace
  std::string key_separator = ": ";

  bool operator==(const GrammarSpec&) const = default;
};

// Bounds on what a client may ask for. A refused value is named with its limit.
struct GrammarLimits {
  size_t max_text_bytes = 64 << 10;  // schema, EBNF, structural tag
  size_t max_regex_bytes = 8 << 10;
  int32_t max_depth = 64;  // nesting of schema, groups and brackets
  int32_t max_choices = 4096;
  size_t max_choice_bytes = 64 << 10;            // all of them together
  int32_t max_repeat = 100'000;                  // a single {m,n}, maxItems, maxLength, ...
  std::chrono::milliseconds compile_time{5000};  // of one core
  size_t compile_bytes = 512 << 20;              // live at one time while compiling
  int32_t max_compiling = 2;                     // at once; others wait as long as compile_time
  size_t cache_bytes = 256 << 20;                // of compiled grammars that nobody may be using
};

// What the grammar needs to know of a tokenizer.
struct GrammarVocabulary {
  // By id. Empty for control tokens and gaps: never allowed, unless a stop id.
  std::vector<std::string> token_bytes;
  // Rows of the logits, at least token_bytes.size(); the ids above are never allowed.
  int32_t vocab_size = 0;
  std::vector<TokenId> stop_ids;  // the model's ends
  // A space in front of the whole text is not delivered (SentencePiece): then no token with one may
  // come first, or the delivered text would not be the one that the grammar saw.
  bool drops_first_space = false;
};

// Ids allowed next, 32 to a word, lowest bit first.
inline size_t MaskWords(int32_t vocab_size) { return (static_cast<size_t>(vocab_size) + 31) / 32; }

class CompiledGrammar {
 public:
  ~CompiledGrammar();
  size_t size_bytes() const { return size_bytes_; }
  int32_t vocab_size() const { return vocab_size_; }

 private:
  friend class GrammarCompiler;
  friend class GrammarMatcher;
  struct Impl;
  CompiledGrammar();
  std::unique_ptr<const Impl> impl_;
  size_t size_bytes_ = 0;
  int32_t vocab_size_ = 0;
};

class GrammarCompiler {
 public:
  struct Stats {
    int64_t hits = 0;
    int64_t misses = 0;
    int64_t refused = 0;  // compilations that ended in an error
    size_t cached_bytes = 0;
    int32_t cached = 0;
  };

  // Sorts the vocabulary once (about 0.1 s for 50,000 tokens). ERRORS: kInvalidArgument if
  // vocab_size or a stop id does not fit the tokens.
  static absl::StatusOr<std::unique_ptr<GrammarCompiler>> Make(GrammarVocabulary vocabulary,
                                                               const GrammarLimits& limits = {});
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Blocks while it compiles: not for the engine thread. Equal specs share a grammar.
  // ERRORS: kInvalidArgument naming the field and what is wrong with it, or the limit that it
  // exceeds (size, depth, memory, time); kResourceExhausted if others were compiling all the time.
  absl::StatusOr<std::shared_ptr<const CompiledGrammar>> Compile(const GrammarSpec& spec);

  Stats stats() const;

 private:
  struct Impl;
  explicit GrammarCompiler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class GrammarMatcher {
 public:
  // stop_ids: instead of the vocabulary's; empty: nothing ends a text but MustEnd().
  explicit GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar,
                          std::optional<std::vector<TokenId>> stop_ids = std::nullopt);
  ~GrammarMatcher();
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;

  // Another matcher in the same state, independent of this one.
  GrammarMatcher Fork() const;

  // The tokens that may come next: MaskWords(vocab_size) words, bits above vocab_size are 0. After
  // a stop token, or if !ok(): the stop ids only. Always allows something, except where the
  // grammar must end and there are no stop ids, or where no token of the vocabulary fits.
  void FillMask(std::span<int32_t> words);

  // Follows a token. False, and nothing changes, if the grammar does not allow it.
  bool Accept(TokenId token);

  // Takes back the last `n` accepted tokens, and a failure that came with them. REQUIRES: 0 <= n <=
  // num_accepted().
  void Rollback(int32_t n);
  int32_t num_accepted() const;

  // A stop token was accepted.
  bool IsTerminated() const;
  // The text so far is complete: it may end here.
  bool CanEnd() const;
  // The text so far is complete and nothing but an end may follow.
  bool MustEnd();

  // Bytes that every continuation begins with, at most 1,024; empty if there is a choice or the
  // text may end. May end within a character. Worked out when the last ones are used up.
  std::string ForcedText();

  // Not ok once this grammar cost more than it may at some token: the request should fail with it.
  const absl::Status& status() const;
  int32_t vocab_size() const;

 private:
  struct Impl;
  explicit GrammarMatcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
