// kernels/profile/op_profile.h -- where a step's time goes: microseconds, bytes and operations of
// each operation, summed up, and as spans for a trace.
//
// Called by the executor and the decoder between operations; read by `quire bench ops`, `quire
// serve --profile-ops` and WriteTrace. Operations are laps: one ends where the next begins, so the
// laps of a step add up to the step, without gaps. Off is a null pointer: one branch per operation.
//
// Bytes and operations are those that the operation can't do without (each weight once, each key
// and value that a row may see once, what shared pages hold once for all), not those of the kernel
// at hand. So a rate is useful work per second.
// Thread: engine thread only, but for OnTasks; the counters may be read after its end, or between
// steps.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/linear.h"

namespace quire::kernels {

// One row of the table each. kNames in op_profile.cc has the same order.
enum class Op : uint8_t {
  kSchedule,    // between steps: the scheduler (in-process runs only)
  kCopyPages,   // page copies and moves between tiers
  kBatch,       // the step's flat arrays
  kPlan,        // attention's plans and the arena
  kEmbed,       // rows of the embedding
  kRopeAngles,  // cosines and sines of the step's positions
  kQkv,         // with the norm before it
  kRope,        // of queries and keys, with norms of their heads
  kWriteKv,
  kAttention,
  kO,
  kGateUp,    // with the norm before it
  kDown,      // with the activation before it
  kAddRows,   // where a norm stands between a projection and the residual stream
  kHead,      // with the final norm
  kSoftCap,   // of logits
  kSampling,  // masks, penalties, choice
  kProfile,   // counting bytes for this profile
};
inline constexpr size_t kNumOps = static_cast<size_t>(Op::kProfile) + 1;
std::string_view NameOf(Op op);

// What multiplies: peaks differ by a factor of 16 between them.
enum class MathType : uint8_t { kF32, kBF16, kI8 };
inline constexpr size_t kNumMathTypes = 3;
std::string_view NameOf(MathType type);

struct OpCost {
  double weight_bytes = 0;
  double kv_bytes = 0;
  double activation_bytes = 0;                  // rows read and written
  std::array<double, kNumMathTypes> math = {};  // operations, 2 per multiply-add, by what does them

  double bytes() const { return weight_bytes + kv_bytes + activation_bytes; }
  double operations() const { return math[0] + math[1] + math[2]; }
  OpCost& operator+=(const OpCost& other);
};

// Row-wise work: `rows` rows of `dim` float32 values, of which `passes` values per element move.
struct RowWork {
  int64_t rows = 0;
  int64_t dim = 0;
  double passes = 2;  // one read, one written
  double ops = 4;     // per value
};

struct OpTotals {
  int64_t calls = 0;
  int64_t ns = 0;
  int64_t busy_ns = 0;  // of all threads together, in tasks of parallel loops
  OpCost cost;
  // The call with the highest rate (of operations, else of bytes; else the shortest): what the
  // kernel does when no neighbour takes its core.
  int64_t best_ns = 0;
  OpCost best_cost;
};

// Steps in which each sequence has one row, and all others: what bounds them differs.
enum class StepKind : uint8_t { kDecode, kPrefill };
inline constexpr size_t kNumStepKinds = 2;

struct StepTotals {
  int64_t steps = 0;
  int64_t tokens = 0;
  int64_t sequences = 0;
  int64_t ns = 0;       // from BeginStep to EndStep
  int64_t best_ns = 0;  // the shortest
};

// Times in nanoseconds since the profile's construction.
struct OpSpan {
  int64_t start_ns = 0;
  int64_t ns = 0;
  float bytes = 0;
  float operations = 0;
  Op op = Op::kSchedule;
};
struct TaskSpan {
  int64_t start_ns = 0;
  int64_t ns = 0;
  int32_t worker = 0;  // 0: the engine's thread
  Op op = Op::kSchedule;
};
struct StepSpan {
  int64_t start_ns = 0;
  int64_t ns = 0;
  int32_t tokens = 0;
  int32_t sequences = 0;
};

class OpProfile final : public ThreadPool::Observer {
 public:
  // num_threads: of the pool that it observes. max_spans: of operations, of steps and of each
  // worker's tasks, kept for a trace; the newest stay. 0: none.
  explicit OpProfile(int32_t num_threads, size_t max_spans = 0);

