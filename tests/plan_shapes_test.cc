// tests/plan_shapes_test.cc -- what `quire plan` reads out of a config.json, against what
// transformers allocated for the same config: every parameter, and every cache tensor after a
// prompt of 70 tokens (tests/reference/plan/models.json, made by collect.py beside it).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "models/plan/shape_readers.h"
#include "tests/support/golden_file.h"

namespace quire {
namespace {

const Json& Reference() {
  static const Json* const json =
      new Json(ReadGoldenJson(std::string(QUIRE_TEST_REFERENCE) + "/plan/models.json"));
  return *json;
}

std::vector<std::string> Names() { return Reference().keys(); }

absl::StatusOr<ModelShape> Read(const std::string& text, const std::string& file = "config.json") {
  const absl::StatusOr<Json> json = Json::Parse(text);
  CHECK(json.ok(), "{}", json.status().ToString());
  return ReadShape(JsonFields(*json, file));
}

// A layer's tensors that no part has claimed yet.
class Observed {
 public:
  explicit Observed(const Json& layer) {
    layer.ForEach([this](std::string_view name, const Json& shape) {
      std::vector<int64_t>& dims = tensors_[std::string(name)];
      for (size_t i = 0; i < shape.size(); ++i) dims.push_back(*shape.at(i).as_int());
    });
  }
  bool Has(const std::string& name) const { return tensors_.count(name) > 0; }
  std::vector<int64_t> Take(const std::string& name) {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return {};
    std::vector<int64_t> dims = it->second;
    tensors_.erase(it);
    return dims;
  }
  int64_t TakeElements(const std::string& name) {
    const std::vector<int64_t> dims = Take(name);
    int64_t n = dims.empty() ? 0 : 1;
    for (const int64_t d : dims) n *= d;
    return n;
  }
  std::string Rest() const {
    std::string rest;
    for (const auto& entry : tensors_) rest += entry.first + " ";
    return rest;
  }

