#include "scheduler/ngram_proposer.h"

#include <algorithm>

namespace quire {

void NgramProposer::Propose(std::span<DraftRequest> requests) {
  for (DraftRequest& request : requests) {
    request.chains.clear();
    if (request.max_tokens < 1 || request.max_chains < 1) continue;
    const TokenIndex& index = texts_.CatchUp(*request.seq);
    const std::span<const TokenId> text = index.tokens();
    const auto most = static_cast<size_t>(request.max_chains);
    for (size_t level = index.lengths().size(); level-- > 0 && request.chains.size() < most;) {
      found_.clear();
      index.Find(level, text, found_);
      for (const TokenIndex::Occurrence& o : found_) {
        if (request.chains.size() == most) break;
        const TokenId first = text[static_cast<size_t>(o.next)];
        if (first == TokenIndex::kSeparator ||
            std::any_of(request.chains.begin(), request.chains.end(),
                        [&](const DraftChain& c) { return c.tokens[0] == first; })) {
          continue;
        }
        std::vector<TokenId>& chain = request.chains.emplace_back().tokens;
        chain.reserve(static_cast<size_t>(request.max_tokens));
        Continue(text, o.next, request.max_tokens, chain);
      }
    }
  }
}

}  // namespace quire