  // Any worker, of the operation that runs.
  void OnTasks(int32_t worker, std::chrono::steady_clock::time_point begin,
               std::chrono::steady_clock::time_point end) override;

  // The step's laps begin, with kCopyPages.
  void BeginStep(int32_t num_tokens, int32_t num_seqs);
  void EndStep();
  // Outside a step: ends the lap that runs, if any.
  void Pause() { Lap(Now()); }

  // From here on it is `op`.
  void Begin(Op op) { BeginCost(op, {}); }
  void Begin(Op op, const RowWork& work);
  // REQUIRES: as RunLinear.
  void Begin(Op op, std::span<const LinearJob> jobs, int64_t m);
  void Begin(Op op, const AttentionMetadata& m, const AttentionShape& s);
  void BeginCost(Op op, const OpCost& cost);

  // What Begin counts for it.
  OpCost AttentionCost(const AttentionMetadata& m, const AttentionShape& s);

  const OpTotals& totals(StepKind kind, Op op) const {
    return totals_[static_cast<size_t>(kind)][static_cast<size_t>(op)];
  }
  const StepTotals& steps(StepKind kind) const { return steps_[static_cast<size_t>(kind)]; }
  // Oldest first. Valid until the next call of any other member.
  std::vector<OpSpan> op_spans() const { return InOrder(op_spans_, num_op_spans_); }
  std::vector<StepSpan> step_spans() const { return InOrder(step_spans_, num_step_spans_); }
  std::vector<TaskSpan> task_spans() const;  // of worker 0, then of 1 ...
  int64_t spans_lost() const;                // of operations
  int32_t num_threads() const { return static_cast<int32_t>(workers_.size()); }
  // Forgets all, spans included.
  void Reset();

 private:
  // What one worker tells; its own cache line.
  struct alignas(64) Worker {
    int64_t busy_ns = 0;  // in this lap
    int64_t num_spans = 0;
    std::vector<TaskSpan> spans;  // a ring
  };
  int64_t Since(std::chrono::steady_clock::time_point time) const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time - start_).count();
  }
  int64_t Now() const { return Since(std::chrono::steady_clock::now()); }
  void Lap(int64_t now);
  template <typename T>
  static std::vector<T> InOrder(const std::vector<T>& ring, int64_t pushed);

  std::chrono::steady_clock::time_point start_;
  std::array<std::array<OpTotals, kNumOps>, kNumStepKinds> totals_ = {};
  std::array<StepTotals, kNumStepKinds> steps_ = {};
  StepKind kind_ = StepKind::kDecode;
  StepSpan step_;
  bool in_step_ = false;
  // The lap that runs.
  bool running_ = false;
  Op op_ = Op::kSchedule;
  OpCost cost_;
  int64_t lap_start_ = 0;

  std::vector<Worker> workers_;
  std::vector<OpSpan> op_spans_;  // rings
  std::vector<StepSpan> step_spans_;
  int64_t num_op_spans_ = 0;
  int64_t num_step_spans_ = 0;
  // Pages that this call has seen: seen_[page] == seen_mark_.
  std::vector<uint32_t> seen_;
  uint32_t seen_mark_ = 0;
};

// A step, as long as it lives.
class StepScope {
 public:
  StepScope(OpProfile* profile, int32_t num_tokens, int32_t num_seqs) : profile_(profile) {
    if (profile_ != nullptr) profile_->BeginStep(num_tokens, num_seqs);
  }
  ~StepScope() {
    if (profile_ != nullptr) profile_->EndStep();
  }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  OpProfile* const profile_;
};

// The hook: BeginOp(profile, Op::kQkv, jobs, rows). Costs a branch if profile is null.
template <typename... Args>
inline void BeginOp(OpProfile* profile, Op op, const Args&... args) {
  if (profile != nullptr) profile->Begin(op, args...);
}

}  // namespace quire::kernels
