// Small parts of what operators use: where caches may be saved, what roots are called, and how
// retention is asked for.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_name.h"
#include "paged_cache/retention.h"
#include "scheduler/root_key.h"
#include "server/admin/cache_path.h"
#include "server/admin/process_info.h"
#include "server/retention.h"
#include "tests/weight_files.h"

namespace quire {
namespace {

namespace pb = ::quire::v1;

// Two threads of one name burn CPU time that each counts by itself (CLOCK_THREAD_CPUTIME_ID).
TEST(ThreadCpu, SumsByNameAndEqualsTheThreadsOwnClocks) {
  constexpr int64_t kBurnNs = 30'000'000;
  std::mutex mutex;
  std::condition_variable changed;
  int burnt = 0;
  bool end = false;
  double own_ms = 0;
  const auto burn = [&] {
    SetThreadName("burner");
    timespec used{};
    do {
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    } while (used.tv_sec == 0 && used.tv_nsec < kBurnNs);
    std::unique_lock lock(mutex);
    own_ms += static_cast<double>(used.tv_sec) * 1e3 + static_cast<double>(used.tv_nsec) / 1e6;
    ++burnt;
    changed.notify_all();
    changed.wait(lock, [&] { return end; });
  };
  std::thread one(burn), two(burn);
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return burnt == 2; });
  }
  const std::vector<ThreadCpu> all = ReadThreadCpu();
  const auto it =
      std::find_if(all.begin(), all.end(), [](const ThreadCpu& t) { return t.name == "burner"; });
  ASSERT_NE(it, all.end());
  EXPECT_EQ(it->threads, 2);
  EXPECT_GE(it->cpu_ms, 0.9 * own_ms);  // what runs now is told up to the last switch or tick
  EXPECT_LE(it->cpu_ms, ProcessCpuMs());
  {
    const std::lock_guard lock(mutex);
    end = true;
  }
  changed.notify_all();
  one.join();
  two.join();
  const std::vector<ThreadCpu> after = ReadThreadCpu();
  EXPECT_TRUE(std::none_of(after.begin(), after.end(),
                           [](const ThreadCpu& t) { return t.name == "burner"; }));
  EXPECT_GE(ProcessCpuMs(), own_ms);  // those that have ended count on
}

