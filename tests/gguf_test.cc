// GGUF files: values against PyPI's gguf (tests/reference/gguf/make_quants.py), and hostile files
// (HARD-CASES M01 to M07), each made here byte by byte.
#include "models/weights/gguf.h"

#include <gtest/gtest.h>

#include <cstring>

#include "models/weights/open_weights.h"
#include "models/weights/safetensors.h"
#include "tests/allocation_meter.h"
#include "tests/weight_files.h"

namespace quire {
namespace {

using absl::StatusCode;

constexpr uint32_t kUint32 = 4;
constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;
constexpr uint32_t kUint64 = 10;

std::unique_ptr<GgufFile> OpenOrDie(const std::string& path) {
  absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(path);
  CHECK(file.ok(), "{}", Message(file.status()));
  return *std::move(file);
}

class GgufHostileTest : public ::testing::Test {
 protected:
  // The file is refused, and opening it allocated next to nothing, whatever its numbers say.
  void Refused(const std::string& bytes, const std::vector<std::string>& parts,
               StatusCode code = StatusCode::kInvalidArgument) {
    const std::string path = dir_.Write("x.gguf", bytes);
    const AllocationMeter meter;
    const absl::Status status = GgufFile::Open(path).status();
    EXPECT_LT(meter.bytes(), 64 * bytes.size() + 65536) << status;
    ExpectRefused(status, code, parts);
    EXPECT_THAT(Message(status), ::testing::HasSubstr("x.gguf")) << "names the file";
  }
  absl::Status Open(const std::string& bytes) {
    return GgufFile::Open(dir_.Write("x.gguf", bytes)).status();
  }

  TempDir dir_;
};

TEST(GgufTest, TensorsOfEveryType) {
  const auto file = OpenOrDie(ReferencePath("gguf/quants.gguf"));
  const std::vector<std::pair<std::string, DType>> types = {
      {"F32", DType::kF32},   {"F16", DType::kF16},   {"BF16", DType::kBF16},
      {"Q4_0", DType::kQ4_0}, {"Q4_1", DType::kQ4_1}, {"Q5_0", DType::kQ5_0},
      {"Q5_1", DType::kQ5_1}, {"Q8_0", DType::kQ8_0}, {"Q4_K", DType::kQ4_K},
      {"Q5_K", DType::kQ5_K}, {"Q6_K", DType::kQ6_K}};
  EXPECT_EQ(file->Names().size(), types.size());
  size_t bytes = 0;
  for (const auto& [name, dtype] : types) {
    const std::optional<TensorView> view = file->Find(name);
    ASSERT_TRUE(view.has_value()) << name;
    EXPECT_EQ(view->ToString(), "[3, 512] " + name);
    EXPECT_EQ(view->dtype, dtype);
    EXPECT_EQ(file->FileOf(name), "quants.gguf");
    bytes += view->num_bytes();
  }
  EXPECT_EQ(file->bytes(), bytes);
  EXPECT_FALSE(file->Find("Q3_K").has_value());
  // Plain types can be compared with the expected values as they are.
  const auto expected = SafetensorsSource::OpenFile(ReferencePath("gguf/quants.safetensors"));
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const char* name : {"F32", "F16", "BF16"}) {
    const TensorView view = *file->Find(name);
    const auto* want = static_cast<const float*>((*expected)->Find(name)->data);
    for (int64_t i = 0; i < view.num_elements(); ++i) {
      float value;
      if (view.dtype == DType::kF32) {
        value = static_cast<const float*>(view.data)[i];
      } else {
        const uint16_t raw = static_cast<const uint16_t*>(view.data)[i];
        value = view.dtype == DType::kF16 ? F16ToFloat(raw) : BF16ToFloat(raw);
      }
      ASSERT_EQ(std::memcmp(&value, &want[i], 4), 0) << name << " " << i;
    }
  }
}

TEST(GgufTest, ValuesOfEveryType) {
  const auto file = OpenOrDie(ReferencePath("gguf/values.gguf"));
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->Keys().size(), 25u);
  EXPECT_EQ(file->GetString("general.architecture").value(), "values");
  const std::vector<std::pair<std::string, int64_t>> ints = {{"uint8", 200},
                                                             {"int8", -100},
                                                             {"uint16", 60000},
                                                             {"int16", -30000},
                                                             {"uint32", 4000000000},
                                                             {"int32", -2000000000},
                                                             {"int64", -(int64_t{1} << 62)}};
  for (const auto& [type, value] : ints) {
    EXPECT_EQ(file->GetInt("scalar." + type).value(), value) << type;
    EXPECT_THAT(file->GetIntArray("array." + type).value(),
                ::testing::ElementsAre(value, 1, value));
  }
  EXPECT_EQ(file->GetFloat("scalar.float32").value(), 0.15625);
  EXPECT_EQ(file->GetFloat("scalar.float64").value(), 1e300);
  EXPECT_THAT(file->GetFloatArray("array.float32").value(),
              ::testing::ElementsAre(0.15625, 1.0, 0.15625));
  EXPECT_THAT(file->GetFloatArray("array.float64").value(),
              ::testing::ElementsAre(1e300, 1.0, 1e300));
  EXPECT_EQ(file->GetBool("scalar.bool").value(), true);
  EXPECT_THAT(file->GetBoolArray("array.bool").value(), ::testing::ElementsAre(true, false, true));
  const std::string text = "zw\xc3\xb6lf \xe7\x8c\xab";
  EXPECT_EQ(file->GetString("scalar.string").value(), text);
  EXPECT_THAT(file->GetStringArray("array.string").value(), ::testing::ElementsAre(text, "", text));
  // A uint64 that int64 cannot hold is named, not wrapped.
  ExpectRefused(file->GetInt("scalar.uint64").status(), StatusCode::kInvalidArgument,
                {"scalar.uint64", "18446744073709551614"});
}

