#include <algorithm>

#include "sampling/grammar_impl.h"

namespace quire {
namespace {

// One token's worth of work. Bytes come first, so that what fails does so on every machine; the
// time is for what allocates little.
constexpr size_t kStepBytes = size_t{256} << 20;
constexpr std::chrono::milliseconds kStepTime{500};
// Forced text is worked out byte by byte: some 20,000 bytes of it.
constexpr size_t kForcedBytes = size_t{8} << 20;
// And so many bytes of it are told: no step can use more.
constexpr size_t kMostForced = 1024;

}  // namespace

struct GrammarMatcher::Impl {
  Impl(std::shared_ptr<const CompiledGrammar> compiled, std::vector<TokenId> stops)
      : grammar(std::move(compiled)), stop_ids(std::move(stops)), matcher(MakeMatcher()) {}

  xgrammar::GrammarMatcher MakeMatcher() const {
    // Without stop ids XGrammar has a mode of its own, which ends where the root rule is complete.
    if (stop_ids.empty()) return xgrammar::GrammarMatcher(grammar->impl_->grammar);
    return xgrammar::GrammarMatcher(grammar->impl_->grammar,
                                    std::vector<int>(stop_ids.begin(), stop_ids.end()));
  }
  // Goes the way again, after a failure in the middle of something.
  void Restart() {
    matcher = MakeMatcher();
    for (const TokenId token : accepted) CHECK(matcher.AcceptToken(token));
  }
  bool IsStop(TokenId token) const {
    return std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end();
  }
  void Fail(const GrammarBudget& budget, const std::string& error);
  // True if XGrammar filled the mask; words beyond the vocabulary are cleared.
  bool TryFill(std::span<int32_t> words);
  void StopsOnly(std::span<int32_t> words) const;

