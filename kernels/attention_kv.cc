// kernels/attention_kv.cc -- writing keys and values into pages, and how many bytes they take
// there.
#include <algorithm>
#include <cmath>

#include "kernels/attention_common.h"
#include "kernels/cpu_isa.h"
#include "kernels/kv_layout.h"

#define QUIRE_BODY "kernels/cpu/kv_write-inl.h"
#include "kernels/cpu/foreach_isa-inl.h"

namespace quire::kernels {
namespace {

constexpr int64_t kTokensPerTask = 16;

size_t RoundUp64(int64_t bytes) { return (static_cast<size_t>(bytes) + 63) / 64 * 64; }

template <DType kType>
void Put(std::byte* p, int64_t i, float x) {
  if constexpr (kType == DType::kF32) {
    reinterpret_cast<float*>(p)[i] = x;
  } else {
    reinterpret_cast<uint16_t*>(p)[i] = FloatToF16(x);
  }
}

// A row's scale as F16: the smallest whose 127-fold reaches the row's largest magnitude.
uint16_t ScaleOf(const float* row, int64_t n) {
  constexpr uint16_t kLargest = 0x7bff;
  constexpr uint16_t kNaN = 0x7e00;
  float max = 0.0f;
  float zero = 0.0f;  // unless a value is NaN or infinite
  for (int64_t i = 0; i < n; ++i) {
    max = std::max(max, std::fabs(row[i]));
    zero += row[i] * 0.0f;
  }
  if (zero != 0.0f) return kNaN;
  uint16_t scale = FloatToF16(max / 127.0f);
  if (scale > kLargest) return kLargest;
  if (F16ToFloat(scale) * 127.0f < max && scale < kLargest) ++scale;
  return scale;
}

// Codes of one row at out[i * stride].
void PutCodes(const float* row, int64_t n, float scale, int8_t* out, int64_t stride) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest even integer
  const float by = scale > 0.0f ? scale : 1.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float x = std::clamp(row[i] / by, -127.0f, 127.0f) + kRound;
    out[i * stride] =
        static_cast<int8_t>(std::bit_cast<int32_t>(x) - std::bit_cast<int32_t>(kRound));
  }
}

// One head's row of `dim` values; codes of a key lie page_size apart, those of a value side by
// side.
void WriteCodes(const float* row, int32_t dim, int32_t page_size, int64_t offset, bool is_key,
                std::byte* head) {
  const uint16_t scale = ScaleOf(row, dim);
  auto* const codes = reinterpret_cast<int8_t*>(head) + (is_key ? offset : offset * dim);
  PutCodes(row, dim, F16ToFloat(scale), codes, is_key ? page_size : 1);
  reinterpret_cast<uint16_t*>(head + int64_t{page_size} * dim)[offset] = scale;
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
  for (int64_t h = 0; h < s.num_kv_heads; ++h, k += s.head_dim, v += s.head_dim_v) {
    if constexpr (kType == DType::kI8) {
      WriteCodes(k, s.head_dim, m.page_size, offset, true,
                 k_page + h * KeyHeadBytes(s, m.page_size));
      WriteCodes(v, s.head_dim_v, m.page_size, offset, false,
                 v_page + h * ValueHeadBytes(s, m.page_size));
    } else {
      int64_t at = KeyIndex(s, m.page_size, h, 0, offset);
      for (int64_t d = 0; d < s.head_dim; ++d, at += m.page_size) Put<kType>(k_page, at, k[d]);
      at = ValueIndex(s, m.page_size, h, offset, 0);
      for (int64_t d = 0; d < s.head_dim_v; ++d, ++at) Put<kType>(v_page, at, v[d]);
    }
  }
}

// Whether a token's slot is the one behind its predecessor's, in the same page.
bool Follows(const AttentionMetadata& m, int64_t token) {
  const int64_t slot = m.write_table[static_cast<size_t>(token)];
  return slot % m.page_size != 0 && slot == m.write_table[static_cast<size_t>(token) - 1] + 1;
}

