#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <list>
#include <mutex>
#include <set>
#include <unordered_map>

#include "sampling/grammar_check.h"
#include "sampling/grammar_impl.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

// XGrammar recurses on the structure of a grammar. Nesting is limited beforehand; this is for what
// grows out of it, e.g. repetitions that are written out.
constexpr size_t kStackBytes = size_t{64} << 20;

const char* FieldName(GrammarSpec::Kind kind) {
  switch (kind) {
    case GrammarSpec::Kind::kJsonObject:
      return "json_object";
    case GrammarSpec::Kind::kJsonSchema:
      return "json_schema";
    case GrammarSpec::Kind::kRegex:
      return "regex";
    case GrammarSpec::Kind::kEbnf:
      return "grammar";
    case GrammarSpec::Kind::kChoice:
      return "choice";
    case GrammarSpec::Kind::kStructuralTag:
      return "structural_tag";
  }
  return "guided";
}

// A spec as a key: equal keys, equal specs.
std::string CacheKey(const GrammarSpec& spec) {
  std::string key = fmt::format("{}:{}:{}:{}:{}:{}:{}:{}:{}:", static_cast<int>(spec.kind),
                                spec.any_whitespace, spec.max_whitespace, spec.strict,
                                spec.indent.value_or(-1), spec.item_separator.size(),
                                spec.item_separator, spec.key_separator.size(), spec.key_separator);
  key += spec.text;
  for (const std::string& choice : spec.choices) {
    key += fmt::format(":{}:", choice.size());
    key += choice;
  }
  return key;
}

// The alternatives as one rule. Bytes that a grammar's string can't hold are escaped.
std::string ChoiceGrammar(const std::vector<std::string>& choices) {
  std::string text = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    text += i == 0 ? "\"" : " | \"";
    for (const char c : choices[i]) {
      if (c == '"' || c == '\\') {
        text += '\\';
        text += c;
      } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
        text += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
      } else {
        text += c;
      }
    }
    text += '"';
  }
  text += '\n';
  return text;
}

// Runs `work` on a thread with a large stack and low priority, so that steps of the engine go on
// beside it, and waits for it. False if there is no thread to be had.
template <typename Work>
bool RunBeside(Work& work) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread;
  const int error = pthread_create(
      &thread, &attributes,
      [](void* argument) -> void* {
        // Linux counts priorities per thread.
        setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);
        (*static_cast<Work*>(argument))();
        return nullptr;
      },
      &work);
  pthread_attr_destroy(&attributes);
  if (error != 0) return false;
  pthread_join(thread, nullptr);
  return true;
}

}  // namespace

CompiledGrammar::CompiledGrammar() = default;
CompiledGrammar::~CompiledGrammar() = default;

struct GrammarCompiler::Impl {
  using Result = absl::StatusOr<std::shared_ptr<const CompiledGrammar>>;
  struct Entry {
    std::string key;
    std::shared_ptr<const CompiledGrammar> grammar;
  };

  Impl(xgrammar::TokenizerInfo info, const GrammarLimits& grammar_limits)
      : tokenizer(info),
        // One thread and no cache: the budget counts the calling thread, and what an exception
        // leaves behind is thrown away.
        compiler(info, /*max_threads=*/1, /*cache_enabled=*/false),
        limits(grammar_limits) {}

  xgrammar::CompiledGrammar CallCompiler(const GrammarSpec& spec);
  Result CompileNow(const GrammarSpec& spec);
  void Insert(const std::string& key, std::shared_ptr<const CompiledGrammar> grammar);

  xgrammar::TokenizerInfo tokenizer;
  xgrammar::GrammarCompiler compiler;
  const GrammarLimits limits;
  std::vector<TokenId> stop_ids;
  int32_t num_tokens = 0;
  int32_t vocab_size = 0;
  std::shared_ptr<const std::vector<int32_t>> first_banned;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::list<Entry> used;  // the most recent one in front
  std::unordered_map<std::string, std::list<Entry>::iterator> cached;
  std::set<std::string> compiling;
  Stats stats;
};

