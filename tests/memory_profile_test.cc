// tests/memory_profile_test.cc -- the pool from fakes of a memory: tight, shared, changing while
// the model loads, and a card's. The model and its dry run are real.
#include "models/memory_profile.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <vector>

#include "models/runtime.h"

namespace quire {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Gives its readings in turn, the last one again and again.
class FakeMemory : public DeviceMemory {
 public:
  explicit FakeMemory(std::vector<MemoryInfo> readings) : readings_(std::move(readings)) {}
  absl::StatusOr<MemoryInfo> Read() const override {
    const size_t at = std::min(num_reads_++, readings_.size() - 1);
    return readings_[at];
  }
  size_t num_reads() const { return num_reads_; }

 private:
  std::vector<MemoryInfo> readings_;
  mutable size_t num_reads_ = 0;
};

MemoryInfo Reading(int64_t limit, int64_t available, const std::string& source = "made up") {
  return {.limit = limit,
          .limit_source = source,
          .available = available,
          .available_source = source,
          .others = limit - available};
}

absl::StatusOr<std::unique_ptr<ModelRuntime>> Load(const DeviceMemory& memory,
                                                   const MemoryOptions& options = {}) {
  RuntimeOptions o;
  o.model = std::string(QUIRE_TEST_REFERENCE) + "/models/llama";
  o.num_threads = 2;
  o.max_num_seqs = 8;
  o.max_num_batched_tokens = 64;
  o.memory = options;
  o.device_memory = &memory;
  return ModelRuntime::Load(o);
}

// What the tiny model needs beside its pool.
int64_t Needs(const MemoryProfile& p) { return p.weights + p.activation_peak + p.reserve; }

TEST(MemoryProfile, BudgetIsAShareOfTheLimit) {
  const FakeMemory memory({Reading(1000 * kMiB, 1000 * kMiB, "cgroup")});
  const auto runtime = Load(memory, {.memory_utilization = 0.25});
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const MemoryProfile& p = (*runtime)->memory();
  EXPECT_EQ(memory.num_reads(), 2u);
  EXPECT_EQ(p.budget, 250 * kMiB);
  EXPECT_EQ(p.num_blocks, (p.budget - Needs(p)) / p.block_bytes);
  const std::string text = p.ToString();
  for (const char* part : {"(cgroup)", "used by others", "residual", "qkv", "attention", "mlp",
                           "rope", "logits", "reserve"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

// A big neighbour: the limit says 1000 MiB, but only 200 are left.
TEST(MemoryProfile, OthersUseIsNotOurs) {
  const auto runtime = Load(FakeMemory({Reading(1000 * kMiB, 200 * kMiB)}));
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const MemoryProfile& p = (*runtime)->memory();
  EXPECT_EQ(p.available, 200 * kMiB);
  EXPECT_EQ(p.others, 800 * kMiB);
  EXPECT_EQ(p.budget, 200 * kMiB);
  EXPECT_LE(Needs(p) + p.kv_pool, 200 * kMiB);
}

// HARD-CASES L02: a co-tenant frees or takes memory between the readings. The careful one rules.
TEST(MemoryProfile, L02_TheMoreCarefulReadingRules) {
  for (const auto& [before, after, expected] :
       {std::tuple<int64_t, int64_t, int64_t>{200, 1200, 200},  // freed while loading
        {1200, 200, 200},                                       // taken while loading
        {300, 300, 300}}) {
    const FakeMemory memory(
        {Reading(2000 * kMiB, before * kMiB), Reading(2000 * kMiB, after * kMiB)});
    const auto runtime = Load(memory);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    const MemoryProfile& p = (*runtime)->memory();
    // What the second reading lacks may be our own weights.
    EXPECT_GE(p.available, expected * kMiB);
    EXPECT_LE(p.available, expected * kMiB + p.weights);
    EXPECT_GT(p.num_blocks, 0);
    EXPECT_EQ(p.others, (2000 - std::min(before, after)) * kMiB);
  }
}

TEST(MemoryProfile, L02_TooLittleIsAClearErrorAndNothingIsNegative) {
  for (const auto& [before, after] : {std::pair<int64_t, int64_t>{1000, 0}, {0, 1000}, {10, 10}}) {
    const FakeMemory memory({Reading(2000 * kMiB, before * kMiB, "small"),
                             Reading(2000 * kMiB, after * kMiB, "small")});
    const auto runtime = Load(memory);
    ASSERT_FALSE(runtime.ok());
    EXPECT_EQ(runtime.status().code(), absl::StatusCode::kResourceExhausted);
    const std::string text = Message(runtime.status());
    for (const char* part : {"0 MiB are left", "weights", "activations", "reserve", "(small)"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    }
    EXPECT_EQ(text.find('-' + std::string("1")), std::string::npos) << text;
  }
}

// A limit that shrinks while the model loads, as an operator may do to a container.
TEST(MemoryProfile, TheSmallerLimitRules) {
  const FakeMemory memory(
      {Reading(1000 * kMiB, 1000 * kMiB, "first"), Reading(400 * kMiB, 400 * kMiB, "second")});
  const auto runtime = Load(memory, {.memory_utilization = 0.5});
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const MemoryProfile& p = (*runtime)->memory();
  EXPECT_EQ(p.limit, 400 * kMiB);
  EXPECT_EQ(p.limit_source, "second");
  EXPECT_EQ(p.budget, 200 * kMiB);
}

// A card goes through the same arithmetic.
TEST(MemoryProfile, ADeviceIsSizedLikeTheHost) {
  const DeviceOps ops{.name = "card", .memory = [](size_t* free, size_t* total) -> const char* {
                        *free = size_t{500} << 20;
                        *total = size_t{1000} << 20;
                        return nullptr;
                      }};
  const auto memory = MemoryOfDevice(ops);
  ASSERT_TRUE(memory.ok());
  const auto card = Load(**memory);
  const auto host = Load(FakeMemory({Reading(1000 * kMiB, 500 * kMiB)}));
  ASSERT_TRUE(card.ok() && host.ok());
  EXPECT_EQ((*card)->memory().num_blocks, (*host)->memory().num_blocks);
  EXPECT_EQ((*card)->memory().limit_source, "device card");
}

TEST(MemoryProfile, ActivationPartsSumToThePeak) {
  const auto runtime = Load(FakeMemory({Reading(1000 * kMiB, 1000 * kMiB)}));
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const MemoryProfile& p = (*runtime)->memory();
  // 64 tokens of 4 heads of 16, and of 2 for keys and values; float32.
  const std::map<std::string, int64_t> by_hand = {{"residual", 2 * 64 * 48 * 4},
                                                  {"qkv", 64 * (4 + 2 + 2) * 16 * 4},
                                                  {"mlp", 2 * 64 * 64 * 4},
                                                  {"logits", 8 * (48 + 200) * 4}};
  int64_t sum = 0;
  size_t found = 0;
  for (const ActivationPart& part : p.activation_parts) {
    sum += part.bytes;
    const auto it = by_hand.find(part.what);
    if (it == by_hand.end()) continue;
    ++found;
    EXPECT_EQ(part.bytes, it->second) << part.what;
  }
  EXPECT_EQ(found, by_hand.size());
  EXPECT_EQ(sum, p.activation_peak);
  EXPECT_EQ(p.activation_parts.size(), 6u);
}

}  // namespace
}  // namespace quire
