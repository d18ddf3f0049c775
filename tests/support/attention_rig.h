// tests/support/attention_rig.h -- a paged cache made to catch stray reads, and a dense float64
// oracle that shares nothing with the kernels: no pages, no batches, no tiles.
//
// Pages are dealt in shuffled order. Memory that no table names holds a fill value (NaN unless
// told), page 0 and the page behind the last may not be touched at all (SIGSEGV).
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention.h"

namespace quire::kernels {

// One sequence's tensors, dense. Query rows exist from position -kBefore on, for runs that have
// more queries than keys.
struct DenseSeq {
  static constexpr int32_t kBefore = 32;
  int32_t len = 0;
  std::vector<float> q;  // [kBefore + len, num_heads, head_dim]
  std::vector<float> k;  // [len, num_kv_heads, head_dim]
  std::vector<float> v;  // [len, num_kv_heads, head_dim_v]
};

inline float Rounded(DType type, float x) {
  return type == DType::kBF16  ? BF16ToFloat(FloatToBF16(x))
         : type == DType::kF16 ? F16ToFloat(FloatToF16(x))
                               : x;
}

inline DenseSeq RandomSeq(const AttentionShape& s, int32_t len, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  const auto fill = [&](size_t n, DType type) {
    std::vector<float> x(n);
    for (float& e : x) e = Rounded(type, normal(rng));
    return x;
  };
  const auto n = static_cast<size_t>(len);
  DenseSeq seq;
  seq.len = len;
  seq.k = fill(n * s.num_kv_heads * s.head_dim, s.kv_dtype);
  seq.v = fill(n * s.num_kv_heads * s.head_dim_v, s.kv_dtype);
  seq.q = fill((n + DenseSeq::kBefore) * s.num_heads * s.head_dim, DType::kF32);
  return seq;
}

// Queries of one sequence in a step: the num_q positions that end at num_k - 1.
struct SeqRun {
  int32_t seq = 0;
  int32_t num_q = 1;
  int32_t num_k = 1;
};

struct Extras {
  std::vector<float> sinks;   // [num_heads] or empty
  std::vector<float> slopes;  // [num_heads] or empty
  bool weights = false;
};

struct AttentionResult {
  std::vector<float> out;      // [rows, num_heads, head_dim_v]
  std::vector<float> lse;      // [rows, num_heads]
  std::vector<float> weights;  // [rows, num_heads, max num_k]
  size_t num_items = 0;
  size_t num_merges = 0;
  size_t num_shared = 0;  // rows that share reads with others
};

struct OracleResult {
  std::vector<double> out, lse, weights;  // as above; weights per run [num_q, num_heads, num_k]
};

// The formulas of the reference data's README, in float64.
inline OracleResult Dense(const AttentionShape& s, const DenseSeq& seq, int32_t num_q,
                          int32_t num_k, const Extras& x = {}) {
  OracleResult r;
  for (int32_t i = 0; i < num_q; ++i) {
    const int32_t pos = num_k - num_q + i;
    for (int32_t h = 0; h < s.num_heads; ++h) {
      const float* q =
          &seq.q[(static_cast<size_t>(pos + DenseSeq::kBefore) * s.num_heads + h) * s.head_dim];
      const int32_t kv = h * s.num_kv_heads / s.num_heads;
      std::vector<double> score(num_k, -INFINITY);
      double max = -INFINITY;
      for (int32_t j = 0; j < num_k; ++j) {
        if (!s.bidirectional && j > pos) continue;
        if (s.window > 0 && j <= pos - s.window) continue;
        if (s.chunk > 0 && j / s.chunk != pos / s.chunk) continue;
        double dot = 0;
        for (int32_t d = 0; d < s.head_dim; ++d) {
          dot +=
              double{q[d]} * seq.k[(static_cast<size_t>(j) * s.num_kv_heads + kv) * s.head_dim + d];
        }
        dot *= s.softmax_scale;
        if (s.logit_softcap > 0) dot = s.logit_softcap * std::tanh(dot / s.logit_softcap);
        if (!x.slopes.empty()) dot += double{x.slopes[h]} * (j - pos);
        score[j] = dot;
        max = std::max(max, dot);
      }
      double sum = 0;
      double top = x.sinks.empty() ? max : std::max(max, double{x.sinks[h]});
      for (double e : score) sum += max == -INFINITY ? 0 : std::exp(e - top);
      r.lse.push_back(max == -INFINITY ? -INFINITY : std::log(sum) + top);
      const double all = x.sinks.empty() ? sum : sum + std::exp(x.sinks[h] - top);
      std::vector<double> acc(s.head_dim_v);
      for (int32_t j = 0; j < num_k; ++j) {
        const double p = score[j] == -INFINITY ? 0 : std::exp(score[j] - top) / all;
        r.weights.push_back(p);
        for (int32_t d = 0; d < s.head_dim_v && p > 0; ++d) {
          acc[d] += p * seq.v[(static_cast<size_t>(j) * s.num_kv_heads + kv) * s.head_dim_v + d];
        }
      }
      r.out.insert(r.out.end(), acc.begin(), acc.end());
    }
  }
  return r;
}

class AttentionRig {
 public:
  struct Options {
    int32_t page_size = 16;
    float fill = NAN;
    uint32_t seed = 1;
    int32_t first_page = 1;  // lowest page id that is dealt
    int64_t min_page_stride = 1;
  };

