// tests/page_file_directory_test.cc -- page file stores and the file system: who may open one, what
// else lies in its directory, and what happens when the disk says no.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "paged_cache/page_file_store.h"
#include "tests/page_file_harness.h"

namespace quire {
namespace {

TEST(PageFileStore, OneDirectoryOneStore) {
  const TempDir dir;
  const PageFileStoreOptions options = SmallOptions(dir);
  {
    const auto store = OpenStore(options);
    const absl::Status second = PageFileStore::Open(options).status();
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(Message(second).find("directory=" + options.directory + " is in use"),
              std::string::npos)
        << second;
    ASSERT_TRUE(store->Put(First(1)));
    store->Flush();
    EXPECT_TRUE(Serves(*store, First(1)));
  }
  EXPECT_TRUE(PageFileStore::Open(options).ok());
}

TEST(PageFileStore, OptionsAreChecked) {
  const TempDir dir;
  const PageFileStoreOptions good = SmallOptions(dir);
  const auto expect_named = [](const PageFileStoreOptions& options, std::string_view name) {
    const absl::Status status = PageFileStore::Open(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_NE(Message(status).find(name), std::string::npos) << status;
  };
  PageFileStoreOptions bad = good;
  bad.directory.clear();
  expect_named(bad, "directory");
  bad = good;
  bad.max_bytes = 0;
  expect_named(bad, "max_bytes");
  bad = good;
  bad.queue_bytes = 0;
  expect_named(bad, "queue_bytes");
  for (const int32_t size : {0, -1, 65537}) {
    bad = good;
    bad.layout.block_size = size;
    expect_named(bad, "block_size");
  }
  bad = good;
  bad.layout.fingerprint.assign(kMaxFingerprintBytes + 1, 'x');
  expect_named(bad, "fingerprint");
  bad = good;
  bad.layout.group_bytes.clear();
  expect_named(bad, "groups");
  bad.layout.group_bytes.assign(kMaxPageFileGroups + 1, 8);
  expect_named(bad, "groups");
  for (const uint64_t bytes : {uint64_t{0}, kMaxGroupBytes + 1, ~uint64_t{0}}) {
    bad.layout.group_bytes = {8, bytes};
    expect_named(bad, "group_bytes[1]");
  }
  bad = good;
  bad.directory = dir.Write("file", "x");
  expect_named(bad, bad.directory);
}

// Root may write everywhere: then the test acts as another user for a while.
class AsOrdinaryUser {
 public:
  AsOrdinaryUser() : was_root_(geteuid() == 0) {
    if (was_root_) CHECK(seteuid(kNobody) == 0, "cannot give up root");
  }
  ~AsOrdinaryUser() {
    if (was_root_) CHECK(seteuid(0) == 0, "cannot become root again");
  }
  AsOrdinaryUser(const AsOrdinaryUser&) = delete;
  AsOrdinaryUser& operator=(const AsOrdinaryUser&) = delete;
  static constexpr uid_t kNobody = 65534;

 private:
  const bool was_root_;
};

TEST(PageFileStore, AnUnwritableDirectoryIsRefused) {
  const TempDir dir;
  PageFileStoreOptions options = SmallOptions(dir);
  {
    const auto store = OpenStore(options);
    ASSERT_TRUE(store->Put(First(1)));
  }
  ASSERT_EQ(chmod(dir.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(options.directory.c_str(), 0555), 0);
  ASSERT_EQ(chmod((options.directory + "/lock").c_str(), 0666), 0);  // not what refuses
  {
    const AsOrdinaryUser user;
    const absl::Status status = PageFileStore::Open(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    EXPECT_NE(Message(status).find(options.directory), std::string::npos) << status;
    PageFileStoreOptions below = options;
    below.directory += "/below";  // cannot be made
    EXPECT_EQ(PageFileStore::Open(below).status().code(), absl::StatusCode::kPermissionDenied);
  }
  ASSERT_EQ(chmod(options.directory.c_str(), 0755), 0);
  EXPECT_TRUE(Serves(*OpenStore(options), First(1)));
}

TEST(PageFileStore, AFullDiskCostsEntriesOnly) {
  const TempDir dir;
  const PageFileStoreOptions options = SmallOptions(dir);
  const auto store = OpenStore(options);
  ASSERT_TRUE(store->Put(First(0)));
  store->Flush();
  // No file may grow beyond 150 bytes: writes stop in the middle of a page.
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{.rlim_cur = 150, .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  for (int i = 1; i <= 5; ++i) EXPECT_TRUE(store->Put(First(i)));
  store->Flush();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  const PageFileStats stats = store->stats();
  EXPECT_EQ(stats.write_errors, 5u);
  EXPECT_NE(stats.last_write_error.find(PathOf(options, First(5).key)), std::string::npos)
      << stats.last_write_error;
  EXPECT_EQ(stats.entries, 1u);
  EXPECT_EQ(Measure(options).temps, 0u);
  EXPECT_EQ(Measure(options).bytes, stats.bytes);
  EXPECT_TRUE(Serves(*store, First(0)));
  ASSERT_TRUE(store->Put(First(1)));  // room again
  store->Flush();
  EXPECT_TRUE(Serves(*store, First(1)));
}

TEST(PageFileStore, ADirectoryThatVanishesCostsEntriesOnly) {
  const TempDir dir;
  const PageFileStoreOptions options = SmallOptions(dir);
  const auto store = OpenStore(options);
  ASSERT_TRUE(store->Put(First(0)));
  store->Flush();
  std::filesystem::remove_all(options.directory);
  EXPECT_FALSE(GetLike(*store, First(0)).has_value());
  EXPECT_EQ(store->stats().faults_of(PageFault::kIo), 1u);
  EXPECT_TRUE(store->Put(First(1)));
  store->Flush();
  EXPECT_FALSE(store->Contains(First(1).key));
  EXPECT_EQ(store->stats().write_errors, 1u);
  EXPECT_EQ(store->stats().entries, 0u);
  EXPECT_EQ(store->stats().bytes, 0u);
}

namespace fs = std::filesystem;

TEST(PageFileStore, OnlyItsOwnFilesAreTouched) {
  const TempDir dir;
  const PageFileStoreOptions options = SmallOptions(dir);
  const std::string hex = First(1).key.ToHex();
  const std::string folder = fs::path(PathOf(options, First(1).key)).parent_path().string();
  fs::create_directories(folder);
  const std::string foreign[] = {
      options.directory + "/notes.txt",
      options.directory + "/" + hex + ".page",  // not in a key's folder
      options.directory + "/" + hex + ".tmp",  folder + "/" + hex,
      folder + "/" + hex + ".page.bak",        folder + "/" + hex.substr(1) + ".page",
      folder + "/x" + hex.substr(1) + ".tmp",  folder + "/A" + hex.substr(1) + ".page",
  };
  for (const std::string& path : foreign) WriteBytes(path, "mine");
  const std::string left_over = folder + "/" + First(1).key.ToHex() + ".tmp";
  WriteBytes(left_over, "half a page");
  {
    const auto store = OpenStore(options);
    EXPECT_EQ(store->stats().entries, 0u);
    EXPECT_EQ(SumOfFaults(store->stats()), 0u);
    EXPECT_FALSE(fs::exists(left_over));
    ASSERT_TRUE(store->Put(First(1)));
    store->Flush();
    EXPECT_TRUE(Serves(*store, First(1)));
    WriteBytes(left_over, "half a page");  // in the writer's way
    ASSERT_TRUE(store->Remove(First(1).key));
    ASSERT_TRUE(store->Put(First(1)));
    store->Flush();
    EXPECT_TRUE(Serves(*store, First(1)));
    EXPECT_FALSE(fs::exists(left_over));
    store->Clear();
  }
  for (const std::string& path : foreign) EXPECT_EQ(ReadBytes(path), "mine") << path;
}

// What stands where a page should be, before Open and while the store is open.
TEST(PageFileStore, NoLinkIsFollowedAndNothingElseIsRead) {
  for (const bool reopen : {false, true}) {
    for (const char* kind : {"link", "dangling", "folder", "full folder", "pipe"}) {
      SCOPED_TRACE(fmt::format("{}, {}", kind, reopen ? "before Open" : "while open"));
      const TempDir dir;
      const PageFileStoreOptions options = SmallOptions(dir);
      const std::string path = PathOf(options, First(1).key);
      auto store = OpenStore(options);
      ASSERT_TRUE(store->Put(First(1)));
      ASSERT_TRUE(store->Put(First(2)));
      store->Flush();
      if (reopen) store.reset();
      const std::string outside = dir.Write("outside", ReadBytes(path));  // a perfect page
      fs::remove(path);
      if (kind == std::string("link")) fs::create_symlink(outside, path);
      if (kind == std::string("dangling")) fs::create_symlink(dir.File("nowhere"), path);
      if (kind == std::string("folder")) fs::create_directory(path);
      if (kind == std::string("full folder")) fs::create_directories(path + "/full");
      if (kind == std::string("pipe")) CHECK(mkfifo(path.c_str(), 0600) == 0, "no pipe");
      if (reopen) store = OpenStore(options);

      EXPECT_FALSE(GetLike(*store, First(1)).has_value());
      EXPECT_EQ(store->stats().faults_of(PageFault::kIo), 1u);
      EXPECT_EQ(SumOfFaults(store->stats()), 1u);
      EXPECT_FALSE(store->Contains(First(1).key));
      EXPECT_TRUE(Serves(*store, First(2)));
      EXPECT_TRUE(fs::exists(outside));
      const bool stays = kind == std::string("full folder");  // not ours to delete
      EXPECT_EQ(fs::exists(fs::symlink_status(path)), stays);

      ASSERT_TRUE(store->Put(First(1)));
      store->Flush();
      EXPECT_EQ(store->stats().write_errors, stays ? 1u : 0u);
      EXPECT_EQ(static_cast<bool>(Serves(*store, First(1))), !stays);
      EXPECT_EQ(Measure(options).temps, 0u);
    }
  }
}

TEST(PageFileStore, APageInAnotherKeysFolderIsDropped) {
  const TempDir dir;
  const PageFileStoreOptions options = SmallOptions(dir);
  OpenStore(options)->Put(First(1));
  OpenStore(options)->Put(First(2));
  const fs::path from = PathOf(options, First(1).key);
  const fs::path to = fs::path(PathOf(options, First(2).key)).parent_path() / from.filename();
  fs::copy(from, to);
  const auto store = OpenStore(options);
  EXPECT_FALSE(fs::exists(to));
  EXPECT_EQ(SumOfFaults(store->stats()), 1u);
  EXPECT_EQ(store->stats().entries, 2u);
  EXPECT_EQ(store->stats().bytes, Measure(options).bytes);
  EXPECT_TRUE(Serves(*store, First(1)));
}

// A folder of pages that leads elsewhere is not walked into.
TEST(PageFileStore, LinkedFoldersAreNotScanned) {
  const TempDir dir;
  const PageFileStoreOptions options = SmallOptions(dir);
  OpenStore(options)->Put(First(1));
  const fs::path folder = fs::path(PathOf(options, First(1).key)).parent_path();
  fs::rename(folder, dir.File("moved"));
  fs::create_symlink(dir.File("moved"), folder);
  const auto store = OpenStore(options);
  EXPECT_EQ(store->stats().entries, 0u);
  EXPECT_FALSE(fs::is_empty(dir.File("moved")));
}

}  // namespace
}  // namespace quire
