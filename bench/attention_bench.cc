// bench/attention_bench.cc -- decode bandwidth and prefill rate of each attention backend.
//
//   attention_bench [--isa=auto] [--filter=decode] [--heads=9] [--kv-heads=3] [--head-dim=64]
//   [--page-size=16]
//
// Figures: median of repeated runs, and the best one (no neighbour took the core), over several
// layers' worth of pages (so that decode reads memory, not cache), and the share of what plain
// reads reach. Bytes are keys and values that must be read once, shared ones once for all;
// operations are 2 per multiply-add of the visible pairs, softmax not counted.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "kernels/attention.h"
#include "kernels/cpu_isa.h"

namespace quire::kernels {
namespace {

struct Options {
  std::string isa = "auto", filter;
  int32_t heads = 9, kv_heads = 3, head_dim = 64, page_size = 16;
};

// A step: sequences of `len` keys, `num_q` of them new; all begin with the same `shared` keys.
struct Load {
  const char* name;
  int32_t num_seqs, num_q, len, shared;
};

// GB/s of plain reads by all threads from more than the caches hold: the best of some passes.
double ReadBandwidth(ThreadPool& pool) {
  constexpr size_t kWords = size_t{256} << 17;  // 256 MiB
  constexpr size_t kChunk = kWords / 256;
  static const std::vector<uint64_t> memory(kWords, 1);
  std::vector<uint64_t> sums(256);
  double best = 1e9;
  for (int pass = 0; pass < 5; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.ParallelFor(256, [&](int64_t task, int32_t) {
      const uint64_t* p = &memory[static_cast<size_t>(task) * kChunk];
      uint64_t sum[8] = {};
      for (size_t i = 0; i < kChunk; i += 8) {
        for (size_t j = 0; j < 8; ++j) sum[j] += p[i + j];
      }
      sums[static_cast<size_t>(task)] = std::accumulate(sum, sum + 8, uint64_t{0});
    });
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  const uint64_t all = std::accumulate(sums.begin(), sums.end(), uint64_t{0});
  return all == kWords ? static_cast<double>(kWords) * 8e-9 / best : 0;
}

// `layers` copies of one cache of num_seqs x len keys; runs cycle through them.
class Bench {
 public:
  Bench(const Options& o, DType type, DType dot, const Load& load, int32_t layers)
      : layers_(layers) {
    shape_ = {.num_heads = o.heads,
              .num_kv_heads = o.kv_heads,
              .head_dim = o.head_dim,
              .head_dim_v = o.head_dim,
              .softmax_scale = 0.125f,
              .kv_dtype = type,
              .dot = dot};
    const auto [name, num_seqs, num_q, len, shared] = load;
    const int32_t pages_per_seq = (len + o.page_size - 1) / o.page_size;
    num_pages_ = num_seqs * pages_per_seq + 1;
    k_bytes_ = KeyPageBytes(shape_, o.page_size);
    stride_ = k_bytes_ + ValuePageBytes(shape_, o.page_size);
    cache_.resize(stride_ * static_cast<size_t>(num_pages_) * static_cast<size_t>(layers));
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::vector<float> sample(4096);
    for (float& x : sample) x = normal(rng);
    const size_t size = type == DType::kF32 ? 4 : 2;
    for (size_t i = 0; i < cache_.size() / size; ++i) {
      const float x = sample[i % 4093];
      const uint16_t h = type == DType::kBF16 ? FloatToBF16(x) : FloatToF16(x);
      std::memcpy(&cache_[i * size], size == 4 ? static_cast<const void*>(&x) : &h, size);
    }
    read_table_.resize(static_cast<size_t>(num_seqs) * static_cast<size_t>(pages_per_seq));
    std::iota(read_table_.begin(), read_table_.end(), 1);
    std::shuffle(read_table_.begin(), read_table_.end(), rng);
    for (size_t i = static_cast<size_t>(pages_per_seq); i < read_table_.size(); ++i) {
      const size_t page = i % static_cast<size_t>(pages_per_seq);
      if (page < static_cast<size_t>(shared / o.page_size)) read_table_[i] = read_table_[page];
    }
    cu_.push_back(0);
    for (int32_t i = 0; i < num_seqs; ++i) {
      cu_.push_back(cu_.back() + num_q);
      seqlens_.push_back(len);
    }
    m_ = {.num_seqs = num_seqs,
          .num_tokens = cu_.back(),
          .page_size = o.page_size,
          .max_pages_per_seq = pages_per_seq,
          .cu_seqlens_q = cu_,
          .seqlens_k = seqlens_,
          .read_table = read_table_};
    q_.resize(static_cast<size_t>(cu_.back()) * o.heads * o.head_dim);
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = sample[i % 4093];
    out_.resize(q_.size());
    double pairs = 0;
    for (int32_t i = 0; i < num_q; ++i) pairs += len - num_q + i + 1;
    flops_ = 4.0 * pairs * num_seqs * o.heads * o.head_dim;
    const double keys = static_cast<double>(num_seqs) * (len - shared) + shared;
    bytes_ = 2.0 * static_cast<double>(size) * keys * o.kv_heads * o.head_dim;
  }

  // Median and best seconds per run.
  std::pair<double, double> Seconds(const AttentionBackend& backend, ThreadPool& pool) {
    AttentionPlan plan;
    backend.plan(m_, shape_, pool.num_threads(), plan);
    Arena arena(plan.workspace_bytes + 64);
    std::byte* workspace = arena.Take<std::byte>(plan.workspace_bytes).data();
    std::vector<double> times;
    double total = 0;
    for (int32_t i = 0; i < 3 || (total < 0.6 && i < 200); ++i) {
      const std::byte* base = cache_.data() + static_cast<size_t>(i % layers_) * stride_ *
                                                  static_cast<size_t>(num_pages_);
      const auto start = std::chrono::steady_clock::now();
      backend.run(plan, m_, shape_,
                  {.q = q_.data(),
                   .k_base = base,
                   .v_base = base + k_bytes_,
                   .page_stride = static_cast<int64_t>(stride_),
                   .out = out_.data()},
                  workspace, pool);
      times.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      total += times.back();
    }
    std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2),
                     times.end());
    const double median = times[times.size() / 2];
    return {median, *std::min_element(times.begin(), times.end())};
  }

