// tests/kv_int8_test.cc -- int8 caches: codes and scales against numpy's, bit by bit; attention
// over them by every backend against float64 over what numpy gives back; the error that attention.h
// states.
#include <gtest/gtest.h>

#include "tests/support/attention_rig.h"
#include "tests/support/golden_file.h"

namespace quire::kernels {
namespace {

// Keys (or values) of one layer in pages, written by WriteKv and read by the layout that
// attention.h states, element by element.
class Pages {
 public:
  Pages(const AttentionShape& s, int32_t page_size, const std::vector<float>& k,
        const std::vector<float>& v)
      : shape_(s), page_size_(page_size) {
    const size_t tokens = k.size() / (static_cast<size_t>(s.num_kv_heads) * s.head_dim);
    // Slots in no order, a few pages apart.
    for (size_t t = 0; t < tokens; ++t) {
      slots_.push_back(static_cast<int64_t>((t * 37 + 11) % (4 * tokens + 1)));
    }
    stride_ = KeyPageBytes(s, page_size) + ValuePageBytes(s, page_size);
    bytes_.assign((4 * tokens / static_cast<size_t>(page_size) + 1) * stride_, std::byte{0xff});
    ThreadPool pool(2);
    WriteKv(
        {.num_tokens = static_cast<int32_t>(tokens), .page_size = page_size, .write_table = slots_},
        s,
        {.k = k.data(),
         .v = v.data(),
         .k_base = bytes_.data(),
         .v_base = bytes_.data() + KeyPageBytes(s, page_size),
         .page_stride = static_cast<int64_t>(stride_)},
        pool);
  }

  int8_t KeyCode(size_t token, size_t head, size_t d) const {
    return Read<int8_t>(Head(token, head, true) + d * page_size_ + Offset(token));
  }
  int8_t ValueCode(size_t token, size_t head, size_t d) const {
    const size_t dim = static_cast<size_t>(shape_.head_dim_v);
    return Read<int8_t>(Head(token, head, false) + Offset(token) * dim + d);
  }
  uint16_t Scale(size_t token, size_t head, bool key) const {
    const auto dim = static_cast<size_t>(key ? shape_.head_dim : shape_.head_dim_v);
    return Read<uint16_t>(Head(token, head, key) + dim * page_size_ + 2 * Offset(token));
  }
  size_t CountUntouched() const {
    return static_cast<size_t>(std::count(bytes_.begin(), bytes_.end(), std::byte{0xff}));
  }
  size_t size() const { return bytes_.size(); }

 private:
  size_t Offset(size_t token) const { return static_cast<size_t>(slots_[token]) % page_size_; }
  // Byte at which a head's part of the token's page begins.
  size_t Head(size_t token, size_t head, bool key) const {
    const size_t page = static_cast<size_t>(slots_[token]) / page_size_ * stride_;
    const auto dim = static_cast<size_t>(key ? shape_.head_dim : shape_.head_dim_v);
    return page + (key ? 0 : KeyPageBytes(shape_, static_cast<int32_t>(page_size_))) +
           head * page_size_ * (dim + 2);
  }
  template <typename T>
  T Read(size_t at) const {
    T x;
    std::memcpy(&x, &bytes_[at], sizeof(T));
    return x;
  }