// The first token from `token` on that begins a run in its page: threads share no run's lines.
int64_t RunBegin(const AttentionMetadata& m, int64_t token) {
  while (token > 0 && token < m.num_tokens && Follows(m, token)) ++token;
  return token;
}

}  // namespace

size_t KeyPageBytes(const AttentionShape& s, int32_t page_size) {
  return RoundUp64(s.num_kv_heads * KeyHeadBytes(s, page_size));
}
size_t ValuePageBytes(const AttentionShape& s, int32_t page_size) {
  return RoundUp64(s.num_kv_heads * ValueHeadBytes(s, page_size));
}

void WriteKv(const AttentionMetadata& m, const AttentionShape& s, const KvWrite& w,
             ThreadPool& pool) {
  const auto write = s.kv_dtype == DType::kF32   ? WriteToken<DType::kF32>
                     : s.kv_dtype == DType::kI8  ? WriteToken<DType::kI8>
                     : s.kv_dtype == DType::kF16 ? WriteToken<DType::kF16>
                                                 : nullptr;
  const auto write_pairs = QUIRE_FOR_ISA(WriteTokensBF16);
  const int64_t tasks = (m.num_tokens + kTokensPerTask - 1) / kTokensPerTask;
  pool.ParallelFor(tasks, [&](int64_t task, int32_t) {
    int64_t i = RunBegin(m, task * kTokensPerTask);
    const int64_t end = RunBegin(m, std::min<int64_t>(m.num_tokens, (task + 1) * kTokensPerTask));
    while (i < end) {
      if (write != nullptr) {
        write(m, s, w, i++);
        continue;
      }
      const int64_t slot = m.write_table[static_cast<size_t>(i)];
      DCHECK(slot >= 0, "write slot {} of token {}", slot, i);
      int64_t next = i + 1;
      while (next < end && Follows(m, next)) ++next;
      write_pairs(m, s, w, i, static_cast<int32_t>(next - i), slot / m.page_size,
                  slot % m.page_size);
      i = next;
    }
  });
}

void ReadKv(const AttentionMetadata& m, const AttentionShape& s, const AttentionArgs& a,
            int32_t seq, int32_t kv_head, int32_t first, int32_t count, float* k, float* v) {
  const auto value = [](DType type, const std::byte* page, int64_t i) {
    if (type == DType::kF32) return reinterpret_cast<const float*>(page)[i];
    if (type == DType::kI8) return static_cast<float>(reinterpret_cast<const int8_t*>(page)[i]);
    const uint16_t half = reinterpret_cast<const uint16_t*>(page)[i];
    return type == DType::kBF16 ? BF16ToFloat(half) : F16ToFloat(half);
  };
  const int64_t ps = m.page_size;
  const bool scaled = s.kv_dtype == DType::kI8;
  const int32_t* const table =
      &m.read_table[static_cast<size_t>(seq) * static_cast<size_t>(m.max_pages_per_seq)];
  for (int32_t j = first; j < first + count; ++j) {
    const int64_t page = table[j / m.page_size];
    const int64_t slot = j % ps;
    const std::byte* const k_page = PageAddress(a.k_base, page, a.page_stride);
    const std::byte* const v_page = PageAddress(a.v_base, page, a.page_stride);
    // Scales lie behind a head's codes.
    const std::byte* const k_scales = k_page + KeyIndex(s, ps, kv_head, s.head_dim, 0);
    const std::byte* const v_scales = v_page + ValueIndex(s, ps, kv_head, ps, 0);
    const float k_scale = scaled ? value(DType::kF16, k_scales, slot) : 1.0f;
    const float v_scale = scaled ? value(DType::kF16, v_scales, slot) : 1.0f;
    for (int64_t d = 0; d < s.head_dim && k != nullptr; ++d) {
      *k++ = value(s.kv_dtype, k_page, KeyIndex(s, ps, kv_head, d, slot)) * k_scale;
    }
    for (int64_t d = 0; d < s.head_dim_v && v != nullptr; ++d) {
      *v++ = value(s.kv_dtype, v_page, ValueIndex(s, ps, kv_head, slot, d)) * v_scale;
    }
  }
}

}  // namespace quire::kernels
