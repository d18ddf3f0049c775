// What XGrammar has to say. Fatal errors are exceptions, caught where it is called. Warnings are
// kept for the compilation that they belong to: they say what of a schema it would not enforce.
// None go to stderr: they quote clients, and our logs carry no prompts and no answers.
#include <algorithm>
#include <string>

#include "sampling/grammar_impl.h"
#include "support/logging.h"

namespace quire {
namespace {

thread_local GrammarWarnings* current = nullptr;

}  // namespace

GrammarWarnings::GrammarWarnings() { current = this; }
GrammarWarnings::~GrammarWarnings() { current = nullptr; }

void GrammarWarnings::Add(const std::string& message) {
  // The first one tells enough.
  if (text_.empty()) text_ = message;
}

}  // namespace quire

namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int lineno, const std::string& message) {
  throw LogFatalError(file, lineno, message);
}

void LogMessageImpl(const std::string& /*file*/, int /*lineno*/, int level,
                    const std::string& message) {
  if (level == XGRAMMAR_LOG_LEVEL_WARNING && quire::current != nullptr) {
    quire::current->Add(message);
  }
}

}  // namespace xgrammar
