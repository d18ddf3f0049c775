// Options of the daemon: HARD-CASES Q01 (misspelt or mistyped settings), Q02 (limits that are mixed
// up) and Q05 (limits that contradict each other).
#include "server/options.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "server/config_sources.h"

namespace quire {
namespace {

class ConfigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("quire_options_" + std::to_string(std::random_device()()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& text) {
    const std::string path = (folder_ / "quire.yaml").string();
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  absl::StatusOr<ServerOptions> Load(const std::string& yaml,
                                     const std::vector<std::string>& environment = {},
                                     const std::vector<Setting>& flags = {}) {
    return LoadOptions(flags, Write(yaml), environment);
  }
  std::string ErrorOf(const std::string& yaml) {
    const auto options = Load(yaml);
    EXPECT_FALSE(options.ok()) << yaml;
    return options.ok() ? "" : Message(options.status());
  }

  std::filesystem::path folder_;
};

// A value that differs from the default, for each type.
std::string OtherValue(const OptionInfo& info, const ServerOptions& defaults) {
  const std::string initial = ValueOf(defaults, info.name);
  if (!info.choices.empty()) return std::string(info.choices.substr(info.choices.rfind('|') + 1));
  if (IsBoolOption(info.name)) return initial == "true" ? "false" : "true";
  if (info.name == "attention") return "eager";
  if (info.name == "cpu_isa") return "portable";
  if (info.name == "block_size") return "32";
  if (info.name == "memory_utilization") return "0.5";
  if (info.name == "max_num_seqs") return "8";
  if (info.name == "watermark") return "0.5";
  if (info.max > 0) return std::to_string(static_cast<int64_t>(info.max / 2 + 1));
  return "some-text";
}

TEST_F(ConfigTest, EveryOptionComesFromFlagVariableAndKey) {
  const ServerOptions defaults;
  int count = 0;
  ServerOptions::VisitFields(defaults, [&](const OptionInfo& info, const auto&) {
    const std::string value = OtherValue(info, defaults);
    const std::string name(info.name);
    ASSERT_NE(value, ValueOf(defaults, name)) << name;
    ServerOptions from_yaml;
    const auto settings = SettingsFromYaml(Write(name + ": " + value + "\n"));
    ASSERT_TRUE(settings.ok()) << Message(settings.status());
    ASSERT_EQ(settings->size(), 1u);
    ASSERT_TRUE(ApplySetting((*settings)[0], from_yaml).ok()) << name << "=" << value;
    EXPECT_EQ(ValueOf(from_yaml, name), value);

    std::string config;
    const auto variables = SettingsFromEnvironment({VariableOf(name) + "=" + value}, config);
    ASSERT_TRUE(variables.ok()) << Message(variables.status());
    ServerOptions from_environment;
    ASSERT_TRUE(ApplySetting(variables->at(0), from_environment).ok());
    EXPECT_EQ(ValueOf(from_environment, name), value);
    ++count;
  });
  EXPECT_GE(count, 20);
}

TEST_F(ConfigTest, FlagBeatsVariableBeatsFileBeatsDefault) {
  const std::string yaml = "model: m\nport: 1\nmax_num_seqs: 2\nnum_threads: 3\n";
  const auto options =
      Load(yaml, {"QUIRE_PORT=11", "QUIRE_MAX_NUM_SEQS=12"}, {{"port", "21", "--port"}});
  ASSERT_TRUE(options.ok()) << Message(options.status());
  EXPECT_EQ(options->port, 21);
  EXPECT_EQ(options->max_num_seqs, 12);
  EXPECT_EQ(options->num_threads, 3);
  EXPECT_EQ(options->block_size, 16);
}

TEST_F(ConfigTest, ConfigPathMayComeFromTheEnvironment) {
  const std::string path = Write("model: m\nport: 77\n");
  const auto options = LoadOptions({}, "", {"QUIRE_CONFIG=" + path});
  ASSERT_TRUE(options.ok()) << Message(options.status());
  EXPECT_EQ(options->port, 77);
}

// Q01, "a variant with one letter changed" for each key: a letter dropped, doubled and swapped.
TEST_F(ConfigTest, MisspeltKeysAreRefusedWithLineAndTheNearestKey) {
  for (const std::string& name : OptionNames()) {
    for (const std::string& wrong :
         {name.substr(0, name.size() - 1), name + name.back(), "x" + name.substr(1)}) {
      const std::string error = ErrorOf("model: m\n" + wrong + ": 1\n");
      EXPECT_NE(error.find("quire.yaml:2: " + wrong + " is not a known option"), std::string::npos)
          << error;
      EXPECT_NE(error.find("did you mean " + name + "?"), std::string::npos) << error;
    }
    if (name.find('_') != std::string::npos) {
      std::string hyphens = name;
      std::replace(hyphens.begin(), hyphens.end(), '_', '-');
      const std::string error = ErrorOf("model: m\n" + hyphens + ": 1\n");
      EXPECT_NE(error.find("did you mean " + name + "?"), std::string::npos) << error;
    }
  }
}

TEST_F(ConfigTest, WrongFilesAreRefused) {
  struct Case {
    const char* what;
    std::string yaml;
    const char* error;
  };
  for (const Case& c : std::vector<Case>{
           {"wrong level", "model: m\nserver:\n  port: 1\n",
            "quire.yaml:3: server.port is not a known option; did you mean port"},
           {"typo on a wrong level", "model: m\na:\n  b:\n    prot: 1\n",
            "quire.yaml:4: a.b.prot is not a known option; did you mean port"},
           {"8GB for a number", "model: m\nkv_cache_memory_bytes: 8GB\n",
            "quire.yaml:2: kv_cache_memory_bytes=8GB is not a whole number (bytes)"},
           {"yes for a bool", "model: m\nenable_prefix_caching: yes\n",
            "quire.yaml:2: enable_prefix_caching=yes is not true or false"},
           {"octal", "model: m\nport: 0o17\n", "quire.yaml:2: port=0o17 is not a whole number"},
           {"1e3 for a whole number", "model: m\nmax_num_seqs: 1e3\n",
            "quire.yaml:2: max_num_seqs=1e3 is not a whole number"},
           {"1.5 for a whole number", "model: m\nmax_num_seqs: 1.5\n",
            "max_num_seqs=1.5 is not a whole number"},
           {"quoted number", "model: m\nport: \"1\"\n", "port=1 is not a whole number"},
           {"quoted bool", "model: m\nenable_prefix_caching: 'true'\n",
            "enable_prefix_caching=true is not true or false"},
           {"percent", "model: m\nmemory_utilization: 90%\n",
            "memory_utilization=90% is not a number (share)"},
           {"out of range", "model: m\nport: 65536\n", "port=65536 is outside [0, 65535]"},
           {"too large for 32 bits", "model: m\nnum_blocks: 99999999999\n",
            "num_blocks=99999999999 is not a whole number"},
           {"negative", "model: m\nmax_num_seqs: -1\n", "max_num_seqs=-1 is outside [1, 4096]"},
           {"nan", "model: m\nmemory_utilization: nan\n", "memory_utilization=nan is outside"},
           {"no value", "model: m\nport:\n", "quire.yaml:2: port is empty, not a single value"},
           {"list", "model: m\nport: [1]\n", "quire.yaml:2: port is a list, not a single value"},
           {"choice", "model: m\nlog_level: loud\n",
            "log_level=loud is not one of trace|debug|info|warning|error"},
           {"duplicate", "model: m\nport: 1\nhost: h\nport: 2\n",
            "quire.yaml:4: port is set twice; first in line 2"},
           {"alias and name", "model: m\nmemory_utilization: 0.5\ngpu_memory_utilization: 0.6\n",
            "quire.yaml:3: gpu_memory_utilization is set twice; first as memory_utilization"},
           {"tab", "model: m\n\tport: 1\n", "quire.yaml:2: has a tab"},
           {"byte order mark", "\xef\xbb\xbfmodel: m\n", "quire.yaml:1: begins with a byte order"},
           {"UTF-16", std::string("\xff\xfem\0", 4), "quire.yaml:1: begins with a byte order"},
           {"NUL", std::string("model: m\0\n", 10), "quire.yaml:1: has a NUL byte"},
           {"empty", "", "quire.yaml:1: holds no settings"},
           {"comment only", "# nothing\n", "quire.yaml:1: holds no settings"},
           {"list of settings", "- model: m\n", "quire.yaml:1: is not a map"},
           {"two documents", "model: m\n---\nport: 1\n", "holds more than one document"},
           {"no YAML", "model: m\nport: {\n", "quire.yaml:"},
           {"huge", "model: " + std::string(2 << 20, 'x') + "\n", "has more than"},
       }) {
    const std::string error = ErrorOf(c.yaml);
    EXPECT_NE(error.find(c.error), std::string::npos) << c.what << ": " << error;
    EXPECT_NE(error.find("quire.yaml"), std::string::npos) << c.what << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << c.what << " takes one line: " << error;
  }
}

TEST_F(ConfigTest, MissingFileAndFolder) {
  const auto missing = LoadOptions({}, (folder_ / "none.yaml").string(), {});
  EXPECT_NE(Message(missing.status()).find("none.yaml: no such file"), std::string::npos);
  const auto folder = LoadOptions({}, folder_.string(), {});
  EXPECT_NE(Message(folder.status()).find("is a folder"), std::string::npos);
}

TEST_F(ConfigTest, EnvironmentIsAsStrict) {
  const auto error = [this](const std::string& line) {
    const auto options = Load("model: m\n", {line});
    return options.ok() ? std::string("ok") : Message(options.status());
  };
  EXPECT_NE(error("QUIRE_PROT=1").find("QUIRE_PROT is not a known option; did you mean QUIRE_PORT"),
            std::string::npos);
  EXPECT_NE(error("QUIRE_PORT=x").find("QUIRE_PORT: port=x is not a whole number"),
            std::string::npos);
  EXPECT_NE(error("QUIRE_PORT=").find("is not a whole number"), std::string::npos);
  // Not ours: another prefix, and what Kubernetes sets for a service of that name.
  EXPECT_EQ(error("QUIREPORT=x"), "ok");
  EXPECT_EQ(error("QUIRE_PORT=tcp://10.0.0.1:50051"), "ok");
  EXPECT_EQ(error("QUIRE_SERVICE_HOST=10.0.0.1"), "ok");
  EXPECT_EQ(error("QUIRE_PORT_50051_TCP_ADDR=10.0.0.1"), "ok");
}

TEST_F(ConfigTest, AliasSetsTheSameOption) {
  const auto options = Load("model: m\ngpu_memory_utilization: 0.25\n");
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->memory_utilization, 0.25);
}

// Q05 and names of kernels.
TEST_F(ConfigTest, ContradictionsNameBothOptionsAndAWayOut) {
  struct Case {
    const char* yaml;
    std::vector<const char*> parts;
  };
  for (const Case& c : std::vector<Case>{
           {"port: 1\n", {"model is not set", "--model", "QUIRE_MODEL"}},
           {"model: m\nmax_num_seqs: 100\nmax_num_batched_tokens: 99\n",
            {"max_num_batched_tokens=99", "max_num_seqs=100", "raise"}},
           {"model: m\nnum_blocks: 8\nkv_cache_memory_bytes: 1000000\n",
            {"num_blocks=8", "kv_cache_memory_bytes=1000000", "drop one"}},
           {"model: m\nnum_blocks: 8\nblock_size: 16\nmax_model_len: 129\n",
            {"max_model_len=129", "num_blocks=8", "128 tokens"}},
           {"model: m\nblock_size: 24\n", {"block_size=24", "8, 16, 32, 64, 128"}},
           {"model: m\nmax_model_len: 1\n", {"max_model_len=1"}},
           {"model: m\nmax_model_len: 64\ndefault_max_tokens: 64\n",
            {"default_max_tokens=64", "max_model_len=64"}},
           {"model: m\nattention: flesh\n", {"flesh", "flash", "eager"}},
           {"model: m\ncpu_isa: avx1024\n", {"avx1024", "avx2", "portable"}},
           {"model: m\nmemory_utilization: 1.5\n", {"memory_utilization=1.5", "[0.01, 1]"}},
           {"model: m\nmemory_utilization: 0\n", {"memory_utilization=0", "[0.01, 1]"}},
           {"model: m\nmax_num_batched_tokens: 0\n", {"max_num_batched_tokens=0"}},
           {"model: m\npreemption_mode: swap\n",
            {"preemption_mode=swap", "host_cache_memory_bytes", "recompute"}},
           {"model: m\npreemption_mode: auto\n",
            {"preemption_mode=auto", "host_cache_memory_bytes", "recompute"}},
           {"model: m\nscheduling_policy: lifo\n",
            {"scheduling_policy=lifo", "fcfs|priority|shortest_first|fair|prefix_aware"}},
           {"model: m\npriority_aging_ms: 0\n", {"priority_aging_ms=0", "[1, "}},
           {"model: m\nwatermark: 1\n", {"watermark=1", "[0, 0.99]"}},
           {"model: m\ntarget_itl_ms: -1\n", {"target_itl_ms=-1", "[0, 1000000]"}},
           {"model: m\nnum_speculative_tokens: 65\n", {"num_speculative_tokens=65", "[0, 64]"}},
           {"model: m\nsuffix_cache_tokens: 511\n", {"suffix_cache_tokens=511", "[512, "}},
           {"model: m\nspeculation: guess\n", {"speculation=guess", "none|ngram|suffix|draft"}},
           {"model: m\nspeculation: draft\n", {"speculation=draft", "draft_model", "ngram"}},
           {"model: m\nspeculation: ngram\nnum_speculative_tokens: 0\n",
            {"speculation=ngram", "num_speculative_tokens=0", "none"}},
           {"model: m\ndraft_model: d\nnum_speculative_tokens: 0\n",
            {"draft_model=d", "num_speculative_tokens=0", "drop"}},
           {"model: m\ndraft_num_blocks: 0\n", {"draft_num_blocks=0", "[1, "}},
       }) {
    const std::string error = ErrorOf(c.yaml);
    for (const char* part : c.parts) {
      EXPECT_NE(error.find(part), std::string::npos) << part << " in: " << error;
    }
  }
}

TEST(OptionsTest, NamesOfFlagsAndVariables) {
  EXPECT_EQ(FlagOf("max_num_seqs"), "--max-num-seqs");
  EXPECT_EQ(VariableOf("max_num_seqs"), "QUIRE_MAX_NUM_SEQS");
}

}  // namespace
}  // namespace quire
