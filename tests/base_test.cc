// tests/base_test.cc -- JSON border, 16-bit conversions, mapped files, arena.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/json.h"
#include "base/mapped_file.h"

namespace quire {
namespace {

TEST(Json, TypesAndLookUps) {
  const absl::StatusOr<Json> doc = Json::Parse(
      R"({"a":1,"b":-2,"c":1.5,"d":"x\u0000y","e":[true,null],"f":{"g":18446744073709551615},"h":3.0})");
  ASSERT_TRUE(doc.ok()) << doc.status();
  EXPECT_EQ((*doc)["a"].as_int(), 1);
  EXPECT_EQ((*doc)["b"].as_int(), -2);
  EXPECT_EQ((*doc)["c"].as_int(), std::nullopt);
  EXPECT_EQ((*doc)["c"].as_double(), 1.5);
  EXPECT_EQ((*doc)["d"].as_string(), std::string_view("x\0y", 3));
  EXPECT_EQ((*doc)["e"].at(0).as_bool(), true);
  EXPECT_TRUE((*doc)["e"].at(1).is_null());
  EXPECT_TRUE((*doc)["e"].at(2).is_null());
  EXPECT_EQ((*doc)["f"]["g"].as_int(), std::nullopt);  // beyond int64
  EXPECT_EQ((*doc)["h"].as_int(), 3);
  EXPECT_FALSE((*doc)["a"].as_string());
  EXPECT_TRUE((*doc).Has("a"));
  EXPECT_FALSE((*doc).Has("z"));
}

TEST(Json, MalformedTextIsRefusedWithAnOffset) {
  for (const char* bad : {"", "{", "{:", "[1,]", "nul", "{\"a\":1}x", "\"\xff\"", "NaN", "[1e999]",
                          "\"\\ud800\"", "{\"a\" 1}", "// c\n1"}) {
    const absl::StatusOr<Json> doc = Json::Parse(bad);
    EXPECT_EQ(doc.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(Message(doc.status()).find("byte"), std::string::npos) << doc.status();
  }
}

TEST(Json, NothingHidesBehindANul) {
  using namespace std::string_view_literals;
  for (std::string_view bad : {"{}\0garbage"sv, "{}\0"sv, "\0"sv, "\"a\0b\""sv}) {
    EXPECT_FALSE(Json::Parse(bad).ok()) << bad;
  }
}

TEST(Json, DepthAndSizeAreBounded) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_FALSE(Json::Parse(deep).ok());
  EXPECT_TRUE(Json::Parse(std::string(100, '[') + std::string(100, ']')).ok());
  EXPECT_FALSE(Json::Parse("[1,2,3]", {.max_bytes = 3}).ok());
  EXPECT_TRUE(Json::Parse(R"("[[[[ not nesting \" [[[")", {.max_depth = 1}).ok());
}

TEST(JsonWriter, RoundTrips) {
  JsonWriter w;
  w.BeginObject();
  w.Key("s");
  w.String("a\"\xff\n");
  w.Key("n");
  w.BeginArray();
  w.Int(-1);
  w.Uint(std::numeric_limits<uint64_t>::max());
  w.Double(0.5);
  w.Double(std::nan(""));
  w.Bool(true);
  w.EndArray();
  w.EndObject();
  EXPECT_EQ(w.text(),
            "{\"s\":\"a\\\"\xEF\xBF\xBD\\n\",\"n\":[-1,18446744073709551615,0.5,null,true]}");
  EXPECT_TRUE(Json::Parse(w.text()).ok());
}

TEST(DType, HalfConversionsAreExactForEveryPattern) {
#ifdef __FLT16_MAX__
  for (uint32_t h = 0; h < 65536; ++h) {
    const auto bits = static_cast<uint16_t>(h);
    const auto want = static_cast<float>(std::bit_cast<_Float16>(bits));
    const float got = F16ToFloat(bits);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got));
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << h;
      ASSERT_EQ(FloatToF16(got), bits) << h;
    }
  }
#endif
}

TEST(DType, RoundingIsToNearestEven) {
  EXPECT_EQ(FloatToBF16(1.0f), 0x3f80);
  EXPECT_EQ(FloatToBF16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie, even below
  EXPECT_EQ(FloatToBF16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // tie, even above
  EXPECT_EQ(FloatToBF16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_TRUE(std::isnan(BF16ToFloat(FloatToBF16(std::nanf("")))));
  EXPECT_EQ(FloatToF16(65519.0f), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToF16(0x1p-25f), 0);  // tie to even: zero
  EXPECT_EQ(FloatToF16(0x1.8p-25f), 1);
  EXPECT_EQ(FloatToF16(1.0f + 0x1p-11f), 0x3c00);  // tie
  EXPECT_EQ(FloatToF16(1.0f + 0x1.8p-10f), 0x3c02);
}

TEST(MappedFile, OnlyRegularFiles) {
  EXPECT_EQ(MappedFile::Open("no/such/file").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MappedFile::Open("/dev/zero").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(MappedFile::Open(".").ok());
  const std::string dir = testing::TempDir() + "/quire_base_test";
  std::filesystem::create_directories(dir);
  const std::string fifo = dir + "/fifo";
  std::remove(fifo.c_str());
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::Open(fifo).status().code(), absl::StatusCode::kInvalidArgument);
  std::ofstream(dir + "/empty").flush();
  const absl::StatusOr<MappedFile> empty = MappedFile::Open(dir + "/empty");
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty->bytes().size(), 0u);
  std::ofstream(dir + "/text") << "hello";
  EXPECT_EQ(*ReadTextFile(dir + "/text", 5), "hello");
  EXPECT_FALSE(ReadTextFile(dir + "/text", 4).ok());
}

TEST(Arena, DryAndBackedCountTheSame) {
  Arena dry;
  dry.Take<float>(100);
  const size_t mark = dry.used();
  dry.Take<std::byte>(1);
  dry.Rewind(mark);
  dry.Take<double>(3);
  Arena backed(dry.peak());
  EXPECT_NE(backed.Take<float>(100).data(), nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(backed.Take<double>(3).data()) % 64, 0u);
  EXPECT_EQ(backed.used(), dry.used());
  EXPECT_EQ(backed.peak(), dry.peak());
}

TEST(Arena, KnowsWhatThePeakIsMadeOf) {
  Arena dry;
  dry.Purpose("a");
  dry.Take<std::byte>(64);
  dry.Purpose("b");
  const size_t mark = dry.used();
  dry.Take<std::byte>(6400);
  dry.Purpose("a");
  dry.Take<std::byte>(128);  // the peak: a 192, b 6400
  dry.Rewind(mark);
  dry.Purpose("c");
  dry.Take<std::byte>(640);
  dry.Reset();
  dry.Purpose("d");
  dry.Take<std::byte>(320);
  const std::vector<Arena::Part> parts = dry.PeakParts();
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].what, "a");
  EXPECT_EQ(parts[0].bytes, 192u);
  EXPECT_EQ(parts[1].what, "b");
  EXPECT_EQ(parts[1].bytes, 6400u);
  EXPECT_EQ(dry.peak(), 6592u);
}

}  // namespace
}  // namespace quire