  const AttentionShape& shape() const { return shape_; }
  double flops() const { return flops_; }
  double bytes() const { return bytes_; }

 private:
  int32_t layers_;
  AttentionShape shape_;
  AttentionMetadata m_;
  std::vector<int32_t> cu_, seqlens_, read_table_;
  std::vector<float> q_, out_;
  std::vector<std::byte> cache_;
  size_t stride_ = 0, k_bytes_ = 0;
  int32_t num_pages_ = 0;
  double flops_ = 0, bytes_ = 0;
};

void Print(const Load& load, const Options& o, DType type, DType dot, int32_t layers,
           const std::vector<double>& bandwidth) {
  if (std::string(load.name).find(o.filter) == std::string::npos) return;
  Bench bench(o, type, dot, load, layers);
  for (const AttentionBackend* backend : AttentionBackends()) {
    if (!backend->supports(bench.shape(), o.page_size).ok()) continue;
    for (const int32_t threads : {1, 2}) {
      ThreadPool pool(threads);
      const auto [median, best] = bench.Seconds(*backend, pool);
      std::printf(
          "%-22s %-4s dot %-4s %-5s threads=%d %9.1f us %6.2f GB/s %7.2f GFLOP/s  best %6.2f GB/s "
          "(%3.0f%% of reads) %7.2f GFLOP/s\n",
          load.name, std::string(NameOf(type)).c_str(), std::string(NameOf(dot)).c_str(),
          std::string(backend->name).c_str(), threads, median * 1e6, bench.bytes() / median * 1e-9,
          bench.flops() / median * 1e-9, bench.bytes() / best * 1e-9,
          bench.bytes() / best * 1e-7 / bandwidth[static_cast<size_t>(threads) - 1],
          bench.flops() / best * 1e-9);
    }
  }
}

int Main(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const size_t eq = arg.find('=');
    const std::string key = arg.substr(0, eq);
    const std::string value = eq == std::string::npos ? "" : arg.substr(eq + 1);
    if (key == "--isa") {
      o.isa = value;
    } else if (key == "--filter") {
      o.filter = value;
    } else if (key == "--heads") {
      o.heads = std::atoi(value.c_str());
    } else if (key == "--kv-heads") {
      o.kv_heads = std::atoi(value.c_str());
    } else if (key == "--head-dim") {
      o.head_dim = std::atoi(value.c_str());
    } else if (key == "--page-size") {
      o.page_size = std::atoi(value.c_str());
    } else {
      std::fprintf(stderr, "%s is not an option\n", arg.c_str());
      return 2;
    }
  }
  if (const absl::Status status = SelectIsa(o.isa); !status.ok()) {
    std::fprintf(stderr, "%s\n", Message(status).c_str());
    return 2;
  }
  std::printf("isa=%s heads=%d kv_heads=%d head_dim=%d page_size=%d\n",
              std::string(NameOf(ActiveIsa())).c_str(), o.heads, o.kv_heads, o.head_dim,
              o.page_size);
  std::vector<double> bandwidth;
  for (const int32_t threads : {1, 2}) {
    ThreadPool pool(threads);
    bandwidth.push_back(ReadBandwidth(pool));
    std::printf("threads=%d read %.2f GB/s\n", threads, bandwidth.back());
  }
  using Types = std::pair<DType, DType>;
  for (const auto& [type, dot] : {Types{DType::kF32, DType::kF32},
                                  {DType::kBF16, DType::kF32},
                                  {DType::kBF16, DType::kBF16}}) {
    Print({"decode 1 x 2048", 1, 1, 2048, 0}, o, type, dot, 30, bandwidth);
    Print({"decode 32 x 512", 32, 1, 512, 0}, o, type, dot, 8, bandwidth);
    Print({"decode 64 x 192", 64, 1, 192, 0}, o, type, dot, 16, bandwidth);
    Print({"decode 64 x 576", 64, 1, 576, 0}, o, type, dot, 4, bandwidth);
    Print({"decode 64 x (512s+64)", 64, 1, 576, 512}, o, type, dot, 4, bandwidth);
    Print({"prefill 512", 1, 512, 512, 0}, o, type, dot, 2, bandwidth);
    Print({"prefill 1024", 1, 1024, 1024, 0}, o, type, dot, 2, bandwidth);
    Print({"prefill 512 at 1536", 1, 512, 2048, 0}, o, type, dot, 2, bandwidth);
  }
  return 0;
}

}  // namespace
}  // namespace quire::kernels

int main(int argc, char** argv) { return quire::kernels::Main(argc, argv); }