 private:
  std::map<std::string, std::vector<int64_t>> tensors_;
};

using Dims = std::vector<int64_t>;

void ExpectBuffers(const CachePart& p, Observed& seen, const std::string& of, int64_t tokens) {
  EXPECT_EQ(seen.Take("compressed_kv." + of), (Dims{1, EntriesAt(p, tokens), p.key_dim}));
  EXPECT_EQ(seen.TakeElements("buffer_kv." + of) + seen.TakeElements("buffer_gate." + of),
            p.buffer_elements * (tokens % p.tokens_per_entry));
  EXPECT_EQ(seen.TakeElements("overlap_kv." + of) + seen.TakeElements("overlap_gate." + of),
            p.overlap_elements);
}

void ExpectPart(const CachePart& p, Observed& seen, int64_t tokens) {
  const int64_t n = EntriesAt(p, tokens);
  switch (p.kind) {
    case PartKind::kFull:
    case PartKind::kSliding:
    case PartKind::kChunked:
    case PartKind::kCross: {
      EXPECT_EQ(seen.Take("keys"), (Dims{1, p.kv_heads, n, p.key_dim}));
      // Where keys are values, transformers' plain window layer stores them twice all the same.
      if (p.value_dim > 0 || seen.Has("values")) {
        const int64_t dim = p.value_dim > 0 ? p.value_dim : p.key_dim;
        EXPECT_EQ(seen.Take("values"), (Dims{1, p.kv_heads, n, dim}));
      }
      return;
    }
    case PartKind::kLatent: {
      const Dims keys = seen.Take("keys");
      const Dims values = seen.Take("values");
      ASSERT_EQ(keys.size(), 4u);
      ASSERT_EQ(values.size(), 4u);
      EXPECT_EQ(keys[2], n);
      if (keys[1] == 1) {
        EXPECT_EQ(keys[3], p.latent_dim);
        EXPECT_EQ(values, (Dims{1, 1, n, p.rope_dim}));
      } else {  // models with an indexer store keys and values of every head instead
        EXPECT_EQ(keys[1] * (keys[3] + values[3]), p.plain_elements);
      }
      return;
    }
    case PartKind::kIndexer:
      if (p.tokens_per_entry > 1) return ExpectBuffers(p, seen, "indexer", tokens);
      EXPECT_EQ(seen.Take("indexer_keys"), (Dims{1, n, p.key_dim}));
      return;
    case PartKind::kCompressed:
      return ExpectBuffers(p, seen, "compressor", tokens);
    case PartKind::kState:
      if (p.conv_kernel > 0) {
        EXPECT_EQ(seen.Take("conv_states.0"), (Dims{1, p.conv_channels, p.conv_kernel}));
      }
      EXPECT_EQ(seen.TakeElements("recurrent_states.0"), p.recurrent_elements);
      return;
  }
}

TEST(PlanShapes, EveryParameterIsCounted) {
  EXPECT_EQ(Names().size(), 60u);
  for (const std::string& name : Names()) {
    SCOPED_TRACE(name);
    const Json model = Reference()[name];
    const auto shape = Read(model["config"].Dump());
    ASSERT_TRUE(shape.ok()) << shape.status();
    EXPECT_EQ(shape->parameters, *model["parameters"].as_int());
  }
}

TEST(PlanShapes, EveryCachedTensorIsCounted) {
  int compared = 0;
  for (const std::string& name : Names()) {
    SCOPED_TRACE(name);
    const Json model = Reference()[name];
    const auto shape = Read(model["config"].Dump());
    ASSERT_TRUE(shape.ok()) << shape.status();
    const int64_t tokens = *model["tokens"].as_int();
    const Json layers = model["cache"];
    const Json cross = model["cross"];
    size_t at = 0;
    for (size_t i = 0; i < shape->layers.size(); ++i) {
      SCOPED_TRACE(fmt::format("layer {}", i));
      const LayerShape& layer = shape->layers[i];
      if (layer.shared_from >= 0) {  // stored only once
        EXPECT_FALSE(shape->layers[static_cast<size_t>(layer.shared_from)].parts.empty());
        continue;
      }
      ASSERT_LT(at, layers.size());
      Observed own(layers.at(at));
      Observed other(cross.at(at));
      ++at;
      for (const CachePart& part : layer.parts) {
        // Lightning attention's matrices are kept outside the list of layers, unseen here.
        if (name == "minimax" && part.kind == PartKind::kState) continue;
        const bool is_cross = part.kind == PartKind::kCross;
        // The decoder of an encoder-decoder has one token so far.
        ExpectPart(part, is_cross ? other : own, is_cross || cross.size() == 0 ? tokens : 1);
        ++compared;
      }
      EXPECT_EQ(own.Rest(), "");
      EXPECT_EQ(other.Rest(), "");
    }
    EXPECT_EQ(at, layers.size());
  }
  EXPECT_GT(compared, 200);
}

TEST(PlanShapes, UnknownArchitecturesAreRefusedWithTheKnownOnes) {
  const auto shape = Read(R"({"architectures": ["NewForCausalLM"], "model_type": "new"})");
  ASSERT_FALSE(shape.ok());
  EXPECT_EQ(shape.status().code(), absl::StatusCode::kUnimplemented);
  for (const char* part :
       {"config.json", "NewForCausalLM", "LlamaForCausalLM", "BambaForCausalLM"}) {
    EXPECT_NE(Message(shape.status()).find(part), std::string::npos) << part;
  }
}

TEST(PlanShapes, EachMissingSizeIsNamed) {
  const std::string whole =
      R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
          "vocab_size": 100, "num_attention_heads": 4, "intermediate_size": 128})";
  ASSERT_TRUE(Read(whole).ok());
  for (const char* key : {"hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads",
                          "intermediate_size"}) {
    std::string broken = whole;
    broken.replace(broken.find(key), std::strlen(key), "x");
    const auto shape = Read(broken);
    ASSERT_FALSE(shape.ok()) << key;
    EXPECT_EQ(shape.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(Message(shape.status()).find(key), std::string::npos) << shape.status();
  }
}

// Every number of every config replaced by hostile ones: an error or a shape, never an overflow
// (the sanitizer build watches) and never a hang.
TEST(PlanShapes, HostileNumbersAreRefusedOrBounded) {
  int refused = 0;
  for (const std::string& name : Names()) {
    const Json config = Reference()[name]["config"];
    for (const std::string& key : config.keys()) {
      if (!config[key].is_number()) continue;
      for (const char* value :
           {"-1", "0", "9223372036854775807", "16777216", "1e300", "\"4\"", "[]"}) {
        JsonWriter w;
        w.BeginObject();
        config.ForEach([&](std::string_view k, const Json& v) {
          w.Key(k);
          w.Raw(k == key ? std::string_view(value) : std::string_view(v.Dump()));
        });
        w.EndObject();
        const auto shape = Read(w.text());
        if (!shape.ok()) {
          ++refused;
          EXPECT_NE(Message(shape.status()), "");
          continue;
        }
        EXPECT_GE(shape->parameters, 0);
        EXPECT_LT(shape->parameters, kTooLarge);
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace quire
