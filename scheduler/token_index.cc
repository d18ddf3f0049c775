#include "scheduler/token_index.h"

#include <algorithm>
#include <array>

#include "base/status.h"

namespace quire {
namespace {

constexpr size_t kMaxLevels = 16;
constexpr size_t kLeastTokens = 64;

// A text is compared with what it was over so many last tokens: commits append, a stop cuts. A
// sequence that changed further back would be guessed at by its old text, which is slow, not wrong.
constexpr size_t kCheckedTail = 64;

int32_t MatchLength(std::span<const TokenId> a, std::span<const TokenId> b, int32_t most) {
  const auto limit = std::min({a.size(), b.size(), static_cast<size_t>(most)});
  size_t n = 0;
  while (n < limit && a[a.size() - 1 - n] == b[b.size() - 1 - n]) ++n;
  return static_cast<int32_t>(n);
}

}  // namespace

TokenIndex::TokenIndex(const MatchOptions& options) : options_(options) {
  CHECK(options.min_match >= 1 && options.min_match <= options.max_match &&
            options.max_match <= options.max_compare && options.max_occurrences >= 1,
        "match lengths {} to {}, compared to {}, {} occurrences", options.min_match,
        options.max_match, options.max_compare, options.max_occurrences);
  for (int64_t n = options.min_match; n <= options.max_match && lengths_.size() < kMaxLevels;
       n *= 2) {
    lengths_.push_back(static_cast<int32_t>(n));
  }
}

size_t TokenIndex::Buckets(std::span<const TokenId> text, std::span<uint32_t> buckets) const {
  uint64_t hash = 0;
  int32_t n = 0;
  for (size_t level = 0; level < lengths_.size(); ++level) {
    if (static_cast<size_t>(lengths_[level]) > text.size()) return level;
    for (; n < lengths_[level]; ++n) {
      const TokenId token = text[text.size() - 1 - static_cast<size_t>(n)];
      hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    buckets[level] = static_cast<uint32_t>((hash * 0xBF58476D1CE4E5B9u) >> (64 - bucket_bits_));
  }
  return lengths_.size();
}

// Two buckets per token and length; doubling them links everything again.
void TokenIndex::Reserve(size_t num_tokens) {
  const size_t had = bucket_bits_ == 0 ? 0 : (size_t{1} << bucket_bits_) / 2;
  if (num_tokens <= had) return;
  size_t room = std::max(had, kLeastTokens);
  while (room < num_tokens) room *= 2;
  bucket_bits_ = 1;
  while ((size_t{1} << bucket_bits_) < 2 * room) ++bucket_bits_;
  heads_.assign(lengths_.size() << bucket_bits_, kNone);
  for (size_t p = 0; p < tokens_.size(); ++p) {
    if (links_[p * lengths_.size()] != kNotLinked) Link(p);
  }
}

void TokenIndex::Link(size_t position) {
  std::array<uint32_t, kMaxLevels> buckets;
  const size_t fitting = Buckets(tokens().first(position + 1), buckets);
  int32_t* const links = &links_[position * lengths_.size()];
  for (size_t level = 0; level < lengths_.size(); ++level) {
    links[level] = kNone;
    if (level >= fitting) continue;
    int32_t& head = heads_[(level << bucket_bits_) + buckets[level]];
    links[level] = head;
    head = static_cast<int32_t>(position);
  }
}

void TokenIndex::Append(std::span<const TokenId> fresh) {
  Reserve(tokens_.size() + fresh.size());
  for (const TokenId token : fresh) {
    const size_t p = tokens_.size();
    tokens_.push_back(token);
    links_.resize(links_.size() + lengths_.size(), kNotLinked);
    if (p > 0 && tokens_[p - 1] != kSeparator) Link(p - 1);
  }
}

void TokenIndex::AppendContext(std::span<const TokenId> context) {
  Reserve(tokens_.size() + context.size());
  tokens_.insert(tokens_.end(), context.begin(), context.end());
  links_.resize(tokens_.size() * lengths_.size(), kNotLinked);
}

void TokenIndex::Truncate(size_t size) {
  CHECK(size <= tokens_.size(), "truncated to {} of {} tokens", size, tokens_.size());
  std::array<uint32_t, kMaxLevels> buckets;
  // The last token that stays has nothing behind it any more. Last in, first out, so that each head
  // is the position that goes.
  const size_t first = size > 0 ? size - 1 : 0;
  for (size_t p = tokens_.size(); p-- > first;) {
    int32_t* const links = &links_[p * lengths_.size()];
    if (links[0] == kNotLinked) continue;
    const size_t fitting = Buckets(tokens().first(p + 1), buckets);
    for (size_t level = 0; level < fitting; ++level) {
      int32_t& head = heads_[(level << bucket_bits_) + buckets[level]];
      DCHECK(head == static_cast<int32_t>(p));
      head = links[level];
    }
    links[0] = kNotLinked;
  }
  tokens_.resize(size);
  links_.resize(size * lengths_.size());
}

void TokenIndex::Find(size_t level, std::span<const TokenId> text,
                      std::vector<Occurrence>& found) const {
  const int32_t n = lengths_[level];
  if (bucket_bits_ == 0 || static_cast<size_t>(n) > text.size()) return;
  std::array<uint32_t, kMaxLevels> buckets;
  Buckets(text.last(std::min(text.size(), static_cast<size_t>(n))), buckets);
  const int32_t longer = level + 1 < lengths_.size() ? lengths_[level + 1] : INT32_MAX;
  const auto begin = static_cast<std::ptrdiff_t>(found.size());
  int32_t seen = 0;
  int32_t steps = 4 * options_.max_occurrences;
  for (int32_t p = heads_[(level << bucket_bits_) + buckets[level]];
       p >= 0 && seen < options_.max_occurrences && steps > 0;
       p = links_[static_cast<size_t>(p) * lengths_.size() + level], --steps) {
    const int32_t match =
        MatchLength(tokens().first(static_cast<size_t>(p) + 1), text, options_.max_compare);
    if (match < n) continue;
    ++seen;
    if (match >= longer) continue;
    const auto longest_first = [](int32_t m, const Occurrence& o) { return m > o.match_len; };
    const auto at = std::upper_bound(found.begin() + begin, found.end(), match, longest_first);
    found.insert(at, {p + 1, match});
  }
}

size_t TokenIndex::bytes() const {
  return tokens_.capacity() * sizeof(TokenId) +
         (heads_.capacity() + links_.capacity()) * sizeof(int32_t);
}

const TokenIndex& SequenceTexts::CatchUp(const Sequence& seq) {
  TokenIndex& index = texts_.try_emplace(seq.id, options_).first->second;
  const std::span<const TokenId> now = seq.tokens;
  const std::span<const TokenId> was = index.tokens();
  const size_t both = std::min(was.size(), now.size());
  const size_t tail = std::min(both, kCheckedTail);
  size_t same = both;
  if (!std::equal(now.begin() + static_cast<std::ptrdiff_t>(both - tail),
                  now.begin() + static_cast<std::ptrdiff_t>(both),
                  was.begin() + static_cast<std::ptrdiff_t>(both - tail))) {
    same = static_cast<size_t>(std::mismatch(now.begin(), now.end(), was.begin(), was.end()).first -
                               now.begin());
  }
  if (same < was.size()) index.Truncate(same);
  index.Append(now.subspan(same));
  return index;
}

void Continue(std::span<const TokenId> text, int32_t next, int32_t max_tokens,
              std::vector<TokenId>& continuation) {
  const auto first = static_cast<size_t>(next);
  const size_t begin = continuation.size();
  const size_t period = text.size() - first;
  for (size_t i = 0; i < static_cast<size_t>(max_tokens); ++i) {
    const TokenId token = i < period ? text[first + i] : continuation[begin + i - period];
    if (token == TokenIndex::kSeparator) return;
    continuation.push_back(token);
  }
}

}  // namespace quire