TEST(GgufTest, WrongTypesAreNamed) {
  const auto file = OpenOrDie(ReferencePath("gguf/values.gguf"));
  ExpectRefused(file->GetInt("scalar.string").status(), StatusCode::kInvalidArgument,
                {"values.gguf", "scalar.string", "is string", "must be integer"});
  ExpectRefused(file->GetFloat("scalar.int32").status(), StatusCode::kInvalidArgument,
                {"scalar.int32", "is int32", "must be float"});
  ExpectRefused(file->GetString("array.string").status(), StatusCode::kInvalidArgument,
                {"array.string", "is array of string", "must be string"});
  ExpectRefused(file->GetIntArray("scalar.int8").status(), StatusCode::kInvalidArgument,
                {"scalar.int8", "is int8", "must be array of integer"});
  ExpectRefused(file->GetBool("nothing.here").status(), StatusCode::kNotFound, {"nothing.here"});
}

TEST(GgufTest, Version2ReadsAlike) {
  std::string bytes = ReadBytes(ReferencePath("gguf/quants.gguf"));
  bytes[4] = 2;
  const TempDir dir;
  const auto v2 = OpenOrDie(dir.Write("v2.gguf", bytes));
  const auto v3 = OpenOrDie(ReferencePath("gguf/quants.gguf"));
  EXPECT_EQ(v2->version(), 2u);
  ASSERT_EQ(v2->Names(), v3->Names());
  for (const std::string& name : v3->Names()) {
    EXPECT_EQ(v2->Find(name)->ToString(), v3->Find(name)->ToString());
    EXPECT_EQ(std::memcmp(v2->Find(name)->data, v3->Find(name)->data, v3->Find(name)->num_bytes()),
              0);
  }
}

TEST_F(GgufHostileTest, Preamble) {
  Refused("", {"truncated", "magic"});
  Refused("GG", {"truncated", "magic"});
  Refused("GGML\3\0\0\0", {"magic=\"GGML\"", "GGUF"});
  Refused("GGUF", {"truncated", "version"});
  Refused(Bytes().Raw("GGUF").U32(1).U64(0).U64(0).text(), {"version=1"},
          StatusCode::kUnimplemented);
  Refused(Bytes().Raw("GGUF").U32(0x03000000).U64(0).U64(0).text(), {"big endian"},
          StatusCode::kUnimplemented);
  Refused(Bytes().Raw("GGUF").U32(3).U64(0).text(),
          {"truncated", "metadata_kv_count at byte 16 needs 8 bytes"});
  EXPECT_TRUE(Open(GgufParts{}.Build()).ok()) << "no tensors and no metadata is a valid file";
}