  AttentionRig(const AttentionShape& shape, const std::vector<DenseSeq>& seqs, const Options& o)
      : shape_(shape), options_(o), seqs_(seqs) {
    int32_t pages = 0;
    for (const DenseSeq& s : seqs_) pages += NumPages(s.len);
    const size_t k_bytes = KeyPageBytes(shape_, o.page_size);
    v_offset_ = k_bytes;
    const size_t bytes = std::max(k_bytes + ValuePageBytes(shape_, o.page_size),
                                  static_cast<size_t>(o.min_page_stride));
    stride_ = static_cast<int64_t>((bytes + 4095) / 4096 * 4096);
    mapped_ = static_cast<size_t>(o.first_page + pages + 1) * static_cast<size_t>(stride_);
    void* p = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(p != MAP_FAILED, "mmap of {} bytes", mapped_);
    base_ = static_cast<std::byte*>(p);
    std::vector<int32_t> order(static_cast<size_t>(pages));
    std::iota(order.begin(), order.end(), o.first_page);
    std::mt19937 rng(o.seed);
    std::shuffle(order.begin(), order.end(), rng);
    for (const int32_t page : order) Fill(base_ + page * stride_);
    size_t next = 0;
    for (const DenseSeq& s : seqs_) {
      tables_.emplace_back();
      for (int32_t i = 0; i < NumPages(s.len); ++i) tables_.back().push_back(order[next++]);
    }
    for (size_t i = 0; i < seqs_.size(); ++i) Write(i);
    Protect(0);
    Protect(o.first_page + pages);
  }
  ~AttentionRig() { munmap(base_, mapped_); }
  AttentionRig(const AttentionRig&) = delete;
  AttentionRig& operator=(const AttentionRig&) = delete;

  int64_t stride() const { return stride_; }
  const std::vector<int32_t>& table(size_t seq) const { return tables_[seq]; }
  const std::byte* page(int32_t id) const { return base_ + id * stride_; }
  size_t v_offset() const { return v_offset_; }

  // From here on `seq` reads its first pages where `with` has them.
  void SharePages(size_t seq, size_t with, size_t pages) {
    std::copy_n(tables_[with].begin(), pages, tables_[seq].begin());
  }

  AttentionResult Run(const AttentionBackend& backend, const std::vector<SeqRun>& runs,
                      ThreadPool& pool, const Extras& x = {}) const {
    const int32_t ps = options_.page_size;
    std::vector<int32_t> cu{0};
    std::vector<int32_t> seqlens;
    int32_t max_pages = 0;
    int32_t max_k = 0;
    for (const SeqRun& r : runs) {
      cu.push_back(cu.back() + r.num_q);
      seqlens.push_back(r.num_k);
      max_pages = std::max(max_pages, NumPages(r.num_k));
      max_k = std::max(max_k, r.num_k);
    }
    // Exactly as long as the interface says, so that a sanitizer sees one entry too many (R06).
    std::vector<int32_t> read_table(runs.size() * static_cast<size_t>(max_pages), 0);
    std::vector<float> q;
    for (size_t i = 0; i < runs.size(); ++i) {
      const SeqRun& r = runs[i];
      const DenseSeq& s = seqs_[static_cast<size_t>(r.seq)];
      const size_t row = static_cast<size_t>(shape_.num_heads) * shape_.head_dim;
      const auto first = static_cast<size_t>(r.num_k - r.num_q + DenseSeq::kBefore) * row;
      q.insert(q.end(), s.q.begin() + static_cast<int64_t>(first),
               s.q.begin() + static_cast<int64_t>(first + static_cast<size_t>(r.num_q) * row));
      // Pages outside every query's window are not kept: page 0, which traps.
      const int32_t live = std::max(0, FirstVisible(shape_, r.num_k - r.num_q));
      for (int32_t p = live / ps; p < NumPages(r.num_k); ++p) {
        read_table[i * static_cast<size_t>(max_pages) + static_cast<size_t>(p)] =
            tables_[static_cast<size_t>(r.seq)][static_cast<size_t>(p)];
      }
    }
    const auto rows = static_cast<size_t>(cu.back());
    AttentionResult result;
    result.out.assign(rows * shape_.num_heads * shape_.head_dim_v, NAN);
    result.lse.assign(rows * shape_.num_heads, NAN);
    if (x.weights) result.weights.assign(rows * shape_.num_heads * static_cast<size_t>(max_k), NAN);
    const AttentionMetadata m{.num_seqs = static_cast<int32_t>(runs.size()),
                              .num_tokens = cu.back(),
                              .page_size = ps,
                              .max_pages_per_seq = max_pages,
                              .cu_seqlens_q = cu,
                              .seqlens_k = seqlens,
                              .read_table = read_table};
    AttentionPlan plan;
    backend.plan(m, shape_, pool.num_threads(), plan);
    result.num_items = plan.items.size();
    result.num_merges = plan.merges.size();
    result.num_shared = plan.shared_rows.size();
    const std::unique_ptr<std::byte, void (*)(void*)> workspace(
        static_cast<std::byte*>(std::aligned_alloc(64, (plan.workspace_bytes + 127) / 64 * 64)),
        std::free);
    std::memset(workspace.get(), 0xff, plan.workspace_bytes);  // NaN
    backend.run(plan, m, shape_,
                {.q = q.data(),
                 .k_base = base_,
                 .v_base = base_ + v_offset_,
                 .page_stride = stride_,
                 .sinks = x.sinks.empty() ? nullptr : x.sinks.data(),
                 .alibi_slopes = x.slopes.empty() ? nullptr : x.slopes.data(),
                 .out = result.out.data(),
                 .lse = result.lse.data(),
                 .weights = x.weights ? result.weights.data() : nullptr},
                workspace.get(), pool);
    return result;
  }

