// Safetensors: values of reference checkpoints, verdicts against the reference library
// (tests/reference/safetensors/make_cases.py), and hostile directories (HARD-CASES M08 to M15).
#include "models/weights/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "base/json.h"
#include "tests/allocation_meter.h"
#include "tests/weight_files.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;

std::string FromHex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return out;
}

// One F32 tensor of one value, or several of them.
std::string Shard(const std::vector<std::pair<std::string, float>>& tensors) {
  std::string header = "{";
  Bytes data;
  for (size_t i = 0; i < tensors.size(); ++i) {
    header += fmt::format(R"({}"{}":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}})",
                          i > 0 ? "," : "", tensors[i].first, 4 * i, 4 * i + 4);
    data.Put(tensors[i].second);
  }
  return Safetensors(header + "}", data.text());
}

std::string Index(const std::vector<std::pair<std::string, std::string>>& weight_map) {
  JsonWriter w;
  w.BeginObject();
  w.Key("weight_map");
  w.BeginObject();
  for (const auto& [tensor, file] : weight_map) {
    w.Key(tensor);
    w.String(file);
  }
  w.EndObject();
  w.EndObject();
  return w.text();
}

float ValueOf(const SafetensorsSource& source, const std::string& name) {
  float value;
  std::memcpy(&value, source.Find(name)->data, 4);
  return value;
}

TEST(SafetensorsTest, ReferenceCheckpoints) {
  const auto source = SafetensorsSource::OpenDirectory(ReferencePath("models/llama"));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->Names().size(), 30u);
  EXPECT_EQ((*source)->Find("model.embed_tokens.weight")->ToString(), "[200, 48] F32");
  EXPECT_EQ((*source)->Find("model.layers.2.mlp.down_proj.weight")->ToString(), "[48, 64] F32");
  EXPECT_EQ((*source)->FileOf("model.norm.weight"), "model.safetensors");
  const auto bf16 = SafetensorsSource::OpenDirectory(ReferencePath("models/llama-bf16"));
  ASSERT_TRUE(bf16.ok()) << bf16.status();
  EXPECT_EQ((*bf16)->Find("model.norm.weight")->dtype, DType::kBF16);
}

// As the reference, but for two cases: the format's text asks for '{' as the first byte, and a
// dtype from the future is no reason to refuse a file whose tensor nobody may need.
TEST(SafetensorsTest, M08M09VerdictsOfTheReferenceLibrary) {
  const auto cases = Json::Parse(ReadBytes(ReferencePath("safetensors/cases.json")));
  ASSERT_TRUE(cases.ok()) << cases.status();
  const TempDir dir;
  int accepted = 0;
  for (size_t i = 0; i < cases->size(); ++i) {
    const Json c = cases->at(i);
    const std::string name(*c["name"].as_string());
    SCOPED_TRACE(name);
    std::string bytes;
    for (size_t p = 0; p < c["pieces"].size(); ++p) {
      const std::string piece = FromHex(*c["pieces"].at(p).at(0).as_string());
      const int64_t times = *c["pieces"].at(p).at(1).as_int();
      for (int64_t t = 0; t < times; ++t) bytes += piece;
    }
    const std::string path = dir.Write("x.safetensors", bytes);
    const AllocationMeter meter;
    const absl::Status status = SafetensorsSource::OpenFile(path).status();
    EXPECT_LT(meter.bytes(), 64 * bytes.size() + 65536);
    bool expected = *c["accepted"].as_bool();
    if (name == "leading spaces") expected = false;
    if (name == "unknown dtype") expected = true;
    EXPECT_EQ(status.ok(), expected) << status;
    if (status.ok()) {
      ++accepted;
    } else {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(Message(status), ::testing::HasSubstr("x.safetensors"));
    }
  }
  EXPECT_EQ(accepted, 9);
}