TEST_F(GgufHostileTest, M01StringLength) {
  for (const uint64_t length : {uint64_t{1} << 62, (uint64_t{1} << 63) - 1, ~uint64_t{0},
                                uint64_t{49}, uint64_t{1} << 30}) {
    const std::string bytes =
        Bytes().Raw("GGUF").U32(3).U64(0).U64(1).U64(length).Raw(std::string(16, 'a')).text();
    Refused(bytes, {"metadata entry 0", fmt::format("key length={}", length), "byte 24"});
  }
  // A value's string, and a key that the file does back but the format forbids.
  GgufParts parts;
  parts.Entry("general.name", kString, Bytes().U64(uint64_t{1} << 62).Raw("abc").text());
  Refused(parts.Build(), {"general.name", "length=4611686018427387904"});
  GgufParts long_key;
  long_key.Entry(std::string(70000, 'k'), kUint32, Bytes().U32(1).text());
  Refused(long_key.Build(), {"key length=70000", "65535"});
  GgufParts no_key;
  no_key.Entry("", kUint32, Bytes().U32(1).text());
  Refused(no_key.Build(), {"empty key"});
}

TEST_F(GgufHostileTest, M02CountsAndArrays) {
  constexpr uint64_t kHuge = uint64_t{1} << 63;
  const auto header = [](uint64_t tensors, uint64_t entries) {
    return Bytes().Raw("GGUF").U32(3).U64(tensors).U64(entries).Raw(std::string(64, '\0')).text();
  };
  Refused(header(0, kHuge), {"metadata_kv_count=9223372036854775808"});
  Refused(header(kHuge, 0), {"tensor_count=9223372036854775808"});
  // Products with the size of a description that wrap to something small.
  for (const uint64_t size : {32, 40, 48, 56, 64, 96, 128, 136, 200}) {
    Refused(header(kHuge / size - 1, 0), {"tensor_count="});
    Refused(header(~uint64_t{0} / size + 1, 0), {"tensor_count="});
    Refused(header(0, ~uint64_t{0} / size + 1), {"metadata_kv_count="});
  }
  for (uint32_t type = 0; type <= 12; ++type) {
    if (type == kArray) continue;
    GgufParts parts;
    parts.Entry("a", kArray, Bytes().U32(type).U64(kHuge).text());
    Refused(parts.Build(), {"key a", "array length=9223372036854775808"});
  }
  for (const uint32_t type : {13u, 255u, ~0u}) {
    GgufParts element;
    element.Entry("a", kArray, Bytes().U32(type).U64(1).U64(0).text());
    Refused(element.Build(), {"key a", fmt::format("array type={}", type)});
    GgufParts value;
    value.Entry("a", type, Bytes().U64(1).U64(0).text());
    Refused(value.Build(), {"key a", fmt::format("value type={}", type)});
  }
  Bytes nested;
  for (int i = 0; i < 10000; ++i) nested.U32(kArray).U64(1);
  GgufParts deep;
  deep.Entry("deep", kArray, nested.text());
  Refused(deep.Build(), {"deep", "arrays of arrays"}, StatusCode::kUnimplemented);
  // Strings whose lengths pass one by one, until their sum leaves the file.
  GgufParts strings;
  strings.Entry("s", kArray,
                Bytes().U32(kString).U64(3).Str("ab").Str("cd").U64(200).Raw("ef").text());
  Refused(strings.Build(), {"key s", "element 2", "length=200"});
  GgufParts flag;
  flag.Entry("flag", 7, std::string(1, '\2'));
  Refused(flag.Build(), {"flag", "bool=2"});
}

