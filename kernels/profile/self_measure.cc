#include "kernels/profile/self_measure.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/huge_pages.h"
#include "kernels/linear.h"

namespace quire::kernels {
namespace {

constexpr double kSeconds = 0.03;  // of each rate

// Shortest of calls for kSeconds, at least two, as the first finds nothing in cache; fn(i) is call
// i.
double Shortest(const std::function<void(int)>& fn) {
  double best = 1e9, total = 0;
  for (int i = 0; i < 2 || (total < kSeconds && i < 1000); ++i) {
    const auto start = std::chrono::steady_clock::now();
    fn(i);
    const double took =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::min(best, took);
    total += took;
  }
  return best;
}

// Values that no arithmetic minds: in each type, small normal numbers.
void FillWeights(DType type, std::vector<std::byte>& bytes) {
  uint32_t state = 1;
  const auto next = [&state] { return state = state * 1664525u + 1013904223u; };
  if (InfoOf(type).block_size > 1) {
    for (std::byte& b : bytes) b = static_cast<std::byte>((next() >> 24) & 0x3b);  // finite scales
    return;
  }
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const auto half = static_cast<uint16_t>(0x3c00 + (next() >> 16) % 0x300);
    std::memcpy(&bytes[i], &half, sizeof(half));
  }
}

// A cache of num_seqs sequences of `len` keys in shuffled pages.
class Cache {
 public:
  static constexpr int32_t kPage = 16;

  Cache(const AttentionShape& shape, int32_t num_seqs, int32_t len, int32_t num_q)
      : shape_(shape), pages_per_seq_((len + kPage - 1) / kPage) {
    const int32_t num_pages = num_seqs * pages_per_seq_ + 1;
    k_bytes_ = KeyPageBytes(shape, kPage);
    stride_ = k_bytes_ + ValuePageBytes(shape, kPage);
    bytes_.resize(stride_ * static_cast<size_t>(num_pages));
    std::vector<std::byte> fill(bytes_.size());
    FillWeights(DType::kF16, fill);
    std::copy(fill.begin(), fill.end(), bytes_.begin());
    table_.resize(static_cast<size_t>(num_seqs) * static_cast<size_t>(pages_per_seq_));
    std::iota(table_.begin(), table_.end(), 1);
    for (size_t i = table_.size(); i > 1; --i) std::swap(table_[i - 1], table_[(i * 7919) % i]);
    for (int32_t i = 0; i < num_seqs; ++i) {
      cu_.push_back(cu_.back() + num_q);
      lens_.push_back(len);
    }
    const size_t heads = static_cast<size_t>(cu_.back()) * static_cast<size_t>(shape.num_heads);
    q_.assign(heads * static_cast<size_t>(shape.head_dim), 0.25f);
    out_.resize(heads * static_cast<size_t>(shape.head_dim_v));
  }

  AttentionMetadata metadata() const {
    return {.num_seqs = static_cast<int32_t>(lens_.size()),
            .num_tokens = cu_.back(),
            .page_size = kPage,
            .max_pages_per_seq = pages_per_seq_,
            .cu_seqlens_q = cu_,
            .seqlens_k = lens_,
            .read_table = table_};
  }

  double Run(const AttentionBackend& backend, ThreadPool& pool) {
    const AttentionMetadata m = metadata();
    AttentionPlan plan;
    backend.plan(m, shape_, pool.num_threads(), plan);
    const std::unique_ptr<std::byte, void (*)(void*)> workspace(
        static_cast<std::byte*>(std::aligned_alloc(64, (plan.workspace_bytes + 127) / 64 * 64)),
        std::free);
    return Shortest([&](int) {
      backend.run(plan, m, shape_,
                  {.q = q_.data(),
                   .k_base = bytes_.data(),
                   .v_base = bytes_.data() + k_bytes_,
                   .page_stride = static_cast<int64_t>(stride_),
                   .out = out_.data()},
                  workspace.get(), pool);
    });
  }

 private:
  AttentionShape shape_;
  int32_t pages_per_seq_;
  size_t k_bytes_ = 0, stride_ = 0;
  std::vector<std::byte, HugePageAllocator<std::byte>> bytes_;
  std::vector<int32_t> cu_{0}, lens_, table_;
  std::vector<float> q_, out_;
};

}  // namespace

