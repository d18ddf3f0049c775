// What an operation can't do without: bytes that must move and operations that must be done. A
// kernel that does more (an expanded tile, a second read) shows as a lower rate, as it should.
#include <algorithm>

#include "kernels/profile/op_profile.h"

namespace quire::kernels {
namespace {

constexpr double kFloat = sizeof(float);

// What multiplies the rows with this weight.
MathType MathTypeOf(const PackedWeight& w) {
  return w.compute() == ComputeType::kI8     ? MathType::kI8
         : w.compute() == ComputeType::kBF16 ? MathType::kBF16
                                             : MathType::kF32;
}

}  // namespace

OpCost& OpCost::operator+=(const OpCost& other) {
  weight_bytes += other.weight_bytes;
  kv_bytes += other.kv_bytes;
  activation_bytes += other.activation_bytes;
  for (size_t i = 0; i < kNumMathTypes; ++i) math[i] += other.math[i];
  return *this;
}

void OpProfile::Begin(Op op, const RowWork& work) {
  const auto values = static_cast<double>(work.rows * work.dim);
  OpCost cost{.activation_bytes = kFloat * work.passes * values};
  cost.math[static_cast<size_t>(MathType::kF32)] = work.ops * values;
  BeginCost(op, cost);
}

void OpProfile::Begin(Op op, std::span<const LinearJob> jobs, int64_t m) {
  OpCost cost;
  const float* x = nullptr;
  for (const LinearJob& job : jobs) {
    const auto n = static_cast<double>(job.w->n());
    const auto k = static_cast<double>(job.w->k());
    const auto rows = static_cast<double>(m);
    cost.weight_bytes += static_cast<double>(job.w->bytes());
    cost.activation_bytes += kFloat * rows * n * (job.residual != nullptr ? 2 : 1);
    if (job.x != x) cost.activation_bytes += kFloat * rows * k;  // jobs that share x read it once
    x = job.x;
    cost.math[static_cast<size_t>(MathTypeOf(*job.w))] += 2 * rows * n * k;
  }
  BeginCost(op, cost);
}

void OpProfile::Begin(Op op, const AttentionMetadata& m, const AttentionShape& s) {
  BeginCost(Op::kProfile, {});
  BeginCost(op, AttentionCost(m, s));
}

// Keys and values of a page that several sequences see count once. Softmax is not counted.
OpCost OpProfile::AttentionCost(const AttentionMetadata& m, const AttentionShape& s) {
  ++seen_mark_;
  int64_t keys = 0;   // to be read
  int64_t pairs = 0;  // of a query token and a key that it sees
  for (int32_t i = 0; i < m.num_seqs; ++i) {
    const auto seq = static_cast<size_t>(i);
    const int32_t num_q = m.cu_seqlens_q[seq + 1] - m.cu_seqlens_q[seq];
    if (num_q == 0) continue;
    const int32_t len = m.seqlens_k[seq];
    const int32_t first_pos = len - num_q;
    int32_t first = len, end = 0;
    for (int32_t q = 0; q < num_q; ++q) {
      const int32_t begin = FirstVisible(s, first_pos + q);
      const int32_t stop = EndVisible(s, first_pos + q, len);
      if (stop <= begin) continue;
      pairs += stop - begin;
      first = std::min(first, begin);
      end = std::max(end, stop);
    }
    for (int32_t k = first; k < end;) {
      const int32_t index = k / m.page_size;
      const int32_t next = std::min(end, (index + 1) * m.page_size);
      const auto page =
          static_cast<size_t>(m.read_table[seq * static_cast<size_t>(m.max_pages_per_seq) +
                                           static_cast<size_t>(index)]);
      if (page >= seen_.size()) seen_.resize(std::max(page + 1, 2 * seen_.size()));
      if (seen_[page] != seen_mark_) keys += next - k;
      seen_[page] = seen_mark_;
      k = next;
    }
  }
  const double dims = static_cast<double>(s.head_dim + s.head_dim_v);
  const double row_dims = dims * s.num_heads;
  OpCost cost;
  const double scales = s.kv_dtype == DType::kI8 ? 4 : 0;  // bytes, of a key and a value
  cost.kv_bytes = static_cast<double>(keys) * s.num_kv_heads *
                  (dims * static_cast<double>(BytesFor(s.kv_dtype, 1)) + scales);
  cost.activation_bytes = kFloat * m.num_tokens * row_dims;
  const MathType type = s.dot == DType::kBF16 ? MathType::kBF16 : MathType::kF32;
  cost.math[static_cast<size_t>(type)] = 2 * static_cast<double>(pairs) * row_dims;
  return cost;
}

}  // namespace quire::kernels