  AttentionShape shape_;
  size_t page_size_;
  std::vector<int64_t> slots_;
  size_t stride_ = 0;
  std::vector<std::byte> bytes_;
};

struct Recorded {
  std::string name;
  AttentionShape shape;
  int32_t tokens = 0;
  double tolerance = 0;
  std::vector<float> q, k, v;
};

class KvInt8 : public testing::Test {
 protected:
  KvInt8() : file_(QUIRE_TEST_REFERENCE "/kv_int8/kv_int8.safetensors") {
    const Json json = ReadGoldenJson(QUIRE_TEST_REFERENCE "/kv_int8/kv_int8.json");
    for (size_t i = 0; i < json.size(); ++i) {
      const Json c = json.at(i);
      const auto number = [&](const char* key) { return static_cast<int32_t>(*c[key].as_int()); };
      Recorded r;
      r.name = std::string(*c["name"].as_string());
      r.shape = Shape(number("heads"), number("kv_heads"), number("dim"), number("dim_v"));
      r.shape.kv_dtype = DType::kI8;
      r.tokens = number("tokens");
      r.tolerance = *c["tolerance_abs"].as_double();
      r.q = file_.Floats(r.name + ".q");
      r.k = file_.Floats(r.name + ".k");
      r.v = file_.Floats(r.name + ".v");
      cases_.push_back(r);
    }
  }
  const GoldenFile file_;
  std::vector<Recorded> cases_;
};

TEST_F(KvInt8, CodesAndScalesAreNumpys) {
  ASSERT_EQ(cases_.size(), 5u);
  for (const Recorded& r : cases_) {
    const auto codes = [&](const char* x) { return file_.Get(r.name + x).bytes; };
    const std::vector<char> k_codes = codes(".k_codes");
    const std::vector<char> v_codes = codes(".v_codes");
    const std::vector<char> k_scale = codes(".k_scale");
    const std::vector<char> v_scale = codes(".v_scale");
    const auto scale = [](const std::vector<char>& bytes, size_t i) {
      uint16_t h;
      std::memcpy(&h, &bytes[2 * i], 2);
      return h;
    };
    const auto kv = static_cast<size_t>(r.shape.num_kv_heads);
    const auto dim = static_cast<size_t>(r.shape.head_dim);
    const auto dim_v = static_cast<size_t>(r.shape.head_dim_v);
    for (const int32_t page_size : {8, 16, 64, 128}) {
      const Pages pages(r.shape, page_size, r.k, r.v);
      for (size_t row = 0; row < static_cast<size_t>(r.tokens) * kv; ++row) {
        const size_t t = row / kv;
        const size_t h = row % kv;
        ASSERT_EQ(pages.Scale(t, h, true), scale(k_scale, row)) << r.name << " " << row;
        ASSERT_EQ(pages.Scale(t, h, false), scale(v_scale, row)) << r.name << " " << row;
        for (size_t d = 0; d < dim; ++d) {
          ASSERT_EQ(pages.KeyCode(t, h, d), k_codes[row * dim + d]) << r.name << " " << row;
        }
        for (size_t d = 0; d < dim_v; ++d) {
          ASSERT_EQ(pages.ValueCode(t, h, d), v_codes[row * dim_v + d]) << r.name << " " << row;
        }
      }
      // Nothing else is written: what is left holds the fill, beside codes of -1.
      const size_t written = static_cast<size_t>(r.tokens) * kv * (dim + dim_v + 4);
      EXPECT_GE(pages.CountUntouched(), pages.size() - written);
    }
  }
}

TEST_F(KvInt8, EveryBackendAttendsToWhatTheCacheGivesBack) {
  ThreadPool pool(2);
  for (const Recorded& r : cases_) {
    DenseSeq seq{.len = r.tokens, .k = r.k, .v = r.v};
    seq.q.resize(static_cast<size_t>(DenseSeq::kBefore) * r.shape.num_heads * r.shape.head_dim);
    seq.q.insert(seq.q.end(), r.q.begin(), r.q.end());
    const std::vector<float> out = file_.Floats(r.name + ".out");
    const std::vector<float> lse = file_.Floats(r.name + ".lse");
    const OracleResult want{.out = {out.begin(), out.end()}, .lse = {lse.begin(), lse.end()}};
    for (const int32_t page_size : {8, 32}) {
      const AttentionRig rig(r.shape, {seq}, {.page_size = page_size});
      for (const std::string& name : BackendNames()) {
        const AttentionResult got = rig.Run(**FindAttention(name), {{0, r.tokens, r.tokens}}, pool);
        EXPECT_LE(MaxError(got, {want}), r.tolerance) << name << " " << r.name << " " << page_size;
      }
    }
  }
}

// attention.h: |x - code * scale| <= scale / 2, at most 0.4% of the row's largest magnitude and
// 3e-8.
TEST_F(KvInt8, TheStatedErrorHolds) {
  double worst = 0;
  for (const Recorded& r : cases_) {
    const Pages pages(r.shape, 16, r.k, r.v);
    const auto kv = static_cast<size_t>(r.shape.num_kv_heads);
    const auto dim = static_cast<size_t>(r.shape.head_dim);
    for (size_t row = 0; row < static_cast<size_t>(r.tokens) * kv; ++row) {
      const double scale = F16ToFloat(pages.Scale(row / kv, row % kv, true));
      double largest = 0;
      for (size_t d = 0; d < dim; ++d) {
        largest = std::max(largest, std::fabs(double{r.k[row * dim + d]}));
      }
      for (size_t d = 0; d < dim; ++d) {
        const double x = r.k[row * dim + d];
        const double error = std::fabs(x - pages.KeyCode(row / kv, row % kv, d) * scale);
        ASSERT_LE(error, scale / 2 * (1 + 1e-6)) << r.name << " " << row;
        ASSERT_LE(error, 0.004 * largest + 3e-8) << r.name << " " << row;
        worst = std::max(worst, error / std::max(largest, 1e-3));
      }
    }
  }
  EXPECT_GT(worst, 0.003) << "the bound says little";
}

TEST(WriteKv, RowsThatNoScaleFits) {
  AttentionShape s = Shape(1, 1, 4);
  s.kv_dtype = DType::kI8;
  const std::vector<float> k = {1, NAN, 2, 3, 1, INFINITY, 0, 0, 3e38f, -3e38f, 1, 0, 1, 2, 3, 4};
  const Pages pages(s, 8, k, std::vector<float>(k.size(), 0.5f));
  EXPECT_TRUE(std::isnan(F16ToFloat(pages.Scale(0, 0, true))));
  EXPECT_TRUE(std::isnan(F16ToFloat(pages.Scale(1, 0, true))));
  EXPECT_EQ(F16ToFloat(pages.Scale(2, 0, true)), 65504.0f);
  EXPECT_EQ(pages.KeyCode(2, 0, 0), 127);
  EXPECT_EQ(pages.KeyCode(2, 0, 1), -127);
  EXPECT_EQ(pages.KeyCode(3, 0, 3), 127);
  EXPECT_LT(F16ToFloat(pages.Scale(0, 0, false)), 0.004f) << "values have scales of their own";
}

}  // namespace
}  // namespace quire::kernels
