// Mutations of small good files: whatever bytes are flipped, cut or copied about, opening a file
// either fails with an error that names it or gives tensors and values that lie within the file,
// and never allocates beyond a multiple of the file's size. Seeded: a failure prints its seed.
// Meant for the asan preset above all.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "models/checkpoint.h"
#include "models/model_weights.h"
#include "models/weights/gguf.h"
#include "models/weights/safetensors.h"
#include "tests/allocation_meter.h"
#include "tests/weight_files.h"

namespace quire {
namespace {

constexpr int kVariants = 6000;

// Values that loaders trip over.
constexpr uint64_t kHostile[] = {0,
                                 1,
                                 5,
                                 9,
                                 31,
                                 0x7f,
                                 0xff,
                                 0xffff,
                                 0x7fffffff,
                                 0x80000000,
                                 0xffffffff,
                                 uint64_t{1} << 40,
                                 uint64_t{1} << 61,
                                 uint64_t{1} << 62,
                                 uint64_t{1} << 63,
                                 (uint64_t{1} << 63) - 1,
                                 ~uint64_t{0},
                                 ~uint64_t{0} - 31};

// Touches only the first `header` bytes, but for truncations.
std::string Mutate(std::string bytes, size_t header, std::mt19937_64& rng) {
  const auto below = [&rng](size_t n) { return static_cast<size_t>(rng() % n); };
  const size_t edits = 1 + below(4);
  for (size_t e = 0; e < edits && bytes.size() > 16; ++e) {
    const size_t limit = std::min(header, bytes.size());
    const size_t at = below(limit);
    switch (below(6)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(below(256));
        break;
      case 2: {  // a number of 4 or 8 bytes
        const uint64_t value = kHostile[below(std::size(kHostile))];
        const size_t n = std::min(below(2) == 0 ? size_t{4} : size_t{8}, bytes.size() - at);
        std::memcpy(bytes.data() + at, &value, n);
        break;
      }
      case 3:
        bytes.resize(below(bytes.size()));
        break;
      case 4: {  // a piece of the header over another
        const size_t from = below(limit);
        const size_t n = std::min({below(64) + 1, bytes.size() - at, bytes.size() - from});
        std::memmove(bytes.data() + at, bytes.data() + from, n);
        break;
      }
      default:
        bytes.erase(at, std::min(below(16) + 1, bytes.size() - at));
        break;
    }
  }
  return bytes;
}

// Reads every byte that a source gives: outside of the mapping, that is a crash.
size_t Touch(const WeightSource& source) {
  size_t sum = 0;
  for (const std::string& name : source.Names()) {
    const TensorView view = *source.Find(name);
    const auto* bytes = static_cast<const unsigned char*>(view.data);
    for (size_t i = 0; i < view.num_bytes(); ++i) sum += bytes[i];
  }
  return sum;
}

void TouchValues(const GgufFile& file) {
  for (const std::string& key : file.Keys()) {
    (void)file.GetInt(key);
    (void)file.GetFloat(key);
    (void)file.GetBool(key);
    (void)file.GetString(key);
    (void)file.GetIntArray(key);
    (void)file.GetFloatArray(key);
    (void)file.GetBoolArray(key);
    (void)file.GetStringArray(key);
  }
}

struct Tally {
  int refused = 0;
  int opened = 0;
};

TEST(WeightsFuzzTest, Gguf) {
  GgufParts parts;
  parts.Entry("general.architecture", 8, Bytes().Str("llama").text())
      .Entry("general.alignment", 4, Bytes().U32(32).text())
      .Entry("llama.block_count", 4, Bytes().U32(1).text())
      .Entry("llama.rope.freq_base", 6, Bytes().Put(10000.0f).text())
      .Entry("list.text", 9, Bytes().U32(8).U64(3).Str("x").Str("yz").Str("").text())
      .Entry("list.float", 9, Bytes().U32(6).U64(4).U64(0).U64(0).text())
      .Entry("list.bool", 9, Bytes().U32(7).U64(3).Raw(std::string(3, '\1')).text())
      .Entry("big", 10, Bytes().U64(7).text())
      .Tensor("token_embd.weight", {32, 8}, 0, 0)
      .Tensor("blk.0.attn_q.weight", {32, 4}, 8, 1024)
      .Tensor("blk.0.ffn.weight", {256, 1}, 12, 1184);
  parts.data = std::string(1184 + 144, '\5');
  const std::string good = parts.Build();
  const TempDir dir;
  Tally tally;
  for (int seed = 0; seed < kVariants; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(static_cast<uint64_t>(seed));
    const std::string bytes = Mutate(good, good.size() - parts.data.size(), rng);
    const std::string path = dir.Write("x.gguf", bytes);
    const AllocationMeter meter;
    const auto file = GgufFile::Open(path);
    ASSERT_LT(meter.bytes(), 64 * bytes.size() + 65536);
    if (file.ok()) {
      ++tally.opened;
      Touch(**file);
      TouchValues(**file);
    } else {
      ++tally.refused;
      ASSERT_THAT(Message(file.status()), ::testing::HasSubstr("x.gguf"));
    }
  }
  EXPECT_GT(tally.refused, kVariants / 3);
  EXPECT_GT(tally.opened, kVariants / 200) << "some mutations leave a valid file";
}

// The whole road, configuration and binding included.
TEST(WeightsFuzzTest, GgufCheckpoint) {
  const std::string good = ReadBytes(ReferencePath("models/llama-gguf/model.gguf"));
  const TempDir dir;
  Tally tally;
  for (int seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(static_cast<uint64_t>(seed) + 1000000);
    const std::string path = dir.Write("x.gguf", Mutate(good, 2496, rng));
    const AllocationMeter meter;
    const auto checkpoint = OpenCheckpoint(path);
    if (checkpoint.ok()) {
      const auto weights = BindWeights(checkpoint->config, *checkpoint->weights);
      ++(weights.ok() ? tally.opened : tally.refused);
      if (weights.ok()) Touch(*checkpoint->weights);
    } else {
      ++tally.refused;
    }
    // 4096 layers at most, whatever block_count says.
    ASSERT_LT(meter.bytes(), size_t{16} << 20);
  }
  EXPECT_GT(tally.refused, 100);
  EXPECT_GT(tally.opened, 5);
}

TEST(WeightsFuzzTest, Safetensors) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},)"
      R"("a.weight":{"dtype":"F32","shape":[4,3],"data_offsets":[0,48]},)"
      R"("b.weight":{"dtype":"BF16","shape":[8],"data_offsets":[48,64]},)"
      R"("c.weight":{"dtype":"F8_E4M3","shape":[0,2],"data_offsets":[64,64]},)"
      R"("d.bias":{"dtype":"F16","shape":[],"data_offsets":[64,66]}}   )";
  const std::string good = Safetensors(header, std::string(66, '\3'));
  const TempDir dir;
  Tally tally;
  for (int seed = 0; seed < kVariants; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(static_cast<uint64_t>(seed));
    const std::string bytes = Mutate(good, good.size() - 66, rng);
    const std::string path = dir.Write("x.safetensors", bytes);
    const AllocationMeter meter;
    const auto source = SafetensorsSource::OpenFile(path);
    ASSERT_LT(meter.bytes(), 64 * bytes.size() + 65536);
    if (source.ok()) {
      ++tally.opened;
      Touch(**source);
    } else {
      ++tally.refused;
      ASSERT_THAT(Message(source.status()), ::testing::HasSubstr("x.safetensors"));
    }
  }
  EXPECT_GT(tally.refused, kVariants / 3);
  EXPECT_GT(tally.opened, kVariants / 200) << "some mutations leave a valid file";
}

TEST(WeightsFuzzTest, ShardIndex) {
  const TempDir dir;
  dir.Write("m-1.safetensors",
            Safetensors(R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})", "abcd"));
  dir.Write("m-2.safetensors",
            Safetensors(R"({"b":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})", "abcd"));
  const std::string good =
      R"({"metadata":{"total_size":8},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})";
  Tally tally;
  for (int seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(static_cast<uint64_t>(seed));
    dir.Write(kSafetensorsIndex, Mutate(good, good.size(), rng));
    const AllocationMeter meter;
    const auto source = SafetensorsSource::OpenDirectory(dir.path());
    ASSERT_LT(meter.bytes(), size_t{1} << 20);
    ++(source.ok() ? tally.opened : tally.refused);
    if (source.ok()) Touch(**source);
  }
  EXPECT_GT(tally.refused, 500);
  EXPECT_GT(tally.opened, 20);
}

}  // namespace
}  // namespace quire
