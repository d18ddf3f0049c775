// tests/dequant_test.cc -- every weight type of GGUF, bit for bit as PyPI's `gguf` reads it
// (tests/reference/gguf, written by make_quants.py there), from file form and from packed form.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "kernels/linear.h"

namespace quire::kernels {
namespace {

constexpr int64_t kRows = 3;
constexpr int64_t kCols = 512;

const DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0,
                        DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                        DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

std::string ReadFile(const std::string& name) {
  std::ifstream in(std::string(QUIRE_TEST_REFERENCE) + "/gguf/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Just enough of GGUF for this one trusted file: string and uint32 metadata, then tensor infos.
class GgufFile {
 public:
  explicit GgufFile(std::string bytes) : bytes_(std::move(bytes)) {
    at_ = 8;  // magic, version
    const auto num_tensors = Take<uint64_t>();
    const auto num_values = Take<uint64_t>();
    for (uint64_t i = 0; i < num_values; ++i) {
      TakeString();
      const auto kind = Take<uint32_t>();
      if (kind == 8) {
        TakeString();
      } else {
        EXPECT_EQ(kind, 4u) << "metadata kind that this reader does not know";
        Take<uint32_t>();
      }
    }
    for (uint64_t i = 0; i < num_tensors; ++i) {
      const std::string name = TakeString();
      const auto rank = Take<uint32_t>();
      for (uint32_t d = 0; d < rank; ++d) Take<uint64_t>();
      Take<uint32_t>();  // type
      offsets_[name] = Take<uint64_t>();
    }
    data_ = (at_ + 31) / 32 * 32;
  }
  const std::byte* Find(std::string_view name) const {
    const auto it = offsets_.find(std::string(name));
    if (it == offsets_.end()) return nullptr;
    return reinterpret_cast<const std::byte*>(bytes_.data()) + data_ + it->second;
  }

 private:
  template <typename T>
  T Take() {
    T value{};
    EXPECT_LE(at_ + sizeof(T), bytes_.size());
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string TakeString() {
    const auto length = Take<uint64_t>();
    std::string s = bytes_.substr(at_, length);
    at_ += length;
    return s;
  }

  std::string bytes_;
  size_t at_ = 0;
  size_t data_ = 0;
  std::map<std::string, uint64_t> offsets_;
};

std::vector<float> Oracle(std::string_view name) {
  const std::string file = ReadFile("quants.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const absl::StatusOr<Json> header = Json::Parse(file.substr(8, header_bytes));
  EXPECT_TRUE(header.ok());
  const Json offsets = (*header)[name]["data_offsets"];
  const auto begin = static_cast<size_t>(offsets.at(0).as_int().value_or(0));
  const auto end = static_cast<size_t>(offsets.at(1).as_int().value_or(0));
  std::vector<float> out((end - begin) / sizeof(float));
  std::memcpy(out.data(), file.data() + 8 + header_bytes + begin, end - begin);
  return out;
}

class DequantTest : public testing::TestWithParam<DType> {
 protected:
  const GgufFile file_{ReadFile("quants.gguf")};
};

void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
        << "element " << i << ": " << got[i] << " for " << want[i];
  }
}

TEST_P(DequantTest, FileFormEqualsOracle) {
  const std::byte* source = file_.Find(NameOf(GetParam()));
  ASSERT_NE(source, nullptr);
  std::vector<float> got(kRows * kCols);
  Dequantize(GetParam(), source, kRows * kCols, got.data());
  ExpectSameBits(got, Oracle(NameOf(GetParam())));
}

TEST_P(DequantTest, PackedRowsEqualOracle) {
  ThreadPool pool(2);
  const TensorView view{file_.Find(NameOf(GetParam())), GetParam(), 2, {kRows, kCols}};
  const absl::StatusOr<PackedWeight> packed = PackedWeight::Pack(view, pool);
  ASSERT_TRUE(packed.ok()) << packed.status();
  std::vector<float> got(kRows * kCols);
  for (int64_t row = 0; row < kRows; ++row) packed->Row(row, got.data() + row * kCols);
  ExpectSameBits(got, Oracle(NameOf(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Types, DequantTest, testing::ValuesIn(kTypes),
                         [](const auto& type) { return std::string(NameOf(type.param)); });

}  // namespace
}  // namespace quire::kernels
