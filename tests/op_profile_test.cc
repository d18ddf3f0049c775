// What a profile counts, against numbers worked out by hand; that laps add up; what bounds a cost.
#include "kernels/profile/op_profile.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "kernels/profile/machine_peaks.h"
#include "kernels/profile/op_table.h"

namespace quire::kernels {
namespace {

PackedWeight Weight(DType type, int64_t n, int64_t k) {
  const std::vector<std::byte> file(BytesFor(type, static_cast<size_t>(n * k)));
  ThreadPool pool(1);
  return *PackedWeight::Pack({file.data(), type, 2, {n, k}}, pool);
}

TEST(OpProfile, ALinearLayerReadsItsWeightsOnceAndMultipliesEachRow) {
  const PackedWeight a = Weight(DType::kF32, 128, 32);
  const PackedWeight b = Weight(DType::kF32, 64, 32);
  const float x = 0, z = 0;
  float y = 0;
  OpProfile profile(1);
  profile.BeginStep(3, 3);
  const LinearJob shared[] = {{.w = &a, .x = &x, .y = &y}, {.w = &b, .x = &x, .y = &y}};
  profile.Begin(Op::kQkv, shared, 3);
  const LinearJob apart[] = {{.w = &a, .x = &x, .y = &y}, {.w = &b, .x = &z, .y = &y}};
  profile.Begin(Op::kGateUp, apart, 3);
  const LinearJob residual[] = {{.w = &b, .x = &x, .y = &y, .residual = &y}};
  profile.Begin(Op::kO, residual, 1);
  profile.EndStep();
  const OpCost& qkv = profile.totals(StepKind::kDecode, Op::kQkv).cost;
  EXPECT_EQ(qkv.weight_bytes, (128 + 64) * 32 * 4);
  EXPECT_EQ(qkv.activation_bytes, 3 * 4 * (128 + 64 + 32));
  EXPECT_EQ(qkv.operations(), 2 * 3 * (128 + 64) * 32);
  EXPECT_EQ(qkv.kv_bytes, 0);
  EXPECT_EQ(profile.totals(StepKind::kDecode, Op::kGateUp).cost.activation_bytes,
            3 * 4 * (128 + 64 + 2 * 32));
  EXPECT_EQ(profile.totals(StepKind::kDecode, Op::kO).cost.activation_bytes, 4 * (2 * 64 + 32));
}

TEST(OpProfile, BlockTypesCountAsPacked) {
  const PackedWeight w = Weight(DType::kQ4_1, 64, 64);
  OpProfile profile(1);
  profile.BeginStep(1, 1);
  const LinearJob job[] = {{.w = &w}};
  profile.Begin(Op::kDown, job, 1);
  profile.EndStep();
  // 20 bytes for 32 values.
  EXPECT_EQ(profile.totals(StepKind::kDecode, Op::kDown).cost.weight_bytes, 64 * 64 / 32 * 20);
}

struct Batch {
  std::vector<int32_t> cu{0}, lens, table;
  int32_t pages_per_seq = 4;
  void Add(int32_t num_q, int32_t len, std::vector<int32_t> pages) {
    cu.push_back(cu.back() + num_q);
    lens.push_back(len);
    pages.resize(static_cast<size_t>(pages_per_seq));
    table.insert(table.end(), pages.begin(), pages.end());
  }
  AttentionMetadata metadata() const {
    return {.num_seqs = static_cast<int32_t>(lens.size()),
            .num_tokens = cu.back(),
            .page_size = 8,
            .max_pages_per_seq = pages_per_seq,
            .cu_seqlens_q = cu,
            .seqlens_k = lens,
            .read_table = table};
  }
};

constexpr AttentionShape kShape = {
    .num_heads = 6, .num_kv_heads = 2, .head_dim = 16, .head_dim_v = 8, .softmax_scale = 1};

TEST(OpProfile, AttentionReadsEachVisibleKeyOnce) {
  Batch batch;
  batch.Add(1, 20, {5, 6, 7});
  batch.Add(3, 10, {8, 9});
  OpProfile profile(1);
  const OpCost cost = profile.AttentionCost(batch.metadata(), kShape);
  EXPECT_EQ(cost.kv_bytes, (20 + 10) * 2 * (16 + 8) * 4);
  const int pairs = 20 + 8 + 9 + 10;
  EXPECT_EQ(cost.operations(), 2 * pairs * 6 * (16 + 8));
  EXPECT_EQ(cost.activation_bytes, 4 * 4 * 6 * (16 + 8));
  AttentionShape half = kShape;
  half.kv_dtype = DType::kBF16;
  half.dot = DType::kBF16;
  const OpCost of_half = profile.AttentionCost(batch.metadata(), half);
  EXPECT_EQ(of_half.kv_bytes, 30 * 2 * (16 + 8) * 2);
  EXPECT_EQ(of_half.math[static_cast<size_t>(MathType::kBF16)], cost.operations());
  EXPECT_EQ(of_half.math[static_cast<size_t>(MathType::kF32)], 0);
}

TEST(OpProfile, SharedPagesCountOnce) {
  Batch batch;
  batch.Add(1, 20, {5, 6, 7});
  batch.Add(1, 18, {5, 6, 9});
  OpProfile profile(1);
  for (int call = 0; call < 3; ++call) {
    const OpCost cost = profile.AttentionCost(batch.metadata(), kShape);
    EXPECT_EQ(cost.kv_bytes, (20 + 2) * 2 * (16 + 8) * 4);
    EXPECT_EQ(cost.operations(), 2 * (20 + 18) * 6 * (16 + 8));
  }
}

TEST(OpProfile, WindowsHideKeys) {
  Batch batch;
  batch.Add(2, 20, {0, 6, 7});
  OpProfile profile(1);
  AttentionShape window = kShape;
  window.window = 5;  // positions 18 and 19 see 14..18 and 15..19
  const OpCost cost = profile.AttentionCost(batch.metadata(), window);
  EXPECT_EQ(cost.kv_bytes, 6 * 2 * (16 + 8) * 4);
  EXPECT_EQ(cost.operations(), 2 * (5 + 5) * 6 * (16 + 8));
  AttentionShape chunk = kShape;
  chunk.chunk = 16;  // 16..18 and 16..19
  EXPECT_EQ(profile.AttentionCost(batch.metadata(), chunk).kv_bytes, 4 * 2 * (16 + 8) * 4);
}

int64_t SumOfOps(const OpProfile& profile, StepKind kind) {
  int64_t sum = 0;
  for (size_t i = 0; i < kNumOps; ++i) sum += profile.totals(kind, static_cast<Op>(i)).ns;
  return sum;
}

TEST(OpProfile, LapsAddUpToTheirSteps) {
  OpProfile profile(1, 100);
  for (int i = 0; i < 3; ++i) {
    profile.BeginStep(2, 2);
    for (int layer = 0; layer < 4; ++layer) {
      BeginOp(&profile, Op::kAddRows, RowWork{2, 16});
      BeginOp(&profile, Op::kQkv);
    }
    profile.EndStep();
  }
  profile.BeginStep(9, 2);
  profile.EndStep();
  EXPECT_EQ(SumOfOps(profile, StepKind::kDecode), profile.steps(StepKind::kDecode).ns);
  EXPECT_EQ(SumOfOps(profile, StepKind::kPrefill), profile.steps(StepKind::kPrefill).ns);
  EXPECT_EQ(profile.steps(StepKind::kDecode).steps, 3);
  EXPECT_EQ(profile.steps(StepKind::kDecode).tokens, 6);
  EXPECT_EQ(profile.steps(StepKind::kPrefill).tokens, 9);
  EXPECT_EQ(profile.steps(StepKind::kPrefill).sequences, 2);
  EXPECT_EQ(profile.totals(StepKind::kDecode, Op::kAddRows).calls, 12);
  EXPECT_EQ(profile.totals(StepKind::kDecode, Op::kAddRows).cost.activation_bytes, 12 * 2 * 16 * 8);
  // Each span begins where the one before ended.
  const std::vector<OpSpan> spans = profile.op_spans();
  const std::vector<StepSpan> steps = profile.step_spans();
  ASSERT_EQ(spans.size(), 3u * 9 + 1);
  ASSERT_EQ(steps.size(), 4u);
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(spans[i].start_ns,
              i == 0 ? steps[0].start_ns : spans[i - 1].start_ns + spans[i - 1].ns);
  }
  EXPECT_EQ(spans[8].start_ns + spans[8].ns, steps[0].start_ns + steps[0].ns);
}

TEST(OpProfile, TheSchedulerBetweenStepsIsNoPartOfThem) {
  OpProfile profile(1);
  profile.Begin(Op::kSchedule);
  profile.BeginStep(1, 1);
  profile.EndStep();
  profile.Begin(Op::kSchedule);
  profile.Pause();
  EXPECT_EQ(profile.totals(StepKind::kDecode, Op::kSchedule).calls, 2);
  EXPECT_EQ(
      SumOfOps(profile, StepKind::kDecode) - profile.totals(StepKind::kDecode, Op::kSchedule).ns,
      profile.steps(StepKind::kDecode).ns);
}

TEST(OpProfile, TheNewestSpansStay) {
  OpProfile profile(1, 5);
  for (int i = 1; i <= 4; ++i) {
    profile.BeginStep(i, i);
    profile.Begin(Op::kHead);
    profile.EndStep();
  }
  const std::vector<OpSpan> spans = profile.op_spans();
  ASSERT_EQ(spans.size(), 5u);
  EXPECT_EQ(profile.spans_lost(), 3);
  EXPECT_EQ(spans[0].op, Op::kHead);
  EXPECT_EQ(spans[4].op, Op::kHead);
  EXPECT_LE(spans[0].start_ns, spans[4].start_ns);
  EXPECT_EQ(profile.step_spans().back().tokens, 4);
  EXPECT_EQ(profile.totals(StepKind::kDecode, Op::kHead).calls, 4);
  profile.Reset();
  EXPECT_TRUE(profile.op_spans().empty());
  EXPECT_EQ(profile.totals(StepKind::kDecode, Op::kHead).calls, 0);
}

TEST(OpProfile, TasksCountForTheOperationThatRanThem) {
  ThreadPool pool(3);
  OpProfile profile(3, 100);
  pool.set_observer(&profile);
  pool.ParallelFor(6, [](int64_t, int32_t) {});  // outside any operation: counts for none
  profile.BeginStep(1, 1);
  profile.Begin(Op::kQkv);
  std::array<int, 20> done{};
  pool.ParallelFor(20, [&](int64_t i, int32_t) { ++done[static_cast<size_t>(i)]; });
  profile.Begin(Op::kO);
  pool.ParallelFor(1, [](int64_t, int32_t) {});
  profile.EndStep();
  pool.set_observer(nullptr);
  pool.ParallelFor(20, [&](int64_t i, int32_t) { ++done[static_cast<size_t>(i)]; });
  for (const int n : done) EXPECT_EQ(n, 2);
  int64_t ns[2] = {0, 0};
  int32_t spans_of_o = 0;
  const OpSpan qkv = profile.op_spans()[1], o = profile.op_spans()[2];
  for (const TaskSpan& s : profile.task_spans()) {
    EXPECT_GE(s.worker, 0);
    EXPECT_LT(s.worker, 3);
    if (s.start_ns < qkv.start_ns) continue;
    const OpSpan& op = s.op == Op::kQkv ? qkv : o;
    EXPECT_GE(s.start_ns, op.start_ns);
    EXPECT_LE(s.start_ns + s.ns, op.start_ns + op.ns);
    ns[s.op == Op::kO] += s.ns;
    spans_of_o += s.op == Op::kO ? 1 : 0;
  }
  EXPECT_EQ(spans_of_o, 1);
  EXPECT_EQ(profile.totals(StepKind::kDecode, Op::kQkv).busy_ns, ns[0]);
  EXPECT_EQ(profile.totals(StepKind::kDecode, Op::kO).busy_ns, ns[1]);
}

TEST(OpProfile, OffIsANullPointer) {
  OpProfile* const off = nullptr;
  BeginOp(off, Op::kQkv, RowWork{1, 1});
  const StepScope step(off, 1, 1);
}

MachinePeaks Peaks() {
  MachinePeaks peaks;
  peaks.num_threads = 2;
  peaks.math = {{.type = MathType::kF32, .available = true, .gops_per_thread = 100},
                {.type = MathType::kBF16, .available = true, .gops_per_thread = 300},
                {.type = MathType::kBF16, .available = true, .gops_per_thread = 500}};
  peaks.cache_bytes = 1000;
  peaks.cache_gb_s = 100;
  peaks.memory_gb_s = 10;
  return peaks;
}

TEST(Bound, IsTheLargerOfBytesAndOperationsAtTheirPeaks) {
  // 10 GB/s are 10^4 bytes a microsecond.
  EXPECT_DOUBLE_EQ(BoundOf({.weight_bytes = 2e4, .kv_bytes = 1e4}, 1, Peaks()).us, 3);
  // 200 GFLOP/s of two threads in float32: 2 * 10^5 a microsecond; bf16: its faster unit.
  EXPECT_DOUBLE_EQ(BoundOf({.math = {8e5, 0, 0}}, 1, Peaks()).us, 4);
  EXPECT_DOUBLE_EQ(BoundOf({.math = {0, 8e5, 0}}, 1, Peaks()).us, 0.8);
  const Bound both = BoundOf({.weight_bytes = 2e4, .math = {8e5, 8e5, 0}}, 1, Peaks());
  EXPECT_DOUBLE_EQ(both.memory_us, 2);
  EXPECT_DOUBLE_EQ(both.math_us, 4.8);
  EXPECT_DOUBLE_EQ(both.us, 4.8);
}

TEST(Bound, ActivationsComeFromTheCacheWhileTheyFitIt) {
  EXPECT_DOUBLE_EQ(BoundOf({.activation_bytes = 2000}, 1, Peaks()).us, 0.02);
  EXPECT_DOUBLE_EQ(BoundOf({.activation_bytes = 3000}, 1, Peaks()).us, 0.3);
  EXPECT_DOUBLE_EQ(BoundOf({.activation_bytes = 3000}, 2, Peaks()).us, 0.03);  // of two calls
}

TEST(OpTable, ShowsEachOperationOnce) {
  OpProfile profile(1);
  profile.BeginStep(1, 1);
  profile.BeginCost(Op::kQkv, {.weight_bytes = 1e6, .math = {2e6, 0, 0}});
  profile.EndStep();
  const std::string table = OpTable(profile, StepKind::kDecode, Peaks());
  EXPECT_NE(table.find("decode steps: 1, 1.0 tokens each"), std::string::npos) << table;
  EXPECT_NE(table.find("qkv"), std::string::npos) << table;
  EXPECT_NE(table.find("bytes    100.00"), std::string::npos) << table;  // of 10 us in operations
  EXPECT_EQ(table.find("attention"), std::string::npos) << table;
  EXPECT_EQ(OpTable(profile, StepKind::kPrefill, Peaks()), "");
}

TEST(OpTable, ATraceThatCantBeWrittenNamesItsFile) {
  const absl::Status status = WriteTrace(OpProfile(1), "/no/such/folder/t.json");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("trace_file=/no/such/folder/t.json"), std::string::npos) << status;
}

}  // namespace
}  // namespace quire::kernels