TEST(SafetensorsTest, M08ErrorsNameTheTensor) {
  const TempDir dir;
  const auto refused = [&dir](const std::string& shape, const std::string& offsets, size_t data,
                              const std::vector<std::string>& parts) {
    const std::string header = fmt::format(
        R"({{"layer.w":{{"dtype":"F32","shape":{},"data_offsets":{}}}}})", shape, offsets);
    const std::string path = dir.Write("m.safetensors", Safetensors(header, std::string(data, 0)));
    ExpectRefused(SafetensorsSource::OpenFile(path).status(), StatusCode::kInvalidArgument, parts);
  };
  refused("[1000,1000]", "[0,4]", 4, {"layer.w", "[1000,1000]", "[0, 4]"});
  refused("[1000,1000]", "[0,4000000]", 4, {"layer.w", "truncated", "only"});
  refused("[1]", "[4,0]", 4, {"layer.w", "begin after they end"});
  refused("[1]", "[-4,0]", 4, {"layer.w", "data_offsets=[-4,0]"});
  refused("[1]", "[0,4,8]", 8, {"layer.w", "2 integers"});
  refused("[1]", "[0.0,4.0]", 4, {"layer.w", "data_offsets=[0.0,4.0]"});
  refused("[1]", "[9223372036854775808,9223372036854775812]", 4,
          {"layer.w", "9223372036854775808"});
  refused("[-1]", "[0,4]", 4, {"layer.w", "shape=[-1]"});
  refused("[4294967296,4294967296]", "[0,4]", 4, {"layer.w", "overflows"});
}

TEST(SafetensorsTest, M08EmptyTensorIsValid) {
  const TempDir dir;
  const auto source = SafetensorsSource::OpenFile(
      dir.Write("m.safetensors",
                Safetensors(R"({"e":{"dtype":"F16","shape":[0,7],"data_offsets":[0,0]}})", "")));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->Find("e")->ToString(), "[0, 7] F16");
  EXPECT_EQ((*source)->bytes(), 0u);
}

TEST(SafetensorsTest, M09DuplicateKeyIsOneTensor) {
  const TempDir dir;
  const std::string header = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                             R"("w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})";
  const auto source =
      SafetensorsSource::OpenFile(dir.Write("m.safetensors", Safetensors(header, "12345678")));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->Names(), ::testing::ElementsAre("w"));
  EXPECT_EQ((*source)->Find("w")->ToString(), "[1, 2] F32") << "the last one wins";
}

TEST(SafetensorsTest, UnusableTensorsMatterOnlyWhenNeeded) {
  const TempDir dir;
  const std::string header = R"({"f8":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},)"
                             R"("deep":{"dtype":"F32","shape":[1,1,1,1,1],"data_offsets":[4,8]},)"
                             R"("new":{"dtype":"Q9_X","shape":[3],"data_offsets":[8,9]},)"
                             R"("good":{"dtype":"F32","shape":[1],"data_offsets":[9,13]}})";
  const auto source = SafetensorsSource::OpenFile(
      dir.Write("m.safetensors", Safetensors(header, std::string(13, '\0'))));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->Names(), ::testing::ElementsAre("good"));
  for (const char* name : {"f8", "deep", "new"}) {
    EXPECT_FALSE((*source)->Find(name).has_value()) << name;
  }
  EXPECT_THAT((*source)->WhyUnusable("f8"), ::testing::HasSubstr("dtype=F8_E4M3"));
  EXPECT_THAT((*source)->WhyUnusable("new"), ::testing::HasSubstr("dtype=Q9_X"));
  EXPECT_THAT((*source)->WhyUnusable("deep"), ::testing::HasSubstr("4 dimensions"));
  EXPECT_EQ((*source)->WhyUnusable("good"), "");
  EXPECT_EQ((*source)->WhyUnusable("absent"), "");
}

