// kernels/attention_mask.h -- masks as composed functions, and functions that change scores: what
// the backend `flex` is given.
//
//   AttentionMask m = (AttentionMask::Causal() | AttentionMask::Prefix(lengths)) &
//                     AttentionMask::Documents(ids, stride);
//
// A mask answers for one key, for 64 keys of a row at once, and for a block of rows and keys: all,
// none or some of it are seen, so that tiles are skipped or need no masking. Positions are those
// in the sequence; `seq` is its index in the batch, by which masks with data per sequence find
// theirs. Values, copied freely; spans and contexts are not owned. Any thread.
//
// Source of the idea: FlexAttention (arXiv:2412.05496).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"

namespace quire::kernels {

enum class MaskCoverage : uint8_t { kNone, kSome, kAll };

// Query positions [first_pos, end_pos) against key positions [first_key, end_key); not empty.
struct MaskBlock {
  int32_t seq = 0;
  int32_t first_pos = 0, end_pos = 0;
  int32_t first_key = 0, end_key = 0;
};

class AttentionMask {
 public:
  using Function = bool (*)(const void* context, int32_t seq, int32_t pos, int32_t key);

  static AttentionMask Everything();
  static AttentionMask Causal();                // key <= pos
  static AttentionMask Window(int32_t window);  // key > pos - window
  static AttentionMask Chunk(int32_t chunk);    // key / chunk == pos / chunk
  // The first lengths[seq] keys: `Causal() | Prefix(n)` is bidirectional in the prefix.
  static AttentionMask Prefix(std::span<const int32_t> lengths);
  // ids[seq * stride + position], at least as long as the context: pos and key have equal ids.
  // Negative positions (queries without a key of their own) have none.
  static AttentionMask Documents(std::span<const int32_t> ids, int64_t stride);
  static AttentionMask Where(Function sees, const void* context);
  // What a shape's window, chunk and bidirectional say.
  static AttentionMask Of(const AttentionShape& shape);

  friend AttentionMask operator&(const AttentionMask& a, const AttentionMask& b);
  friend AttentionMask operator|(const AttentionMask& a, const AttentionMask& b);
  AttentionMask operator~() const;

  bool Sees(int32_t seq, int32_t pos, int32_t key) const;
  // Bit i: sees first_key + i.
  uint64_t Row(int32_t seq, int32_t pos, int32_t first_key) const;
  // kSome may be said of a block that is all or none, as of every block of Where.
  MaskCoverage Block(const MaskBlock& block) const;

 private:
  enum class Op : uint8_t {
    kEverything,
    kCausal,
    kWindow,
    kChunk,
    kPrefix,
    kDocuments,
    kWhere,
    kAnd,
    kOr,
    kNot
  };
  // A term in postfix order.
  struct Term {
    Op op = Op::kEverything;
    int32_t size = 0;  // of window, chunk
    std::span<const int32_t> data;
    int64_t stride = 0;
    Function sees = nullptr;
    const void* context = nullptr;
  };

  explicit AttentionMask(Term term) : terms_{term} {}
  static AttentionMask Joined(const AttentionMask& a, const AttentionMask& b, Op op);
  static uint64_t RowOf(const Term& t, int32_t seq, int32_t pos, int32_t first_key);
  static MaskCoverage BlockOf(const Term& t, const MaskBlock& b);

  std::vector<Term> terms_;
};

// Deepest nesting of operators that a mask may have; more is a bug (CHECK).
inline constexpr int32_t kMaxMaskDepth = 16;

// One row's scores, as a score mod is told.
struct ScoreRow {
  int32_t seq = 0;
  int32_t token = 0;  // row of q
  int32_t pos = 0;
  int32_t head = 0;
};

// Changes scores[i] of key first_key + i in place, for each i by itself; also of keys that are
// masked or behind the context, whose scores may be anything and are dropped afterwards. -inf
// makes a key weigh nothing. Called by many threads at once.
struct ScoreMod {
  using Function = void (*)(const void* context, const ScoreRow& row, int32_t first_key,
                            std::span<float> scores);
  Function apply = nullptr;
  const void* context = nullptr;
};

}  // namespace quire::kernels