 private:
  int32_t NumPages(int32_t len) const {
    return (len + options_.page_size - 1) / options_.page_size;
  }
  void Protect(int32_t page) {
    CHECK(mprotect(base_ + page * stride_, static_cast<size_t>(stride_), PROT_NONE) == 0,
          "mprotect");
  }
  // Only the part that holds keys and values: the stride may be huge.
  void Fill(std::byte* page) {
    const size_t bytes = v_offset_ + ValuePageBytes(shape_, options_.page_size);
    if (shape_.kv_dtype == DType::kF32) {
      std::fill_n(reinterpret_cast<float*>(page), bytes / 4, options_.fill);
      return;
    }
    const uint16_t h =
        shape_.kv_dtype == DType::kBF16 ? FloatToBF16(options_.fill) : FloatToF16(options_.fill);
    std::fill_n(reinterpret_cast<uint16_t*>(page), bytes / 2, h);
  }
  void Write(size_t seq) {
    const DenseSeq& s = seqs_[seq];
    std::vector<int64_t> slots;
    for (int32_t t = 0; t < s.len; ++t) {
      slots.push_back(int64_t{tables_[seq][static_cast<size_t>(t / options_.page_size)]} *
                          options_.page_size +
                      t % options_.page_size);
    }
    const AttentionMetadata m{
        .num_tokens = s.len, .page_size = options_.page_size, .write_table = slots};
    ThreadPool pool(2);
    WriteKv(m, shape_,
            {.k = s.k.data(),
             .v = s.v.data(),
             .k_base = base_,
             .v_base = base_ + v_offset_,
             .page_stride = stride_},
            pool);
  }

  AttentionShape shape_;
  Options options_;
  std::vector<DenseSeq> seqs_;
  std::vector<std::vector<int32_t>> tables_;
  std::byte* base_ = nullptr;
  size_t mapped_ = 0;
  size_t v_offset_ = 0;
  int64_t stride_ = 0;
};

inline AttentionShape Shape(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim,
                            int32_t head_dim_v = 0) {
  AttentionShape s;
  s.num_heads = num_heads;
  s.num_kv_heads = num_kv_heads;
  s.head_dim = head_dim;
  s.head_dim_v = head_dim_v > 0 ? head_dim_v : head_dim;
  s.softmax_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return s;
}

// Compares one run's rows with the oracle; returns the largest absolute difference.
inline double MaxError(const AttentionResult& got, const std::vector<OracleResult>& want) {
  double worst = 0;
  size_t i = 0;
  size_t n = 0;
  const auto compare = [&](float a, double b) {
    if (std::isinf(b) && a == static_cast<float>(b)) return;
    const double e = std::fabs(double{a} - b);
    worst = std::isnan(e) ? INFINITY : std::max(worst, e);
  };
  for (const OracleResult& w : want) {
    for (double x : w.out) compare(got.out[i++], x);
    for (double x : w.lse) compare(got.lse[n++], x);
  }
  EXPECT_EQ(i, got.out.size());
  return worst;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline std::vector<std::string> BackendNames() {
  std::vector<std::string> names;
  for (const AttentionBackend* b : AttentionBackends()) names.emplace_back(b->name);
  return names;
}

}  // namespace quire::kernels
