// tests/page_file_harness.h -- small page file stores: entries whose content follows from their
// tokens, and the files behind them.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "paged_cache/page_file_store.h"
#include "tests/weight_files.h"

namespace quire {

inline constexpr int32_t kBlockSize = 4;

inline PageFileLayout SmallLayout() {
  return {.fingerprint = "toy model, float32", .block_size = kBlockSize, .group_bytes = {40, 24}};
}

inline PageFileStoreOptions SmallOptions(const TempDir& dir) {
  return {.directory = dir.File("pages"),
          .layout = SmallLayout(),
          .max_bytes = 1 << 20,
          .queue_bytes = 1 << 20};
}

inline std::unique_ptr<PageFileStore> OpenStore(const PageFileStoreOptions& options) {
  absl::StatusOr<std::unique_ptr<PageFileStore>> store = PageFileStore::Open(options);
  CHECK(store.ok(), "{}", Message(store.status()));
  return *std::move(store);
}

// A page's content: a function of its key and group.
inline std::vector<std::byte> ContentOf(const Sha256Digest& key, size_t group, size_t bytes) {
  std::vector<std::byte> content(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    content[i] = static_cast<std::byte>(key.bytes[i % 32] + 31 * group + 7 * (i / 32));
  }
  return content;
}

// The page of `tokens` after `parent`, with content in the groups of `mask`.
inline PageEntry MakeEntry(const PageEntry* parent, const std::string& root,
                           std::vector<TokenId> tokens, uint64_t mask = 3,
                           const PageFileLayout& layout = SmallLayout()) {
  PageEntry entry;
  entry.parent = parent != nullptr ? parent->key : RootPageKey(root);
  entry.depth = parent != nullptr ? parent->depth + 1 : 0;
  if (parent == nullptr) entry.root = root;
  entry.tokens = std::move(tokens);
  entry.key = PageKey(entry.parent, entry.tokens);
  entry.groups.resize(layout.group_bytes.size());
  for (size_t g = 0; g < entry.groups.size(); ++g) {
    if ((mask >> g & 1) != 0) entry.groups[g] = ContentOf(entry.key, g, layout.group_bytes[g]);
  }
  return entry;
}

inline std::vector<TokenId> TokensFrom(int32_t first) {
  std::vector<TokenId> tokens(kBlockSize);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// The first page of a prefix under the root "r".
inline PageEntry First(int32_t token) { return MakeEntry(nullptr, "r", TokensFrom(token)); }
inline PageEntry Next(const PageEntry& parent, int32_t token) {
  return MakeEntry(&parent, "", TokensFrom(token));
}

inline std::optional<PageEntry> GetLike(PageFileStore& store, const PageEntry& entry) {
  return store.Get(entry.key, entry.parent, entry.tokens);
}

inline bool SameEntry(const PageEntry& a, const PageEntry& b) {
  return a.key == b.key && a.parent == b.parent && a.depth == b.depth && a.root == b.root &&
         a.tokens == b.tokens && a.groups == b.groups;
}

inline testing::AssertionResult Serves(PageFileStore& store, const PageEntry& entry) {
  const std::optional<PageEntry> got = GetLike(store, entry);
  if (!got.has_value()) return testing::AssertionFailure() << "not served";
  if (!SameEntry(*got, entry)) return testing::AssertionFailure() << "served something else";
  return testing::AssertionSuccess();
}

inline std::string PathOf(const PageFileStoreOptions& options, const Sha256Digest& key) {
  const std::string hex = key.ToHex();
  return fmt::format("{}/{}/{}/{}.page", options.directory, hex.substr(0, 2), hex.substr(2, 2),
                     hex);
}

inline uint64_t SumOfFaults(const PageFileStats& stats) {
  return std::accumulate(stats.faults.begin(), stats.faults.end(), uint64_t{0});
}

// What lies in the directory, by the file system's own account.
struct OnDisk {
  uint64_t bytes = 0;
  uint64_t pages = 0;
  uint64_t temps = 0;
};
inline OnDisk Measure(const PageFileStoreOptions& options) {
  OnDisk sum;
  for (const auto& file : std::filesystem::recursive_directory_iterator(options.directory)) {
    if (!file.is_regular_file()) continue;
    const std::string suffix = file.path().extension().string();
    sum.pages += suffix == ".page" ? 1 : 0;
    sum.temps += suffix == ".tmp" ? 1 : 0;
    if (suffix == ".page" || suffix == ".tmp") sum.bytes += file.file_size();
  }
  return sum;
}

// Where the writer waits while the gate is closed.
class WriterGate {
 public:
  void Open() { Set(true); }
  void Close() { Set(false); }
  // Until the writer stands at the closed gate.
  void AwaitWriter() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_waiting_; });
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    is_waiting_ = !is_open_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
    is_waiting_ = false;
  }

 private:
  void Set(bool open) {
    const std::lock_guard lock(mutex_);
    is_open_ = open;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  bool is_waiting_ = false;
};

}  // namespace quire
