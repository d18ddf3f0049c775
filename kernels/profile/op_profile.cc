// Laps, totals and spans; what an operation costs is in op_cost.cc.
#include "kernels/profile/op_profile.h"

#include <algorithm>
#include <utility>

namespace quire::kernels {
namespace {

constexpr std::array<std::string_view, kNumOps> kNames = {
    "schedule", "copy_pages", "batch",    "plan",      "embed",    "rope_angles",
    "qkv",      "rope",       "write_kv", "attention", "o",        "gate_up",
    "down",     "add_rows",   "head",     "soft_cap",  "sampling", "profile"};

template <typename T>
void Push(std::vector<T>& ring, int64_t& pushed, const T& value) {
  if (ring.empty()) return;
  ring[static_cast<size_t>(pushed) % ring.size()] = value;
  ++pushed;
}

// What a call's rate is of; 1 if it has no cost, so that the shortest is best.
double Work(const OpCost& cost) {
  if (cost.operations() > 0) return cost.operations();
  return cost.bytes() > 0 ? cost.bytes() : 1;
}

}  // namespace

std::string_view NameOf(Op op) { return kNames[static_cast<size_t>(op)]; }

std::string_view NameOf(MathType type) {
  switch (type) {
    case MathType::kF32:
      return "f32";
    case MathType::kBF16:
      return "bf16";
    case MathType::kI8:
      return "int8";
  }
  return "?";
}

OpProfile::OpProfile(int32_t num_threads, size_t max_spans)
    : start_(std::chrono::steady_clock::now()),
      workers_(static_cast<size_t>(num_threads)),
      op_spans_(max_spans),
      step_spans_(max_spans) {
  for (Worker& worker : workers_) worker.spans.resize(max_spans);
}

void OpProfile::OnTasks(int32_t worker, std::chrono::steady_clock::time_point begin,
                        std::chrono::steady_clock::time_point end) {
  Worker& w = workers_[static_cast<size_t>(worker)];
  const int64_t start = Since(begin);
  const int64_t ns = Since(end) - start;
  w.busy_ns += ns;
  Push(w.spans, w.num_spans, {.start_ns = start, .ns = ns, .worker = worker, .op = op_});
}

std::vector<TaskSpan> OpProfile::task_spans() const {
  std::vector<TaskSpan> all;
  for (const Worker& worker : workers_) {
    const std::vector<TaskSpan> own = InOrder(worker.spans, worker.num_spans);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

void OpProfile::Lap(int64_t now) {
  int64_t busy_ns = 0;
  for (Worker& worker : workers_) busy_ns += std::exchange(worker.busy_ns, 0);
  if (!running_) return;
  running_ = false;
  OpTotals& t = totals_[static_cast<size_t>(kind_)][static_cast<size_t>(op_)];
  ++t.calls;
  const int64_t ns = now - lap_start_;
  t.ns += ns;
  t.cost += cost_;
  t.busy_ns += busy_ns;
  const double work = Work(cost_);
  if (t.calls == 1 ||
      work * static_cast<double>(t.best_ns) > Work(t.best_cost) * static_cast<double>(ns)) {
    t.best_ns = ns;
    t.best_cost = cost_;
  }
  Push(op_spans_, num_op_spans_,
       {.start_ns = lap_start_,
        .ns = ns,
        .bytes = static_cast<float>(cost_.bytes()),
        .operations = static_cast<float>(cost_.operations()),
        .op = op_});
}

void OpProfile::BeginCost(Op op, const OpCost& cost) {
  const int64_t now = Now();
  Lap(now);
  running_ = true;
  op_ = op;
  cost_ = cost;
  lap_start_ = now;
}

void OpProfile::BeginStep(int32_t num_tokens, int32_t num_seqs) {
  DCHECK(!in_step_, "a step begins inside a step");
  // Before the lap ends: what was scheduled counts as this step's.
  kind_ = num_tokens == num_seqs ? StepKind::kDecode : StepKind::kPrefill;
  Begin(Op::kCopyPages);
  in_step_ = true;
  step_ = {.start_ns = lap_start_, .tokens = num_tokens, .sequences = num_seqs};
}

void OpProfile::EndStep() {
  const int64_t now = Now();
  Lap(now);
  in_step_ = false;
  step_.ns = now - step_.start_ns;
  StepTotals& t = steps_[static_cast<size_t>(kind_)];
  ++t.steps;
  t.tokens += step_.tokens;
  t.sequences += step_.sequences;
  t.ns += step_.ns;
  t.best_ns = t.steps == 1 ? step_.ns : std::min(t.best_ns, step_.ns);
  Push(step_spans_, num_step_spans_, step_);
}

template <typename T>
std::vector<T> OpProfile::InOrder(const std::vector<T>& ring, int64_t pushed) {
  const auto size = static_cast<int64_t>(ring.size());
  std::vector<T> out;
  for (int64_t i = std::max<int64_t>(0, pushed - size); i < pushed; ++i) {
    out.push_back(ring[static_cast<size_t>(i % size)]);
  }
  return out;
}

template std::vector<OpSpan> OpProfile::InOrder(const std::vector<OpSpan>&, int64_t);
template std::vector<StepSpan> OpProfile::InOrder(const std::vector<StepSpan>&, int64_t);
template std::vector<TaskSpan> OpProfile::InOrder(const std::vector<TaskSpan>&, int64_t);

int64_t OpProfile::spans_lost() const {
  return op_spans_.empty()
             ? 0
             : std::max<int64_t>(0, num_op_spans_ - static_cast<int64_t>(op_spans_.size()));
}

void OpProfile::Reset() {
  running_ = false;
  totals_ = {};
  steps_ = {};
  num_op_spans_ = 0;
  num_step_spans_ = 0;
  for (Worker& worker : workers_) worker.busy_ns = worker.num_spans = 0;
}

}  // namespace quire::kernels
