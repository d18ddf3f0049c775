#include "kernels/attention_mask.h"

#include <algorithm>
#include <array>

namespace quire::kernels {
namespace {

// Bits [0, n) of 64, n clamped.
uint64_t FirstBits(int64_t n) {
  if (n <= 0) return 0;
  return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
}
// Keys [from, to) of the 64 from first_key on.
uint64_t KeyBits(int64_t from, int64_t to, int32_t first_key) {
  return FirstBits(to - first_key) & ~FirstBits(from - first_key);
}

MaskCoverage Coverage(bool all, bool none) {
  return all ? MaskCoverage::kAll : none ? MaskCoverage::kNone : MaskCoverage::kSome;
}

// A stack machine over postfix terms.
template <typename T>
class Stack {
 public:
  void Push(T x) {
    CHECK(size_ < values_.size(), "mask is nested deeper than {}", values_.size());
    values_[size_++] = x;
  }
  T Pop() {
    CHECK(size_ > 0);
    return values_[--size_];
  }

 private:
  std::array<T, kMaxMaskDepth> values_;
  size_t size_ = 0;
};

}  // namespace

AttentionMask AttentionMask::Everything() { return AttentionMask({.op = Op::kEverything}); }
AttentionMask AttentionMask::Causal() { return AttentionMask({.op = Op::kCausal}); }
AttentionMask AttentionMask::Window(int32_t window) {
  CHECK(window > 0, "window={}", window);
  return AttentionMask({.op = Op::kWindow, .size = window});
}
AttentionMask AttentionMask::Chunk(int32_t chunk) {
  CHECK(chunk > 0, "chunk={}", chunk);
  return AttentionMask({.op = Op::kChunk, .size = chunk});
}
AttentionMask AttentionMask::Prefix(std::span<const int32_t> lengths) {
  return AttentionMask({.op = Op::kPrefix, .data = lengths});
}
AttentionMask AttentionMask::Documents(std::span<const int32_t> ids, int64_t stride) {
  return AttentionMask({.op = Op::kDocuments, .data = ids, .stride = stride});
}
AttentionMask AttentionMask::Where(Function sees, const void* context) {
  return AttentionMask({.op = Op::kWhere, .sees = sees, .context = context});
}
AttentionMask AttentionMask::Of(const AttentionShape& s) {
  AttentionMask mask = s.bidirectional ? Everything() : Causal();
  if (s.chunk > 0) return mask & Chunk(s.chunk);
  if (s.window > 0) return mask & Window(s.window);
  return mask;
}

AttentionMask AttentionMask::Joined(const AttentionMask& a, const AttentionMask& b, Op op) {
  AttentionMask out = a;
  out.terms_.insert(out.terms_.end(), b.terms_.begin(), b.terms_.end());
  out.terms_.push_back({.op = op});
  return out;
}
AttentionMask operator&(const AttentionMask& a, const AttentionMask& b) {
  return AttentionMask::Joined(a, b, AttentionMask::Op::kAnd);
}
AttentionMask operator|(const AttentionMask& a, const AttentionMask& b) {
  return AttentionMask::Joined(a, b, AttentionMask::Op::kOr);
}
AttentionMask AttentionMask::operator~() const {
  AttentionMask out = *this;
  out.terms_.push_back({.op = Op::kNot});
  return out;
}

bool AttentionMask::Sees(int32_t seq, int32_t pos, int32_t key) const {
  return (Row(seq, pos, key) & 1) != 0;
}

uint64_t AttentionMask::Row(int32_t seq, int32_t pos, int32_t first_key) const {
  Stack<uint64_t> stack;
  for (const Term& t : terms_) {
    switch (t.op) {
      case Op::kAnd:
        stack.Push(stack.Pop() & stack.Pop());
        break;
      case Op::kOr:
        stack.Push(stack.Pop() | stack.Pop());
        break;
      case Op::kNot:
        stack.Push(~stack.Pop());
        break;
      default:
        stack.Push(RowOf(t, seq, pos, first_key));
    }
  }
  return stack.Pop();
}

uint64_t AttentionMask::RowOf(const Term& t, int32_t seq, int32_t pos, int32_t first_key) {
  constexpr int64_t kEnd = int64_t{1} << 40;
  const auto i = static_cast<size_t>(seq);
  switch (t.op) {
    case Op::kCausal:
      return KeyBits(0, int64_t{pos} + 1, first_key);
    case Op::kWindow:
      return KeyBits(int64_t{pos} + 1 - t.size, kEnd, first_key);
    case Op::kChunk: {
      const int64_t begin = int64_t{pos / t.size} * t.size;
      return KeyBits(begin, begin + t.size, first_key);
    }
    case Op::kPrefix:
      return KeyBits(0, t.data[i], first_key);
    case Op::kDocuments: {
      uint64_t bits = 0;
      if (pos < 0) return bits;
      const int32_t* const ids = t.data.data() + seq * t.stride;
      const int64_t end = std::min<int64_t>(64, t.stride - first_key);
      for (int64_t k = 0; k < end; ++k) {
        bits |= uint64_t{ids[first_key + k] == ids[pos] ? 1u : 0u} << k;
      }
      return bits;
    }
    case Op::kWhere: {
      uint64_t bits = 0;
      for (int32_t k = 0; k < 64; ++k) {
        bits |= uint64_t{t.sees(t.context, seq, pos, first_key + k) ? 1u : 0u} << k;
      }
      return bits;
    }
    default:
      return ~uint64_t{0};
  }
}

MaskCoverage AttentionMask::Block(const MaskBlock& b) const {
  Stack<MaskCoverage> stack;
  for (const Term& t : terms_) {
    switch (t.op) {
      case Op::kAnd:  // kNone < kSome < kAll
        stack.Push(std::min(stack.Pop(), stack.Pop()));
        break;
      case Op::kOr:
        stack.Push(std::max(stack.Pop(), stack.Pop()));
        break;
      case Op::kNot: {
        const MaskCoverage x = stack.Pop();
        stack.Push(Coverage(x == MaskCoverage::kNone, x == MaskCoverage::kAll));
        break;
      }
      default:
        stack.Push(BlockOf(t, b));
    }
  }
  return stack.Pop();
}

MaskCoverage AttentionMask::BlockOf(const Term& t, const MaskBlock& b) {
  const int32_t last_pos = b.end_pos - 1;
  const int32_t last_key = b.end_key - 1;
  switch (t.op) {
    case Op::kCausal:
      return Coverage(last_key <= b.first_pos, b.first_key > last_pos);
    case Op::kWindow:
      return Coverage(b.first_key > int64_t{last_pos} - t.size,
                      last_key <= int64_t{b.first_pos} - t.size);
    case Op::kChunk: {
      const int32_t p0 = b.first_pos / t.size;
      const int32_t p1 = last_pos / t.size;
      const int32_t k0 = b.first_key / t.size;
      const int32_t k1 = last_key / t.size;
      return Coverage(p0 == p1 && k0 == k1 && p0 == k0, k1 < p0 || k0 > p1);
    }
    case Op::kPrefix: {
      const int32_t n = t.data[static_cast<size_t>(b.seq)];
      return Coverage(last_key < n, b.first_key >= n);
    }
    case Op::kDocuments: {
      if (b.end_pos <= 0) return MaskCoverage::kNone;
      const int32_t* const ids = t.data.data() + b.seq * t.stride;
      const auto [p0, p1] = std::minmax_element(ids + std::max(0, b.first_pos), ids + b.end_pos);
      const auto [k0, k1] = std::minmax_element(ids + b.first_key, ids + b.end_key);
      return Coverage(b.first_pos >= 0 && *p0 == *p1 && *k0 == *k1 && *p0 == *k0,
                      *k1 < *p0 || *k0 > *p1);
    }
    case Op::kWhere:
      return MaskCoverage::kSome;
    default:
      return MaskCoverage::kAll;
  }
}

}  // namespace quire::kernels
