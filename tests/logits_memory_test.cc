// tests/logits_memory_test.cc -- a large vocabulary: logits, samplers and log-probabilities stay
// within what the profile set aside (HARD-CASES L03).
//
// This file replaces the global operator new, to know the most that was ever held at once. The
// arena and the pools don't go through it: they are sized by the profile and abort beyond it.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "models/executor.h"
#include "models/runtime.h"
#include "scheduler/scheduler.h"
#include "tests/weight_files.h"

namespace quire {
namespace {

std::atomic<int64_t> g_live{0};
std::atomic<int64_t> g_peak{0};

void Count(int64_t bytes) {
  const int64_t live = g_live.fetch_add(bytes) + bytes;
  int64_t peak = g_peak.load();
  while (live > peak && !g_peak.compare_exchange_weak(peak, live)) {
  }
}

}  // namespace
}  // namespace quire

[[gnu::noinline]] void* operator new(std::size_t size) {
  void* const p = std::malloc(size != 0 ? size : 1);
  if (p == nullptr) throw std::bad_alloc();
  quire::Count(static_cast<int64_t>(malloc_usable_size(p)));
  return p;
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  void* const p = std::malloc(size != 0 ? size : 1);
  if (p != nullptr) quire::Count(static_cast<int64_t>(malloc_usable_size(p)));
  return p;
}
[[gnu::noinline]] void* operator new[](std::size_t size) { return ::operator new(size); }
[[gnu::noinline]] void* operator new[](std::size_t size, const std::nothrow_t& t) noexcept {
  return ::operator new(size, t);
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  quire::Count(-static_cast<int64_t>(malloc_usable_size(p)));
  std::free(p);
}
[[gnu::noinline]] void operator delete[](void* p) noexcept { ::operator delete(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { ::operator delete(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept { ::operator delete(p); }

namespace quire {
namespace {

constexpr int32_t kVocab = 131072;
constexpr int32_t kHidden = 16;
constexpr int32_t kRows = 64;
constexpr int32_t kStepTokens = 8192;

// One layer, one head; embeddings that give every token another logit.
std::string WriteModel(const std::string& dir) {
  std::string header = "{";
  std::string data;
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns) {
    const auto count = static_cast<size_t>(rows * std::max<int64_t>(columns, 1));
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) {
      values[i] = columns == 0 ? 1.0f : static_cast<float>(i * 2654435761u % 1000) / 1000 - 0.5f;
    }
    header += fmt::format(
        "{}\"{}\":{{\"dtype\":\"F32\",\"shape\":[{}{}],\"data_offsets\":[{},{}]}}",
        header.size() > 1 ? "," : "", name, rows, columns == 0 ? "" : fmt::format(",{}", columns),
        data.size(), data.size() + count * sizeof(float));
    data.append(reinterpret_cast<const char*>(values.data()), count * sizeof(float));
  };
  const std::string layer = "model.layers.0.";
  add("model.embed_tokens.weight", kVocab, kHidden);
  add("model.norm.weight", kHidden, 0);
  add(layer + "input_layernorm.weight", kHidden, 0);
  add(layer + "post_attention_layernorm.weight", kHidden, 0);
  for (const char* name : {"q", "k", "v", "o"}) {
    add(fmt::format("{}self_attn.{}_proj.weight", layer, name), kHidden, kHidden);
  }
  for (const char* name : {"gate", "up", "down"}) {
    add(fmt::format("{}mlp.{}_proj.weight", layer, name), kHidden, kHidden);
  }
  WriteBytes(dir + "/model.safetensors", Safetensors(header + "}", data));
  WriteBytes(dir + "/config.json",
             fmt::format(R"({{"architectures": ["LlamaForCausalLM"], "hidden_size": {}, )"
                         R"("num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": {}, )"
                         R"("intermediate_size": {}, "max_position_embeddings": 16384, )"
                         R"("rms_norm_eps": 1e-5, "tie_word_embeddings": true}})",
                         kHidden, kVocab, kHidden));
  return dir;
}

// A memory with just so much room: the pool is what is left.
class SmallMemory : public DeviceMemory {
 public:
  absl::StatusOr<MemoryInfo> Read() const override {
    constexpr int64_t kLimit = int64_t{1} << 30;
    return MemoryInfo{.limit = kLimit,
                      .limit_source = "made up",
                      .available = kLimit,
                      .available_source = "made up"};
  }
};

TEST(LogitsMemory, L03_SixtyFourRowsOfALargeVocabularyStayInTheProfile) {
  const TempDir dir;
  const SmallMemory memory;
  RuntimeOptions o;
  o.model = WriteModel(dir.path());
  o.num_threads = 2;
  o.max_num_seqs = kRows;
  o.max_num_batched_tokens = kStepTokens;
  o.memory.memory_utilization = 1;
  o.device_memory = &memory;
  const auto loaded = ModelRuntime::Load(o);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ModelRuntime& runtime = **loaded;
  const MemoryProfile& p = runtime.memory();
  int64_t logits = 0;
  for (const ActivationPart& part : p.activation_parts) {
    if (part.what == "logits") logits = part.bytes;
  }
  EXPECT_EQ(logits, int64_t{kRows} * (kVocab + kHidden) * 4);

  SchedulerOptions options;
  options.max_num_seqs = kRows;
  options.max_num_batched_tokens = kStepTokens;
  options.max_model_len = runtime.max_model_len();
  Scheduler scheduler(options, runtime.block_manager());
  std::vector<TokenEvent> events;
  for (RequestId id = 1; id <= kRows; ++id) {
    auto request = std::make_shared<Request>();
    request->id = id;
    request->prompt.assign(id == 1 ? 8000 : 3, static_cast<TokenId>(id));
    request->sampling.temperature = 1;
    request->sampling.top_p = 0.999f;
    request->sampling.num_logprobs = 20;
    request->stop.max_tokens = 3;
    scheduler.Apply(Submit{request}, events);
  }
  const int64_t before = g_live.load();
  g_peak = before;
  size_t most_rows = 0;
  int32_t largest_step = 0;
  while (!scheduler.idle()) {
    const ScheduledBatch batch = scheduler.Schedule(events);
    const absl::StatusOr<StepOutput> out = runtime.executor().Run(batch);
    ASSERT_TRUE(out.ok()) << out.status();
    most_rows = std::max(most_rows, out->rows.size());
    largest_step = std::max(largest_step, batch.num_tokens);
    scheduler.Commit(batch, *out, events);
  }
  EXPECT_EQ(most_rows, size_t{kRows});
  EXPECT_GT(largest_step, 8000);
  const int64_t held = g_peak.load() - before;
  EXPECT_GT(held, int64_t{kVocab} * 4);  // the samplers were at work
  EXPECT_LE(held, p.reserve);
  const auto& executor = static_cast<const ModelExecutor&>(runtime.executor());
  EXPECT_LE(static_cast<int64_t>(executor.arena_peak()), p.activation_peak);
  EXPECT_LE(p.weights + p.activation_peak + p.reserve + p.kv_pool, p.limit);
}

}  // namespace
}  // namespace quire
