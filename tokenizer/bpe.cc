#include "tokenizer/bpe.h"

#include <algorithm>

#include "tokenizer/byte_level.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

// Orders a max-heap so that its front is the lowest rank, leftmost first.
bool Later(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.pos > b.pos;
}

void AddSymbol(TokenId id, std::vector<BpeScratch::Symbol>& symbols) {
  const auto pos = static_cast<int32_t>(symbols.size());
  symbols.push_back({id, pos - 1, pos + 1});
}

}  // namespace

absl::StatusOr<Bpe> Bpe::Create(
    const Vocabulary* vocabulary,
    const std::vector<std::pair<std::string_view, std::string_view>>& merges, BpeOptions options) {
  Bpe bpe;
  bpe.vocabulary_ = vocabulary;
  bpe.options_ = options;
  if (merges.size() > static_cast<size_t>(INT32_MAX)) {
    return InvalidArgument("merges has {} entries, limit is {}", merges.size(), INT32_MAX);
  }
  bpe.merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view left_text = merges[rank].first;
    const std::string_view right_text = merges[rank].second;
    const std::optional<TokenId> left = vocabulary->Find(left_text);
    const std::optional<TokenId> right = vocabulary->Find(right_text);
    const std::optional<TokenId> merged =
        vocabulary->Find(std::string(left_text) + std::string(right_text));
    if (!left || !right || !merged) {
      const std::string_view which = !left ? "left part" : !right ? "right part" : "result";
      return InvalidArgument("merges[{}]='{} {}' has a {} that is not in the vocabulary", rank,
                             left_text, right_text, which);
    }
    // A pair that is listed twice keeps its last rank, as in `tokenizers`.
    bpe.merges_[Pair(*left, *right)] = {static_cast<int32_t>(rank), *merged};
  }
  for (int byte = 0; byte < 256; ++byte) {
    std::string symbol;
    AppendUtf8(ByteToChar(static_cast<uint8_t>(byte)), symbol);
    bpe.byte_symbols_[byte] = vocabulary->Find(symbol).value_or(-1);
    bpe.fallback_tokens_[byte] = vocabulary->Find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
  return bpe;
}

void Bpe::EncodeBytes(std::string_view piece, BpeScratch& scratch,
                      std::vector<TokenId>& out) const {
  if (options_.byte_fallback || options_.unk) {
    // Unknown bytes are rare enough to take the general way.
    EncodeChars(MapBytes(piece), scratch, out);
    return;
  }
  if (options_.ignore_merges) {
    if (const auto id = vocabulary_->Find(MapBytes(piece))) {
      out.push_back(*id);
      return;
    }
  }
  scratch.symbols.clear();
  for (const char byte : piece) {
    const TokenId id = byte_symbols_[static_cast<uint8_t>(byte)];
    if (id >= 0) AddSymbol(id, scratch.symbols);
  }
  MergeAll(scratch, out);
}

void Bpe::EncodeChars(std::string_view piece, BpeScratch& scratch,
                      std::vector<TokenId>& out) const {
  if (options_.ignore_merges) {
    if (const auto id = vocabulary_->Find(piece)) {
      out.push_back(*id);
      return;
    }
  }
  scratch.symbols.clear();
  bool unk_pending = false;
  for (size_t pos = 0; pos < piece.size();) {
    const uint32_t length = DecodeChar(piece, pos).length;
    const std::string_view symbol = piece.substr(pos, length);
    pos += length;
    if (const auto id = vocabulary_->Find(symbol)) {
      if (unk_pending) AddSymbol(*options_.unk, scratch.symbols);
      unk_pending = false;
      AddSymbol(*id, scratch.symbols);
      continue;
    }
    if (options_.byte_fallback && std::all_of(symbol.begin(), symbol.end(), [&](char b) {
          return fallback_tokens_[static_cast<uint8_t>(b)] >= 0;
        })) {
      for (const char b : symbol) {
        AddSymbol(fallback_tokens_[static_cast<uint8_t>(b)], scratch.symbols);
      }
      continue;
    }
    if (!options_.unk) continue;
    if (unk_pending && !options_.fuse_unk) AddSymbol(*options_.unk, scratch.symbols);
    unk_pending = true;
  }
  if (unk_pending) AddSymbol(*options_.unk, scratch.symbols);
  MergeAll(scratch, out);
}

void Bpe::PushCandidate(BpeScratch& scratch, int32_t left) const {
  const BpeScratch::Symbol& symbol = scratch.symbols[left];
  if (symbol.next < 0) return;
  const auto it = merges_.find(Pair(symbol.id, scratch.symbols[symbol.next].id));
  if (it == merges_.end()) return;
  scratch.heap.push_back({it->second.rank, left, it->second.merged});
  ++scratch.num_candidates;
}

void Bpe::MergeAll(BpeScratch& scratch, std::vector<TokenId>& out) const {
  std::vector<BpeScratch::Symbol>& symbols = scratch.symbols;
  std::vector<BpeScratch::Candidate>& heap = scratch.heap;
  if (symbols.empty()) return;
  symbols.back().next = -1;
  heap.clear();
  for (size_t pos = 0; pos < symbols.size(); ++pos) {
    PushCandidate(scratch, static_cast<int32_t>(pos));
  }
  std::make_heap(heap.begin(), heap.end(), Later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), Later);
    const BpeScratch::Candidate top = heap.back();
    heap.pop_back();
    BpeScratch::Symbol& left = symbols[top.pos];
    if (left.id < 0 || left.next < 0) continue;  // merged into its left neighbour; or the last
    // The pair may have changed since. It counts if it still makes the same token.
    const auto it = merges_.find(Pair(left.id, symbols[left.next].id));
    if (it == merges_.end() || it->second.merged != top.merged) continue;
    BpeScratch::Symbol& right = symbols[left.next];
    left.id = top.merged;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].prev = top.pos;
    for (const int32_t changed : {left.prev, top.pos}) {
      if (changed < 0) continue;
      const size_t before = heap.size();
      PushCandidate(scratch, changed);
      if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), Later);
    }
  }
  for (int32_t pos = 0; pos >= 0; pos = symbols[pos].next) out.push_back(symbols[pos].id);
}

}  // namespace quire