TEST_F(GgufHostileTest, M03Dimensions) {
  for (const uint32_t n : {0u, 5u, 9u, 1000000u, ~0u}) {
    GgufParts parts;
    parts.infos.Str("w").U32(n);
    for (uint32_t i = 0; i < std::min(n, 16u); ++i) parts.infos.U64(1);
    parts.infos.U32(0).U64(0);
    parts.num_tensors = 1;
    parts.data = std::string(64, '\0');
    Refused(parts.Build(), {"tensor w", fmt::format("n_dims={}", n), "[1, 4]"});
  }
  const std::vector<std::vector<uint64_t>> shapes = {
      {(uint64_t{1} << 42) + 1, uint64_t{1} << 22},
      {uint64_t{1} << 32, uint64_t{1} << 32},
      {0, 5},
      {5, 0},
      {uint64_t{1} << 63, 2},
      {~uint64_t{0}, 2},
      {uint64_t{1} << 31, uint64_t{1} << 31, 4},  // fits as a count, not as bytes
      {uint64_t{1} << 62},
  };
  for (const auto& dims : shapes) {
    GgufParts parts;
    parts.Tensor("w", dims, 0, 0).data = std::string(64, '\0');
    Refused(parts.Build(), {"tensor w"});
  }
  // The row of a block type must be whole blocks; the total alone is not enough.
  GgufParts odd;
  odd.Tensor("w", {48, 2}, 2, 0).data = std::string(64, '\0');
  Refused(odd.Build(), {"tensor w", "dim[0]=48", "32", "Q4_0"});
  GgufParts control;
  control.Tensor("w", {4, 2}, 0, 0).data = std::string(32, '\0');
  EXPECT_TRUE(Open(control.Build()).ok());
}

TEST_F(GgufHostileTest, M04PatchedDimension) {
  const std::string good = ReadBytes(ReferencePath("models/llama-gguf/model.gguf"));
  const std::string name = "token_embd.weight";
  // Name, uint32 n_dims, then dim[0] = 48 and dim[1] = 200.
  const size_t at = good.find(name) + name.size() + 4 + 8;
  uint64_t dim;
  std::memcpy(&dim, good.data() + at, 8);
  ASSERT_EQ(dim, 200u);
  // 48 * 4 bytes a row = 3 * 2^6, so that rows + k * 2^58 gives the same size modulo 2^64.
  for (const uint64_t patched :
       {(uint64_t{1} << 42) + 1, 200 + (uint64_t{1} << 58), 200 + (uint64_t{1} << 60),
        200 + (uint64_t{1} << 62), uint64_t{201}}) {
    std::string bytes = good;
    std::memcpy(bytes.data() + at, &patched, 8);
    Refused(bytes, {name});
  }
}

TEST_F(GgufHostileTest, M05Alignment) {
  const auto with = [](uint32_t type, const std::string& value) {
    GgufParts parts;
    parts.Entry("general.alignment", type, value).Tensor("w", {4, 2}, 0, 0);
    parts.data = std::string(64, '\0');
    return parts;
  };
  for (const uint32_t a : {0u, 1u, 3u, 48u, 1u << 30, 1u << 31, ~0u}) {
    Refused(with(kUint32, Bytes().U32(a).text()).Build(),
            {fmt::format("general.alignment={}", a), "power of two"});
  }
  // In range, but then the data would begin behind the end of the file.
  Refused(with(kUint32, Bytes().U32(1 << 20).text()).Build(), {"truncated", "tensor w"});
  Refused(with(kUint64, Bytes().U64(32).text()).Build(), {"general.alignment", "uint64", "uint32"});
  Refused(with(kString, Bytes().Str("32").text()).Build(), {"general.alignment", "string"});
  GgufParts twice = with(kUint32, Bytes().U32(32).text());
  twice.Entry("general.alignment", kUint32, Bytes().U32(32).text());
  Refused(twice.Build(), {"general.alignment", "twice"});
  GgufParts wide = with(kUint32, Bytes().U32(256).text());
  wide.alignment = 256;
  EXPECT_TRUE(Open(wide.Build()).ok());
}