class ShardedTest : public ::testing::Test {
 protected:
  absl::Status Open() { return SafetensorsSource::OpenDirectory(dir_.path()).status(); }
  void WriteGood() {
    dir_.Write("m-1.safetensors", Shard({{"a", 1}, {"b", 2}}));
    dir_.Write("m-2.safetensors", Shard({{"c", 3}}));
    dir_.Write("m-3.safetensors", Shard({{"d", 4}}));
    dir_.Write(kSafetensorsIndex, Index({{"a", "m-1.safetensors"},
                                         {"b", "m-1.safetensors"},
                                         {"c", "m-2.safetensors"},
                                         {"d", "m-3.safetensors"}}));
  }
  TempDir dir_;
};

TEST_F(ShardedTest, ReadsAllShards) {
  WriteGood();
  const auto source = SafetensorsSource::OpenDirectory(dir_.path());
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->Names(), ::testing::ElementsAre("a", "b", "c", "d"));
  EXPECT_EQ(ValueOf(**source, "b"), 2.0f);
  EXPECT_EQ(ValueOf(**source, "d"), 4.0f);
  EXPECT_EQ((*source)->FileOf("c"), "m-2.safetensors");
  EXPECT_EQ((*source)->bytes(), 16u);
}

TEST_F(ShardedTest, M12NamesThatLeaveTheDirectory) {
  // Each target is a good file with the tensor, so that only the name can be the reason.
  const TempDir outside;
  outside.Write("x.safetensors", Shard({{"a", 9}}));
  fs::create_directory(dir_.File("sub"));
  WriteBytes(dir_.File("sub/x.safetensors"), Shard({{"a", 9}}));
  for (const std::string& name :
       {std::string("../") + fs::path(outside.path()).filename().string() + "/x.safetensors",
        outside.File("x.safetensors"), std::string("sub/x.safetensors"), std::string("sub/../../x"),
        std::string("a\0.safetensors", 14), std::string(), std::string("C:\\x"),
        std::string("/dev/zero"), std::string("."), std::string(".."), std::string(300, 'n'),
        std::string("line\nbreak")}) {
    dir_.Write(kSafetensorsIndex, Index({{"a", name}}));
    ExpectRefused(Open(), StatusCode::kInvalidArgument, {"weight_map[\"a\"]", "plain file name"});
  }
}

TEST_F(ShardedTest, M12LinksAndSpecialFiles) {
  const TempDir outside;
  outside.Write("x.safetensors", Shard({{"a", 9}}));
  dir_.Write(kSafetensorsIndex, Index({{"a", "link.safetensors"}}));
  const std::string link = dir_.File("link.safetensors");
  fs::create_symlink(outside.File("x.safetensors"), link);
  ExpectRefused(Open(), StatusCode::kInvalidArgument, {"link.safetensors", "outside"});
  fs::remove(link);
  fs::create_symlink("/dev/zero", link);
  ExpectRefused(Open(), StatusCode::kInvalidArgument, {"link.safetensors", "outside"});
  fs::remove(link);
  fs::create_symlink("link.safetensors", link);  // to itself
  EXPECT_FALSE(Open().ok());
  fs::remove(link);
  ASSERT_EQ(mkfifo(link.c_str(), 0600), 0);
  ExpectRefused(Open(), StatusCode::kInvalidArgument, {"link.safetensors", "not a regular file"});
  fs::remove(link);
  fs::create_directory(link);
  ExpectRefused(Open(), StatusCode::kInvalidArgument, {"link.safetensors", "not a regular file"});
  fs::remove(link);
  // Within the directory a link is as good as a file.
  dir_.Write("real", Shard({{"a", 5}}));
  fs::create_symlink("real", link);
  const auto source = SafetensorsSource::OpenDirectory(dir_.path());
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(ValueOf(**source, "a"), 5.0f);
  EXPECT_EQ((*source)->FileOf("a"), "link.safetensors");
}

TEST_F(ShardedTest, M12SingleFileMayNotLinkOutside) {
  const TempDir outside;
  outside.Write("x.safetensors", Shard({{"a", 9}}));
  fs::create_symlink(outside.File("x.safetensors"), dir_.File(kSafetensorsFile));
  ExpectRefused(Open(), StatusCode::kInvalidArgument, {"model.safetensors", "outside"});
}

