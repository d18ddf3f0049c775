#include "scheduler/suffix_proposer.h"

#include <algorithm>

#include "base/status.h"

namespace quire {
namespace {

int64_t SizeOf(const std::unique_ptr<TokenIndex>& index) {
  return index == nullptr ? 0 : static_cast<int64_t>(index->size());
}

bool BeginsWith(const DraftRequest& request, TokenId first) {
  return std::any_of(request.chains.begin(), request.chains.end(),
                     [&](const DraftChain& c) { return c.tokens[0] == first; });
}

}  // namespace

int64_t SuffixProposer::Scope::num_tokens() const {
  return kScopeTokens + SizeOf(recent) + SizeOf(older);
}

SuffixProposer::SuffixProposer(const SuffixOptions& options)
    : options_(options), texts_(options.match) {
  CHECK(options.max_tokens >= 2 * kBlockTokens, "max_tokens={} below {}", options.max_tokens,
        2 * kBlockTokens);
}

SuffixProposer::Scope* SuffixProposer::Find(const Sequence& seq) {
  const Request& request = *seq.request;
  if (request.bypass_prefix_cache) return nullptr;
  const auto it = scopes_.find(ScopeKey(request.tenant, request.cache_salt));
  if (it == scopes_.end()) return nullptr;
  Scope* const scope = it->second.get();
  by_use_.splice(by_use_.end(), by_use_, scope->by_use);
  return scope;
}

void SuffixProposer::Propose(std::span<DraftRequest> requests) {
  for (DraftRequest& request : requests) {
    request.chains.clear();
    if (request.max_tokens < 1 || request.max_chains < 1) continue;
    const TokenIndex& own = texts_.CatchUp(*request.seq);
    const Scope* const scope = Find(*request.seq);
    const TokenIndex* const searched[] = {&own, scope != nullptr ? scope->recent.get() : nullptr,
                                          scope != nullptr ? scope->older.get() : nullptr};
    const auto most = static_cast<size_t>(request.max_chains);
    for (size_t level = own.lengths().size(); level-- > 0 && request.chains.size() < most;) {
      votes_.clear();
      for (const TokenIndex* index : searched) {
        if (index == nullptr) continue;
        found_.clear();
        index->Find(level, own.tokens(), found_);
        for (const TokenIndex::Occurrence& at : found_) {
          // Longest match first; the order in which they were found breaks ties.
          const auto after = std::upper_bound(
              votes_.begin(), votes_.end(), at.match_len,
              [](int32_t match_len, const Vote& v) { return match_len > v.at.match_len; });
          votes_.insert(after, {.index = index, .own = index == &own, .at = at});
        }
      }
      for (auto begin = votes_.begin(); begin != votes_.end() && request.chains.size() < most;) {
        auto end = begin;
        while (end != votes_.end() && end->at.match_len == begin->at.match_len) ++end;
        AddChains({begin, end}, request);
        begin = end;
      }
    }
  }
}

// The occurrences of one match length: a chain for each first token, by votes.
void SuffixProposer::AddChains(std::span<Vote> votes, DraftRequest& request) const {
  // What occurrence v goes on with at `offset`; a sequence's own text repeats itself behind its
  // end.
  const auto token_at = [](const Vote& v, size_t offset, std::span<const TokenId> chain) {
    const std::span<const TokenId> text = v.index->tokens();
    const size_t i = static_cast<size_t>(v.at.next) + offset;
    if (i < text.size()) return text[i];
    return v.own ? chain[i - text.size()] : TokenIndex::kSeparator;
  };
  // The most frequent token at `offset` of the occurrences that agree, the first of equals.
  const auto elect = [&](size_t offset, std::span<const TokenId> chain, bool fresh) {
    TokenId best = TokenIndex::kSeparator;
    int64_t best_count = 0;
    for (const Vote& v : votes) {
      if (!v.agrees) continue;
      const TokenId token = token_at(v, offset, chain);
      if (token == TokenIndex::kSeparator || token == best) continue;
      if (fresh && BeginsWith(request, token)) continue;
      const int64_t count = std::count_if(votes.begin(), votes.end(), [&](const Vote& w) {
        return w.agrees && token_at(w, offset, chain) == token;
      });
      if (count > best_count) {
        best = token;
        best_count = count;
      }
    }
    return best;
  };
  while (request.chains.size() < static_cast<size_t>(request.max_chains)) {
    for (Vote& v : votes) v.agrees = true;
    const TokenId first = elect(0, {}, /*fresh=*/true);
    if (first == TokenIndex::kSeparator) return;
    std::vector<TokenId>& chain = request.chains.emplace_back().tokens;
    chain.reserve(static_cast<size_t>(request.max_tokens));
    TokenId next = first;
    while (next != TokenIndex::kSeparator) {
      for (Vote& v : votes) v.agrees = v.agrees && token_at(v, chain.size(), chain) == next;
      chain.push_back(next);
      if (chain.size() == static_cast<size_t>(request.max_tokens)) break;
      next = elect(chain.size(), chain, /*fresh=*/false);
    }
  }
}

void SuffixProposer::OnTokens(const Sequence& seq, std::span<const TokenId> fresh) {
  const Request& request = *seq.request;
  if (request.bypass_prefix_cache || fresh.empty()) return;
  const auto [it, is_new] = live_.try_emplace(seq.id);
  Live& live = it->second;
  if (is_new) {
    live.scope = {request.tenant, request.cache_salt};
    const std::span<const TokenId> tokens = seq.tokens;
    CHECK(fresh.size() <= tokens.size(), "{} fresh tokens of {}", fresh.size(), tokens.size());
    const std::span<const TokenId> before = tokens.first(tokens.size() - fresh.size());
    const auto context =
        before.last(std::min(before.size(), static_cast<size_t>(options_.match.max_compare)));
    live.pending.assign(context.begin(), context.end());
    live.num_context = context.size();
  }
  live.pending.insert(live.pending.end(), fresh.begin(), fresh.end());
  if (live.pending.size() - live.num_context >= kBlockTokens) HandIn(live);
}

void SuffixProposer::OnEnd(SequenceId seq) {
  texts_.Forget(seq);
  const auto it = live_.find(seq);
  if (it == live_.end()) return;
  HandIn(it->second);
  live_.erase(it);
}

// What is left is the context of the next block.
void SuffixProposer::HandIn(Live& live) {
  std::span<const TokenId> pending = live.pending;
  if (pending.size() == live.num_context) return;
  std::unique_ptr<Scope>& slot = scopes_[live.scope];
  if (slot == nullptr) {
    slot = std::make_unique<Scope>();
    slot->key = live.scope;
    slot->by_use = by_use_.insert(by_use_.end(), slot.get());
    num_tokens_ += kScopeTokens;
  }
  Scope& scope = *slot;
  by_use_.splice(by_use_.end(), by_use_, scope.by_use);
  // Many drafts may be accepted at once, so a block is whatever has come.
  const auto most = static_cast<size_t>(options_.max_tokens / 2 - kScopeTokens);
  if (pending.size() + 1 > most) {
    pending = pending.last(most - 1);
    live.num_context = std::min(live.num_context, pending.size() - 1);
  }
  MakeRoom(scope, static_cast<int32_t>(pending.size()) + 1);
  if (scope.recent == nullptr) scope.recent = std::make_unique<TokenIndex>(options_.match);
  const TokenId separator = TokenIndex::kSeparator;
  scope.recent->AppendContext({&separator, 1});
  scope.recent->AppendContext(pending.first(live.num_context));
  scope.recent->Append(pending.subspan(live.num_context));
  num_tokens_ += static_cast<int64_t>(pending.size()) + 1;
  const size_t context = std::min(pending.size(), static_cast<size_t>(options_.match.max_compare));
  live.pending = {pending.end() - static_cast<std::ptrdiff_t>(context), pending.end()};
  live.num_context = context;
}

void SuffixProposer::MakeRoom(Scope& scope, int32_t num_tokens) {
  const int64_t half = options_.max_tokens / 2 - kScopeTokens;
  // By halves: the older one is dropped as a whole, so nothing is ever taken out of an index.
  if (SizeOf(scope.recent) + num_tokens > half) {
    num_tokens_ -= SizeOf(scope.older);
    scope.older = std::move(scope.recent);
  }
  while (num_tokens_ + num_tokens > options_.max_tokens && by_use_.front() != &scope) {
    Drop(*by_use_.front());
  }
  if (num_tokens_ + num_tokens > options_.max_tokens) {
    num_tokens_ -= SizeOf(scope.older);
    scope.older.reset();
  }
}

void SuffixProposer::Drop(Scope& scope) {
  num_tokens_ -= scope.num_tokens();
  by_use_.erase(scope.by_use);
  scopes_.erase(ScopeKey(scope.key));  // a copy: the key dies with the scope
}

void SuffixProposer::Flush(const std::string* cache_salt) {
  for (auto it = by_use_.begin(); it != by_use_.end();) {
    Scope& scope = **it++;
    if (cache_salt == nullptr || scope.key.second == *cache_salt) Drop(scope);
  }
}

}  // namespace quire