xgrammar::CompiledGrammar GrammarCompiler::Impl::CallCompiler(const GrammarSpec& spec) {
  switch (spec.kind) {
    case GrammarSpec::Kind::kJsonObject:
    case GrammarSpec::Kind::kJsonSchema: {
      const bool any_object = spec.kind == GrammarSpec::Kind::kJsonObject;
      std::optional<int> indent;
      std::optional<std::pair<std::string, std::string>> separators;
      std::optional<int> max_whitespace;
      if (spec.any_whitespace) {
        max_whitespace = spec.max_whitespace;
      } else {
        if (spec.indent) indent = *spec.indent;
        separators.emplace(spec.item_separator, spec.key_separator);
      }
      return compiler.CompileJSONSchema(any_object ? R"({"type": "object"})" : spec.text,
                                        spec.any_whitespace, indent, separators,
                                        !any_object && spec.strict, max_whitespace);
    }
    case GrammarSpec::Kind::kRegex:
      return compiler.CompileRegex(spec.text);
    case GrammarSpec::Kind::kEbnf:
      return compiler.CompileGrammar(spec.text, "root");
    case GrammarSpec::Kind::kChoice:
      return compiler.CompileGrammar(ChoiceGrammar(spec.choices), "root");
    case GrammarSpec::Kind::kStructuralTag:
      return compiler.CompileStructuralTag(spec.text);
  }
  throw std::runtime_error("unknown kind");
}

GrammarCompiler::Impl::Result GrammarCompiler::Impl::CompileNow(const GrammarSpec& spec) {
  const char* field = FieldName(spec.kind);
  std::optional<xgrammar::CompiledGrammar> compiled;
  std::string error;
  std::string warning;
  auto exceeded = GrammarBudget::Exceeded::kNo;
  auto work = [&] {
    GrammarWarnings warnings;
    GrammarBudget budget(limits.compile_bytes, limits.compile_time);
    error = CatchGrammarErrors([&] { compiled.emplace(CallCompiler(spec)); });
    exceeded = budget.exceeded();
    warning = warnings.text();
  };
  if (!RunBeside(work)) {
    return Error(absl::StatusCode::kResourceExhausted, "{}: no thread to compile it; try later",
                 field);
  }
  switch (exceeded) {
    case GrammarBudget::Exceeded::kBytes:
      return InvalidArgument("{} takes more than {} MiB to compile; make it simpler", field,
                             limits.compile_bytes >> 20);
    case GrammarBudget::Exceeded::kTime:
      return InvalidArgument("{} takes longer than {} ms to compile; make it simpler", field,
                             limits.compile_time.count());
    case GrammarBudget::Exceeded::kNo:
      break;
  }
  if (!error.empty()) return InvalidArgument("{}: {}", field, error);
  if (!warning.empty()) return InvalidArgument("{}: {}", field, warning);
  std::shared_ptr<CompiledGrammar> grammar(new CompiledGrammar);
  auto impl = std::make_unique<CompiledGrammar::Impl>(*std::move(compiled));
  impl->stop_ids = stop_ids;
  impl->num_tokens = num_tokens;
  impl->first_banned = first_banned;
  grammar->size_bytes_ = impl->grammar.MemorySizeBytes();
  grammar->vocab_size_ = vocab_size;
  grammar->impl_ = std::move(impl);
  // Left recursion without an end, references in a circle: rules that no text fits.
  GrammarMatcher matcher(grammar);
  std::vector<int32_t> mask(MaskWords(vocab_size));
  matcher.FillMask(mask);
  if (!matcher.status().ok()) {
    return InvalidArgument("{} has no text that fits it: {}", field, Message(matcher.status()));
  }
  return grammar;
}

void GrammarCompiler::Impl::Insert(const std::string& key,
                                   std::shared_ptr<const CompiledGrammar> grammar) {
  stats.cached_bytes += grammar->size_bytes() + key.size();
  used.push_front({.key = key, .grammar = std::move(grammar)});
  cached[key] = used.begin();
  while (stats.cached_bytes > limits.cache_bytes && !used.empty()) {
    const Entry& last = used.back();
    stats.cached_bytes -= last.grammar->size_bytes() + last.key.size();
    cached.erase(last.key);
    used.pop_back();
  }
  stats.cached = static_cast<int32_t>(used.size());
}

