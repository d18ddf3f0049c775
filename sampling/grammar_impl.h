// sampling/grammar_impl.h -- what grammar_compiler.cc and grammar_matcher.cc share. The only header
// of ours that sees XGrammar's; nobody else includes it.
#pragma once

#include <xgrammar/xgrammar.h>

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sampling/grammar.h"
#include "sampling/grammar_budget.h"

namespace quire {

struct CompiledGrammar::Impl {
  explicit Impl(xgrammar::CompiledGrammar compiled) : grammar(std::move(compiled)) {}
  xgrammar::CompiledGrammar grammar;
  std::vector<TokenId> stop_ids;  // the vocabulary's
  int32_t num_tokens = 0;         // ids from here on are padding
  // Tokens that may not come first, a mask; null: all may.
  std::shared_ptr<const std::vector<int32_t>> first_banned;
};

// Runs `call` and turns what it throws into text; empty if it threw nothing. XGrammar's own errors
// override what() with file, line and time, which are no business of a client's: the base class
// still has the message.
template <typename Call>
std::string CatchGrammarErrors(Call&& call) {
  try {
    call();
    return {};
  } catch (const std::runtime_error& e) {
    const std::string text = e.std::runtime_error::what();
    return text.empty() ? "unknown error" : text;
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown error";
  }
}

// grammar_log.cc: the calling thread's XGrammar warnings go to `text` while this lives.
class GrammarWarnings {
 public:
  GrammarWarnings();
  ~GrammarWarnings();
  GrammarWarnings(const GrammarWarnings&) = delete;
  GrammarWarnings& operator=(const GrammarWarnings&) = delete;
  const std::string& text() const { return text_; }
  void Add(const std::string& message);

 private:
  std::string text_;
};

}  // namespace quire