AttentionRates MeasureAttention(const AttentionBackend& backend, DType kv_dtype,
                                const MachinePeaks& peaks, ThreadPool& pool) {
  const AttentionShape shape{.num_heads = 8,
                             .num_kv_heads = 4,
                             .head_dim = 64,
                             .head_dim_v = 64,
                             .softmax_scale = 0.125f,
                             .kv_dtype = kv_dtype};
  OpProfile counter(1);
  AttentionRates rates;
  {
    Cache cache(shape, 8, 1024, 1);
    const OpCost cost = counter.AttentionCost(cache.metadata(), shape);
    rates.decode_gb_s = cost.kv_bytes / cache.Run(backend, pool) * 1e-9;
    rates.decode_share = rates.decode_gb_s / MeasureRead(static_cast<size_t>(cost.kv_bytes),
                                                         pool.num_threads(), kSeconds);
  }
  Cache cache(shape, 1, 512, 512);
  const OpCost cost = counter.AttentionCost(cache.metadata(), shape);
  rates.prefill_gflop_s = cost.operations() / cache.Run(backend, pool) * 1e-9;
  rates.prefill_share = rates.prefill_gflop_s / peaks.gops(MathType::kF32);
  return rates;
}

MathType MathOf(ComputeType compute) {
  switch (compute) {
    case ComputeType::kBF16:
      return MathType::kBF16;
    case ComputeType::kI8:
      return MathType::kI8;
    default:
      return MathType::kF32;
  }
}

DType PackedType(DType format, ComputeType compute, ThreadPool& pool) {
  constexpr int64_t kColumns = 64, kDepth = 256;
  std::vector<std::byte> file(BytesFor(format, kColumns * kDepth));
  FillWeights(format, file);
  const absl::StatusOr<PackedWeight> packed =
      PackedWeight::Pack({file.data(), format, 2, {kColumns, kDepth}}, pool, compute);
  CHECK(packed.ok(), "{}", Message(packed.status()));
  return packed->dtype();
}

LinearRates MeasureLinear(DType format, ComputeType compute, const MachinePeaks& peaks,
                          ThreadPool& pool) {
  constexpr int64_t kDim = 1536;
  constexpr int64_t kRows = 256;
  constexpr size_t kAllBytes = size_t{16} << 20;  // of all copies, about
  std::vector<std::byte> file(BytesFor(format, static_cast<size_t>(kDim * kDim)));
  FillWeights(format, file);
  const size_t copies = std::max<size_t>(4, kAllBytes / file.size());
  std::vector<PackedWeight> weights;
  for (size_t i = 0; i < copies; ++i) {
    absl::StatusOr<PackedWeight> packed =
        PackedWeight::Pack({file.data(), format, 2, {kDim, kDim}}, pool, compute);
    CHECK(packed.ok(), "{}", Message(packed.status()));
    weights.push_back(*std::move(packed));
  }
  const std::vector<float> x(static_cast<size_t>(kRows * kDim), 0.5f);
  std::vector<float> y(x.size());
  const size_t scratch_bytes = (LinearScratchBytes(kRows, kDim) + 63) / 64 * 64;
  const std::unique_ptr<std::byte, void (*)(void*)> scratch(
      static_cast<std::byte*>(std::aligned_alloc(64, scratch_bytes)), std::free);
  const auto shortest = [&](int64_t rows) {
    return Shortest([&](int i) {
      const LinearJob job{.w = &weights[static_cast<size_t>(i) % copies],
                          .x = x.data(),
                          .ldx = kDim,
                          .y = y.data(),
                          .ldy = kDim};
      RunLinear({&job, 1}, rows, pool, {scratch.get(), scratch_bytes});
    });
  };
  // Tens of times slower: a second for 256 rows.
  const int64_t rows = ActiveIsa() == CpuIsa::kPortable ? kRows / 16 : kRows;
  LinearRates rates{.prefill_rows = static_cast<int32_t>(rows)};
  rates.decode_gb_s = static_cast<double>(weights[0].bytes()) / shortest(1) * 1e-9;
  rates.decode_share = rates.decode_gb_s / peaks.memory_gb_s;
  rates.prefill_gflop_s = 2.0 * static_cast<double>(rows * kDim * kDim) / shortest(rows) * 1e-9;
  const MathPeak* const peak = UnitInUse(peaks.math, MathOf(compute), ActiveIsa());
  CHECK(peak != nullptr, "peaks without float32");
  rates.prefill_share =
      rates.prefill_gflop_s / (peak->gops_per_thread * static_cast<double>(pool.num_threads()));
  rates.prefill_unit = peak->unit;
  return rates;
}

}  // namespace quire::kernels