GrammarCompiler::GrammarCompiler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrammarCompiler::~GrammarCompiler() = default;

absl::StatusOr<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Make(
    GrammarVocabulary vocabulary, const GrammarLimits& limits) {
  const auto num_tokens = static_cast<int32_t>(vocabulary.token_bytes.size());
  if (vocabulary.vocab_size < num_tokens || num_tokens == 0) {
    return InvalidArgument("vocab_size={} must be at least the number of tokens, {}, and not 0",
                           vocabulary.vocab_size, num_tokens);
  }
  for (const TokenId id : vocabulary.stop_ids) {
    if (id < 0 || id >= vocabulary.vocab_size) {
      return InvalidArgument("stop id {} must be in [0, {})", id, vocabulary.vocab_size);
    }
  }
  std::unique_ptr<Impl> impl;
  const std::string error = CatchGrammarErrors([&] {
    // No stop ids for XGrammar's tokenizer: its mask would allow those of them that a matcher does
    // not have.
    impl = std::make_unique<Impl>(
        xgrammar::TokenizerInfo(vocabulary.token_bytes, xgrammar::VocabType::RAW,
                                vocabulary.vocab_size, std::vector<int32_t>{}),
        limits);
  });
  if (impl == nullptr) return InvalidArgument("vocabulary for grammars: {}", error);
  impl->stop_ids = std::move(vocabulary.stop_ids);
  impl->num_tokens = num_tokens;
  if (vocabulary.drops_first_space) {
    auto banned = std::make_shared<std::vector<int32_t>>(MaskWords(vocabulary.vocab_size));
    for (int32_t id = 0; id < num_tokens; ++id) {
      if (!vocabulary.token_bytes[id].empty() && vocabulary.token_bytes[id][0] == ' ') {
        (*banned)[id / 32] |= static_cast<int32_t>(1u << (id % 32));
      }
    }
    impl->first_banned = std::move(banned);
  }
  impl->vocab_size = vocabulary.vocab_size;
  return std::unique_ptr<GrammarCompiler>(new GrammarCompiler(std::move(impl)));
}

absl::StatusOr<std::shared_ptr<const CompiledGrammar>> GrammarCompiler::Compile(
    const GrammarSpec& spec) {
  Impl& impl = *impl_;
  const auto deadline = Clock::now() + impl.limits.compile_time;
  if (const absl::Status status = CheckGrammarSpec(spec, impl.limits); !status.ok()) {
    const std::lock_guard lock(impl.mutex);
    ++impl.stats.refused;
    return status;
  }
  const std::string key = CacheKey(spec);
  {
    std::unique_lock lock(impl.mutex);
    // Who else compiles the same leaves it to us.
    while (true) {
      if (const auto it = impl.cached.find(key); it != impl.cached.end()) {
        impl.used.splice(impl.used.begin(), impl.used, it->second);
        ++impl.stats.hits;
        return impl.used.front().grammar;
      }
      if (impl.compiling.count(key) == 0 &&
          impl.compiling.size() < static_cast<size_t>(impl.limits.max_compiling)) {
        break;
      }
      if (impl.changed.wait_until(lock, deadline) == std::cv_status::timeout) {
        ++impl.stats.refused;
        return Error(absl::StatusCode::kResourceExhausted,
                     "{}: other grammars are being compiled, limit is {} at once; try later",
                     FieldName(spec.kind), impl.limits.max_compiling);
      }
    }
    impl.compiling.insert(key);
    ++impl.stats.misses;
  }
  Impl::Result result = impl.CompileNow(spec);
  const std::lock_guard lock(impl.mutex);
  impl.compiling.erase(key);
  if (result.ok()) {
    impl.Insert(key, *result);
  } else {
    ++impl.stats.refused;
  }
  impl.changed.notify_all();
  return result;
}

GrammarCompiler::Stats GrammarCompiler::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

}  // namespace quire