TEST_F(ShardedTest, M12HubCacheLinksIntoBlobs) {
  const fs::path repo = fs::path(dir_.path()) / "models--o--m";
  fs::create_directories(repo / "blobs");
  fs::create_directories(repo / "snapshots" / "rev");
  WriteBytes((repo / "blobs" / "0123abcd").string(), Shard({{"a", 6}}));
  const fs::path snapshot = repo / "snapshots" / "rev";
  fs::create_symlink("../../blobs/0123abcd", snapshot / kSafetensorsFile);
  const auto single = SafetensorsSource::OpenDirectory(snapshot.string());
  ASSERT_TRUE(single.ok()) << single.status();
  EXPECT_EQ(ValueOf(**single, "a"), 6.0f);
  fs::create_symlink("../../blobs/0123abcd", snapshot / "m-1.safetensors");
  WriteBytes((snapshot / kSafetensorsIndex).string(), Index({{"a", "m-1.safetensors"}}));
  const auto sharded = SafetensorsSource::OpenDirectory(snapshot.string());
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  EXPECT_EQ((*sharded)->FileOf("a"), "m-1.safetensors");
  // Another repository's blobs are outside.
  fs::create_directories(fs::path(dir_.path()) / "other" / "blobs");
  WriteBytes((fs::path(dir_.path()) / "other" / "blobs" / "f").string(), Shard({{"a", 6}}));
  fs::remove(snapshot / "m-1.safetensors");
  fs::create_symlink("../../../other/blobs/f", snapshot / "m-1.safetensors");
  ExpectRefused(SafetensorsSource::OpenDirectory(snapshot.string()).status(),
                StatusCode::kInvalidArgument, {"m-1.safetensors", "outside"});
}

TEST_F(ShardedTest, M13MissingFilesAndTensors) {
  WriteGood();
  fs::remove(dir_.File("m-2.safetensors"));
  fs::remove(dir_.File("m-3.safetensors"));
  ExpectRefused(Open(), StatusCode::kNotFound,
                {kSafetensorsIndex, "m-2.safetensors", "m-3.safetensors"});
  WriteGood();
  dir_.Write("m-1.safetensors", Shard({{"other", 1}}));
  ExpectRefused(Open(), StatusCode::kNotFound, {"2 tensors", "a (m-1.safetensors)", "b ("});
}

TEST_F(ShardedTest, M13TensorThatTheIndexDoesNotName) {
  WriteGood();
  dir_.Write("m-2.safetensors", Shard({{"c", 3}, {"extra", 8}, {"a", 99}}));
  const auto source = SafetensorsSource::OpenDirectory(dir_.path());
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_FALSE((*source)->Find("extra").has_value());
  EXPECT_THAT((*source)->WhyUnusable("extra"), ::testing::HasSubstr(kSafetensorsIndex));
  EXPECT_EQ(ValueOf(**source, "a"), 1.0f) << "from the shard that the index names";
}

TEST_F(ShardedTest, M15StrayFileIsIgnoredAndNamed) {
  WriteGood();
  dir_.Write(kSafetensorsFile, Shard({{"a", 100}, {"c", 100}}));
  dir_.Write("adapter.safetensors", "garbage");
  const auto source = SafetensorsSource::OpenDirectory(dir_.path());
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(ValueOf(**source, "a"), 1.0f);
  EXPECT_EQ(ValueOf(**source, "c"), 3.0f);
  EXPECT_THAT((*source)->ignored_files(),
              ::testing::ElementsAre("adapter.safetensors", "model.safetensors"));
}

TEST_F(ShardedTest, BadIndexes) {
  for (const char* text : {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})",
                           R"({"weight_map":{"a":1}})", R"({"weight_map":{"a":null}})"}) {
    dir_.Write(kSafetensorsIndex, text);
    ExpectRefused(Open(), StatusCode::kInvalidArgument, {kSafetensorsIndex});
  }
}

}  // namespace
}  // namespace quire
