// kernels/attention_kv.cc -- writing keys and values into pages, and how many bytes they take
// there.
#include <algorithm>

#include "kernels/attention_common.h"
#include "kernels/kv_layout.h"

namespace quire::kernels {
namespace {

constexpr int64_t kTokensPerTask = 32;

size_t PageBytes(const AttentionShape& s, int64_t dim, int32_t page_size) {
  const size_t count = static_cast<size_t>(s.num_kv_heads) * static_cast<size_t>(dim) *
                       static_cast<size_t>(page_size);
  return (BytesFor(s.kv_dtype, count) + 63) / 64 * 64;
}

template <DType kType>
void Put(std::byte* p, int64_t i, float x) {
  if constexpr (kType == DType::kF32) {
    reinterpret_cast<float*>(p)[i] = x;
  } else {
    reinterpret_cast<uint16_t*>(p)[i] = kType == DType::kBF16 ? FloatToBF16(x) : FloatToF16(x);
  }
}

template <DType kType>
void WriteToken(const AttentionMetadata& m, const AttentionShape& s, const KvWrite& w,
                int64_t token) {
  const int64_t slot = m.write_table[static_cast<size_t>(token)];
  DCHECK(slot >= 0, "write slot {} of token {}", slot, token);
  const int64_t page = slot / m.page_size;
  const int64_t offset = slot % m.page_size;
  std::byte* const k_page = PageAddress(w.k_base, page, w.page_stride);
  std::byte* const v_page = PageAddress(w.v_base, page, w.page_stride);
  const float* k = w.k + token * s.num_kv_heads * s.head_dim;
  const float* v = w.v + token * s.num_kv_heads * s.head_dim_v;
  constexpr int64_t kStep = kType == DType::kBF16 ? 2 : 1;  // from one value to the next
  for (int64_t h = 0; h < s.num_kv_heads; ++h) {
    int64_t at = KeyIndex(s, m.page_size, h, 0, offset);
    for (int64_t d = 0; d < s.head_dim; d += kStep, at += kStep * m.page_size) {
      Put<kType>(k_page, at, k[d]);
      if constexpr (kStep == 2) Put<kType>(k_page, at + 1, d + 1 < s.head_dim ? k[d + 1] : 0.0f);
    }
    at = ValueIndex(s, m.page_size, h, offset, 0);
    for (int64_t d = 0; d < s.head_dim_v; ++d, at += kStep) Put<kType>(v_page, at, v[d]);
    k += s.head_dim;
    v += s.head_dim_v;
  }
}

}  // namespace

size_t KeyPageBytes(const AttentionShape& s, int32_t page_size) {
  return PageBytes(s, KeyDims(s), page_size);
}
size_t ValuePageBytes(const AttentionShape& s, int32_t page_size) {
  return PageBytes(s, s.head_dim_v, page_size);
}

void WriteKv(const AttentionMetadata& m, const AttentionShape& s, const KvWrite& w,
             ThreadPool& pool) {
  const auto write = s.kv_dtype == DType::kF32    ? WriteToken<DType::kF32>
                     : s.kv_dtype == DType::kBF16 ? WriteToken<DType::kBF16>
                                                  : WriteToken<DType::kF16>;
  const int64_t tasks = (m.num_tokens + kTokensPerTask - 1) / kTokensPerTask;
  pool.ParallelFor(tasks, [&](int64_t task, int32_t) {
    const int64_t end = std::min<int64_t>(m.num_tokens, (task + 1) * kTokensPerTask);
    for (int64_t i = task * kTokensPerTask; i < end; ++i) write(m, s, w, i);
  });
}

void ReadKv(const AttentionMetadata& m, const AttentionShape& s, const AttentionArgs& a,
            int32_t seq, int32_t kv_head, int32_t first, int32_t count, float* k, float* v) {
  const auto value = [&s](const std::byte* page, int64_t i) {
    if (s.kv_dtype == DType::kF32) return reinterpret_cast<const float*>(page)[i];
    const uint16_t half = reinterpret_cast<const uint16_t*>(page)[i];
    return s.kv_dtype == DType::kBF16 ? BF16ToFloat(half) : F16ToFloat(half);
  };
  const int64_t ps = m.page_size;
  const int32_t* const table =
      &m.read_table[static_cast<size_t>(seq) * static_cast<size_t>(m.max_pages_per_seq)];
  for (int32_t j = first; j < first + count; ++j) {
    const int64_t page = table[j / m.page_size];
    const int64_t slot = j % ps;
    const std::byte* const k_page = PageAddress(a.k_base, page, a.page_stride);
    const std::byte* const v_page = PageAddress(a.v_base, page, a.page_stride);
    for (int64_t d = 0; d < s.head_dim && k != nullptr; ++d) {
      *k++ = value(k_page, KeyIndex(s, ps, kv_head, d, slot));
    }
    for (int64_t d = 0; d < s.head_dim_v && v != nullptr; ++d) {
      *v++ = value(v_page, ValueIndex(s, ps, kv_head, slot, d));
    }
  }
}

}  // namespace quire::kernels