TEST_F(GgufHostileTest, M07Offsets) {
  const auto with = [](uint64_t offset, size_t data_bytes) {
    GgufParts parts;
    parts.Tensor("w", {8}, 0, offset).data = std::string(data_bytes, '\1');
    return parts.Build();
  };
  EXPECT_TRUE(Open(with(0, 32)).ok());
  EXPECT_TRUE(Open(with(32, 64)).ok());
  Refused(with(uint64_t{1} << 40, 64), {"truncated", "tensor w", "offset=1099511627776"});
  Refused(with(~uint64_t{0} - 31, 64), {"tensor w", "offset=18446744073709551584", "overflows"});
  Refused(with(uint64_t{0} - 96, 64), {"tensor w", "overflows"});
  Refused(with(16, 64), {"tensor w", "offset=16", "general.alignment=32"});
  Refused(with(0, 31), {"truncated", "tensor w", "ends at byte 96", "only 95"});

  GgufParts overlap;
  overlap.Tensor("a", {16}, 0, 0).Tensor("b", {8}, 0, 32).data = std::string(96, '\0');
  Refused(overlap.Build(), {"tensor b", "overlaps tensor a"});
  GgufParts same_place;
  same_place.Tensor("a", {8}, 0, 0).Tensor("b", {8}, 0, 0).data = std::string(32, '\0');
  Refused(same_place.Build(), {"overlaps"});
  GgufParts twice;
  twice.Tensor("a", {8}, 0, 0).Tensor("a", {8}, 0, 32).data = std::string(64, '\0');
  Refused(twice.Build(), {"tensor a", "twice"});
  GgufParts long_name;
  long_name.Tensor(std::string(200, 'n'), {8}, 0, 0).data = std::string(32, '\0');
  Refused(long_name.Build(), {"tensor 0", "name length=200", "64"});
  // Order in the file is free.
  GgufParts reversed;
  reversed.Tensor("a", {8}, 0, 32).Tensor("b", {8}, 0, 0).data = std::string(64, '\0');
  EXPECT_TRUE(Open(reversed.Build()).ok());
}

TEST_F(GgufHostileTest, EveryTruncationIsRefused) {
  GgufParts parts;
  parts.Entry("general.architecture", kString, Bytes().Str("llama").text())
      .Entry("a.list", kArray, Bytes().U32(kString).U64(2).Str("x").Str("yz").text())
      .Tensor("first", {32, 2}, 8, 0)
      .Tensor("second", {8}, 0, 96);
  parts.data = std::string(128, '\0');
  const std::string whole = parts.Build();
  ASSERT_TRUE(Open(whole).ok());
  for (size_t n = 0; n < whole.size(); ++n) {
    const absl::Status status = Open(whole.substr(0, n));
    ASSERT_FALSE(status.ok()) << "cut to " << n;
    EXPECT_THAT(Message(status), ::testing::HasSubstr("truncated")) << "cut to " << n;
  }
}

TEST_F(GgufHostileTest, UnsupportedTypesByName) {
  const std::vector<std::pair<uint32_t, std::string>> types = {
      {10, "Q2_K"}, {11, "Q3_K"}, {20, "IQ4_NL"}, {39, "MXFP4"}, {26, "I32"}, {99, "type 99"}};
  for (const auto& [number, name] : types) {
    GgufParts parts;
    parts.Tensor("blk.0.w", {256}, number, 0).data = std::string(2048, '\0');
    Refused(parts.Build(), {"blk.0.w", name, "Q4_K"}, StatusCode::kUnimplemented);
  }
  GgufParts split;
  split.Entry("split.count", 2, Bytes().Put(uint16_t{3}).text());
  Refused(split.Build(), {"split.count=3"}, StatusCode::kUnimplemented);
}

TEST(OpenWeightsTest, ByPath) {
  const TempDir dir;
  EXPECT_TRUE(OpenWeights(ReferencePath("gguf/quants.gguf")).ok());
  EXPECT_TRUE(OpenWeights(ReferencePath("gguf/quants.safetensors")).ok());
  EXPECT_TRUE(OpenWeights(ReferencePath("models/llama")).ok());
  ExpectRefused(OpenWeights(dir.File("none")).status(), StatusCode::kNotFound, {dir.File("none")});
  dir.Write("model.Q4_0.gguf", "");
  ExpectRefused(OpenWeights(dir.path()).status(), StatusCode::kNotFound,
                {"model.safetensors", "model.Q4_0.gguf", "path of a .gguf file"});
  ExpectRefused(OpenWeights(dir.Write("model.bin", "x")).status(), StatusCode::kInvalidArgument,
                {"model.bin", ".gguf"});
  std::filesystem::create_directory(dir.File("sub.gguf"));
  EXPECT_FALSE(OpenWeights(dir.File("sub.gguf")).ok());
}

}  // namespace
}  // namespace quire