  std::shared_ptr<const CompiledGrammar> grammar;
  std::vector<TokenId> stop_ids;
  xgrammar::GrammarMatcher matcher;
  std::vector<TokenId> accepted;
  std::vector<int32_t> scratch;  // a mask
  absl::Status status;
  size_t failed_at = 0;  // accepted tokens when `status` ceased to be OK
  // What was forced after forced_at accepted tokens: worked out once, then followed.
  std::string forced;
  size_t forced_at = 0;
};

void GrammarMatcher::Impl::Fail(const GrammarBudget& budget, const std::string& error) {
  if (!status.ok()) return;
  failed_at = accepted.size();
  const char* what = nullptr;
  if (budget.exceeded() == GrammarBudget::Exceeded::kBytes) what = "memory";
  if (budget.exceeded() == GrammarBudget::Exceeded::kTime) what = "time";
  status =
      what != nullptr
          ? InvalidArgument("guided: the grammar takes too much {} at token {}; make it simpler",
                            what, accepted.size())
          : InvalidArgument("guided: at token {}: {}", accepted.size(), error);
}

bool GrammarMatcher::Impl::TryFill(std::span<int32_t> words) {
  if (!status.ok() || matcher.IsTerminated()) return false;
  int64_t shape = static_cast<int64_t>(words.size());
  DLTensor tensor{};
  tensor.data = words.data();
  tensor.device = DLDevice{kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = xgrammar::GetBitmaskDLType();
  tensor.shape = &shape;
  GrammarBudget budget(kStepBytes, kStepTime);
  const std::string error = CatchGrammarErrors([&] { matcher.FillNextTokenBitmask(&tensor); });
  if (!error.empty()) {
    Fail(budget, error);
    return false;
  }
  if (accepted.empty() && grammar->impl_->first_banned != nullptr) {
    const std::vector<int32_t>& banned = *grammar->impl_->first_banned;
    for (size_t i = 0; i < banned.size(); ++i) words[i] &= ~banned[i];
  }
  // Padding is never allowed, whatever the grammar says of special tokens.
  for (TokenId id = grammar->impl_->num_tokens; id < static_cast<TokenId>(words.size()) * 32;
       ++id) {
    if (!IsStop(id)) words[id / 32] &= ~static_cast<int32_t>(1u << (id % 32));
  }
  return true;
}

void GrammarMatcher::Impl::StopsOnly(std::span<int32_t> words) const {
  std::fill(words.begin(), words.end(), 0);
  for (const TokenId id : stop_ids) words[id / 32] |= static_cast<int32_t>(1u << (id % 32));
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar,
                               std::optional<std::vector<TokenId>> stop_ids) {
  std::vector<TokenId> stops = stop_ids ? *std::move(stop_ids) : grammar->impl_->stop_ids;
  for (const TokenId id : stops) {
    CHECK(id >= 0 && id < grammar->vocab_size(), "stop id {} of {}", id, grammar->vocab_size());
  }
  impl_ = std::make_unique<Impl>(std::move(grammar), std::move(stops));
}
GrammarMatcher::GrammarMatcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;

GrammarMatcher GrammarMatcher::Fork() const {
  auto copy = std::make_unique<Impl>(*impl_);
  copy->matcher = impl_->matcher.Fork();
  return GrammarMatcher(std::move(copy));
}

void GrammarMatcher::FillMask(std::span<int32_t> words) {
  Impl& impl = *impl_;
  CHECK(words.size() == MaskWords(vocab_size()), "mask of {} words", words.size());
  if (!impl.TryFill(words)) {
    impl.StopsOnly(words);
    return;
  }
  const bool any = std::any_of(words.begin(), words.end(), [](int32_t word) { return word != 0; });
  if (any || impl.matcher.IsCompleted()) return;
  impl.failed_at = impl.accepted.size();
  impl.status = InvalidArgument("guided: no token of the vocabulary continues the text at token {}",
                                impl.accepted.size());
  impl.StopsOnly(words);
}

bool GrammarMatcher::Accept(TokenId token) {
  Impl& impl = *impl_;
  if (token < 0 || token >= vocab_size() || impl.matcher.IsTerminated()) return false;
  if (!impl.status.ok()) return impl.IsStop(token);
  if (impl.accepted.empty() && impl.grammar->impl_->first_banned != nullptr) {
    const std::vector<int32_t>& banned = *impl.grammar->impl_->first_banned;
    if ((static_cast<uint32_t>(banned[token / 32]) >> (token % 32) & 1) != 0) return false;
  }
  bool accepted = false;
  GrammarBudget budget(kStepBytes, kStepTime);
  const std::string error = CatchGrammarErrors([&] { accepted = impl.matcher.AcceptToken(token); });
  if (!error.empty()) {
    impl.Fail(budget, error);
    return false;
  }
  if (accepted) impl.accepted.push_back(token);
  return accepted;
}

void GrammarMatcher::Rollback(int32_t n) {
  CHECK(n >= 0 && n <= num_accepted(), "roll back {} of {} tokens", n, num_accepted());
  if (n == 0) return;
  Impl& impl = *impl_;
  impl.accepted.resize(impl.accepted.size() - static_cast<size_t>(n));
  if (impl.accepted.size() < impl.forced_at) impl.forced.clear();
  if (impl.status.ok() || impl.accepted.size() >= impl.failed_at) {
    impl.matcher.Rollback(n);
    return;
  }
  // It failed on a path that was not taken.
  impl.status = absl::OkStatus();
  impl.Restart();
}

int32_t GrammarMatcher::num_accepted() const {
  return static_cast<int32_t>(impl_->accepted.size());
}

bool GrammarMatcher::IsTerminated() const { return impl_->matcher.IsTerminated(); }
bool GrammarMatcher::CanEnd() const { return impl_->matcher.IsCompleted(); }

bool GrammarMatcher::MustEnd() {
  Impl& impl = *impl_;
  if (impl.matcher.IsTerminated()) return true;
  if (!impl.status.ok() || !impl.matcher.IsCompleted()) return false;
  impl.scratch.assign(MaskWords(vocab_size()), 0);
  if (!impl.TryFill(impl.scratch)) return false;
  for (const TokenId id : impl.stop_ids) {
    impl.scratch[id / 32] &= ~static_cast<int32_t>(1u << (id % 32));
  }
  return std::all_of(impl.scratch.begin(), impl.scratch.end(),
                     [](int32_t word) { return word == 0; });
}

std::string GrammarMatcher::ForcedText() {
  Impl& impl = *impl_;
  if (!impl.status.ok() || impl.matcher.IsTerminated()) return {};
  // What is left of the last one, if the tokens since are its beginning.
  if (impl.forced_at < impl.accepted.size() && !impl.forced.empty()) {
    const std::vector<std::string>& bytes =
        impl.grammar->impl_->grammar.GetTokenizerInfo().GetDecodedVocab();
    size_t followed = 0;
    for (size_t i = impl.forced_at; i < impl.accepted.size(); ++i) {
      const std::string& token = bytes[static_cast<size_t>(impl.accepted[i])];
      if (impl.forced.compare(followed, token.size(), token) != 0) {
        followed = impl.forced.size();
        break;
      }
      followed += token.size();
    }
    impl.forced.erase(0, followed);
  }
  impl.forced_at = impl.accepted.size();
  if (!impl.forced.empty()) return impl.forced.substr(0, kMostForced);
  GrammarBudget budget(kForcedBytes, kStepTime);
  const std::string error =
      CatchGrammarErrors([&] { impl.forced = impl.matcher.FindJumpForwardString(); });
  if (!error.empty()) impl.Restart();
  return impl.forced.substr(0, kMostForced);
}

const absl::Status& GrammarMatcher::status() const { return impl_->status; }
int32_t GrammarMatcher::vocab_size() const { return impl_->grammar->vocab_size(); }

}  // namespace quire