TEST(CachePath, LinksAreFollowedBeforeItIsDecided) {
  namespace fs = std::filesystem;
  const TempDir dir;
  const std::string base = dir.File("cache");
  fs::create_directories(base + "/inside/deep");
  fs::create_directories(dir.File("cache2"));
  fs::create_directory_symlink(dir.File("cache2"), base + "/out");
  fs::create_directory_symlink(base + "/inside", base + "/in");
  fs::create_directory_symlink("..", base + "/up");
  const std::string root = fs::canonical(base).string();
  EXPECT_EQ(ResolveCachePath(base, "a/b").value(), root + "/a/b");
  EXPECT_EQ(ResolveCachePath(base, "in/deep").value(), root + "/inside/deep");
  EXPECT_EQ(ResolveCachePath(base + "/", "a/./c/../b").value(), root + "/a/b");
  EXPECT_EQ(ResolveCachePath(dir.File("not/yet"), "a").value(),
            fs::canonical(dir.File("")).string() + "/not/yet/a");
  for (const std::string bad : {"out", "out/x", "up", "up/cache2", "in/../../cache2", "in/../..",
                                "..", ".", "", "a\n", "../cache"}) {
    EXPECT_EQ(ResolveCachePath(base, bad).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
  EXPECT_FALSE(ResolveCachePath(base, std::string("a\0b", 3)).ok());
  EXPECT_FALSE(ResolveCachePath(base, std::string(1025, 'a')).ok());
  EXPECT_FALSE(ResolveCachePath(base, base + "/a").ok());
}

TEST(RootKey, PartsComeBackAndNeverMix) {
  const std::vector<std::string> odd = {"", "s", "1:a", ":", "0:0:", "12", std::string("\0x", 2)};
  std::set<std::string> keys;
  for (const std::string& fingerprint : odd) {
    for (const std::string& salt : odd) {
      for (const std::string& regime : odd) {
        for (const RequestId id : {RequestId{0}, RequestId{1}, RequestId{18446744073709551615u}}) {
          const std::string key = RootKeyOf({fingerprint, salt, regime, id});
          EXPECT_TRUE(keys.insert(key).second);
          const std::optional<RootParts> parts = ParseRootKey(key);
          ASSERT_TRUE(parts.has_value());
          EXPECT_EQ(parts->fingerprint, fingerprint);
          EXPECT_EQ(parts->cache_salt, salt);
          EXPECT_EQ(parts->rope_regime, regime);
          EXPECT_EQ(parts->private_to, id);
          for (const std::string& other : odd) {
            EXPECT_EQ(key.starts_with(RootKeyPrefix(fingerprint, other)), salt == other);
          }
        }
      }
    }
  }
  for (const char* bad : {"", "s", "0:0:0:", "0:0:0:p", "0:0:0:p0", "0:0:0:px", "0:0:0:ss", "9:a",
                          "-1:a", "99999999999999999999:a", "0:0:5:abcs"}) {
    EXPECT_FALSE(ParseRootKey(bad).has_value()) << bad;
  }
}

TEST(Retention, MessageAndMetadataMeanTheSame) {
  pb::KvOptions kv;
  pb::RetentionRange* range = kv.mutable_retention()->add_ranges();
  range->set_end(512);
  range->set_priority(80);
  range->set_ttl_ms(600'000);
  range = kv.mutable_retention()->add_ranges();
  range->set_start(600);
  kv.mutable_retention()->set_decode_priority(10);
  kv.mutable_retention()->set_decode_ttl_ms(1500);
  const auto message = ReadRetention(kv, "");
  const auto text = ReadRetention({}, "0-512:80:600s, 600-:35 ,decode:10:1500ms");
  ASSERT_TRUE(message.ok() && text.ok());
  for (const auto& policy : {ToPolicy(*message, 700), ToPolicy(*text, 700)}) {
    ASSERT_EQ(policy->ranges.size(), 3u);
    EXPECT_EQ(policy->ranges[0].begin, 0);
    EXPECT_EQ(policy->ranges[0].end, 512);
    EXPECT_EQ(policy->ranges[0].priority, 80);
    EXPECT_EQ(policy->ranges[0].ttl_ms, 600'000);
    EXPECT_EQ(policy->ranges[1].begin, 600);
    EXPECT_EQ(policy->ranges[1].end, INT32_MAX);
    EXPECT_EQ(policy->ranges[1].priority, 35);
    EXPECT_EQ(policy->ranges[1].ttl_ms, 0);
    EXPECT_EQ(policy->ranges[2].begin, 700);
    EXPECT_EQ(policy->ranges[2].end, INT32_MAX);
    EXPECT_EQ(policy->ranges[2].priority, 10);
    EXPECT_EQ(policy->ranges[2].ttl_ms, 1500);
  }
  EXPECT_EQ(ToPolicy(*ReadRetention({}, ""), 5), nullptr);
  EXPECT_EQ(ReadRetention(kv, "0-1:2").status().code(), absl::StatusCode::kInvalidArgument);
  for (const char* bad : {"0-512",
                          "0-512:80:600",
                          "0-512:80:600x",
                          "0:80",
                          "-5:80",
                          "a-b:80",
                          "0-512:80:1s:2",
                          "0-512:eighty",
                          "0-512:101",
                          "0-512:-1",
                          "5-5:80",
                          "9-5:80",
                          "decode",
                          "decode:101",
                          "decode:1,decode:2",
                          ",",
                          "0-1:80,",
                          "0-1:80:0s",
                          "0-1:80:99999999999999999999s",
                          "0-1:80:9223372036854775807h",
                          "0-1:80:-1s",
                          "2147483648-:1",
                          "0-2147483648:1"}) {
    const auto refused = ReadRetention({}, bad);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(Message(refused.status()).find("x-kv-retention"), std::string::npos) << bad;
  }
  kv.mutable_retention()->mutable_ranges(0)->set_priority(101);
  EXPECT_EQ(Message(ReadRetention(kv, "").status()),
            "kv.retention.ranges[0].priority=101 is outside [0, 100] (35 is what all others have)");
  kv.mutable_retention()->mutable_ranges(0)->set_priority(100);
  kv.mutable_retention()->clear_decode_priority();
  EXPECT_FALSE(ReadRetention(kv, "").ok());
  kv.mutable_retention()->clear_decode_ttl_ms();
  for (int i = 0; i < 63; ++i) kv.mutable_retention()->add_ranges();
  EXPECT_FALSE(ReadRetention(kv, "").ok());
}

// Tokens that no range names have the default, whatever comes after them.
TEST(Retention, ALowPriorityOfTheOutputIsNotThePrompts) {
  const pb::RetentionPolicy low = ReadRetention({}, "decode:10").value();
  EXPECT_EQ(RetentionOfPage(*ToPolicy(low, 64), 48, 0), Retention{});
  EXPECT_EQ(RetentionOfPage(*ToPolicy(low, 64), 64, 0).priority, 10);
  const pb::RetentionPolicy high = ReadRetention({}, "decode:90:5s").value();
  EXPECT_EQ(RetentionOfPage(*ToPolicy(high, 64), 0, 100), (Retention{90, 5100}));
}

}  // namespace
}  // namespace quire
