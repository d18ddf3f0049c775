// tests/page_file_faults_test.cc -- page files with wrong bytes: dropped, counted by reason, never
// served, and never the cause of a large allocation. Seeded: a failure prints its step.
// Meant for the asan preset above all.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <random>

#include "paged_cache/page_file_store.h"
#include "tests/allocation_meter.h"
#include "tests/page_file_harness.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

// Where the fields of a page file are: docs/formats.md.
constexpr size_t kVersionAt = 8;
constexpr size_t kByteOrderAt = 12;
constexpr size_t kFileBytesAt = 16;
constexpr size_t kKeyAt = 24;
constexpr size_t kParentAt = 56;
constexpr size_t kDepthAt = 88;
constexpr size_t kNumTokensAt = 92;
constexpr size_t kNumGroupsAt = 96;
constexpr size_t kFingerprintBytesAt = 100;
constexpr size_t kRootBytesAt = 104;
constexpr size_t kReservedAt = 108;
constexpr size_t kFingerprintAt = 112;
constexpr size_t kChecksumBytes = 16;

// Makes the checksum right, as if the writer had meant these bytes.
void FixChecksum(std::string& file) {
  if (file.size() < kChecksumBytes) return;
  const size_t size = file.size() - kChecksumBytes;
  XXH128_canonical_t checksum;
  XXH128_canonicalFromHash(&checksum, XXH3_128bits(file.data(), size));
  std::memcpy(file.data() + size, &checksum, kChecksumBytes);
}

template <typename T>
void Poke(std::string& file, size_t at, T value) {
  std::memcpy(file.data() + at, &value, sizeof(value));
}

// A store with one entry whose file tests may spoil.
class FaultsTest : public testing::Test {
 protected:
  FaultsTest() {
    const auto store = OpenStore(options_);
    CHECK(store->Put(entry_) && store->Put(bystander_), "cannot put");
    store->Flush();
    good_ = ReadBytes(path_);
  }

  // With `bytes` in the entry's file, found by a store that opens or by one that is open.
  struct Outcome {
    bool served = false;
    PageFileStats stats;
    bool exists = false;  // the file, afterwards
  };
  Outcome Try(const std::string& bytes, bool reopen) {
    WriteBytes(path_, good_);
    std::unique_ptr<PageFileStore> store;
    if (!reopen) store = OpenStore(options_);
    WriteBytes(path_, bytes);
    if (reopen) store = OpenStore(options_);
    Outcome outcome;
    if (const auto got = GetLike(*store, entry_)) {
      outcome.served = true;
      EXPECT_EQ(got->key, entry_.key);
    }
    outcome.stats = store->stats();
    outcome.exists = fs::exists(path_);
    EXPECT_EQ(store->Contains(entry_.key), outcome.served);
    EXPECT_TRUE(Serves(*store, bystander_));
    return outcome;
  }
  void ExpectDropped(const std::string& bytes, std::optional<PageFault> fault = std::nullopt) {
    for (const bool reopen : {false, true}) {
      const Outcome outcome = Try(bytes, reopen);
      EXPECT_FALSE(outcome.served);
      EXPECT_FALSE(outcome.exists);
      EXPECT_EQ(SumOfFaults(outcome.stats), 1u);
      if (fault.has_value()) {
        EXPECT_EQ(outcome.stats.faults_of(*fault), 1u) << Name(*fault);
      }
      EXPECT_EQ(outcome.stats.entries, 1u);
      EXPECT_EQ(outcome.stats.bytes, PageFileBytes(bystander_, options_.layout));
    }
  }
  // With `value` at byte `at` and a right checksum.
  template <typename T>
  void ExpectLieDropped(size_t at, T value, PageFault fault) {
    SCOPED_TRACE(at);
    std::string bytes = good_;
    Poke(bytes, at, value);
    FixChecksum(bytes);
    ExpectDropped(bytes, fault);
  }

  TempDir dir_;
  PageFileStoreOptions options_ = SmallOptions(dir_);
  PageEntry entry_ = First(1);
  PageEntry bystander_ = First(1000);
  std::string path_ = PathOf(options_, entry_.key);
  std::string good_;
};

TEST_F(FaultsTest, CutAtEveryByte) {
  for (size_t size = 0; size < good_.size(); ++size) {
    SCOPED_TRACE(size);
    ExpectDropped(good_.substr(0, size), PageFault::kCut);
  }
  ExpectDropped(good_ + '\0', PageFault::kCut);
  EXPECT_TRUE(Try(good_, true).served);  // the file that was spoiled was good
}

TEST_F(FaultsTest, EveryBitFlipped) {
  std::array<uint64_t, kNumPageFaults> faults{};
  for (size_t bit = 0; bit < 8 * good_.size(); ++bit) {
    SCOPED_TRACE(bit);
    std::string bytes = good_;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    const Outcome outcome = Try(bytes, bit % 2 == 0);
    EXPECT_FALSE(outcome.served);
    EXPECT_FALSE(outcome.exists);
    EXPECT_EQ(SumOfFaults(outcome.stats), 1u);
    for (size_t f = 0; f < kNumPageFaults; ++f) faults[f] += outcome.stats.faults[f];
  }
  // Pages and checksum, 80 bytes, can only be found wrong by the checksum.
  EXPECT_GE(faults[static_cast<size_t>(PageFault::kChecksum)], 80u * 8);
  for (const PageFault fault :
       {PageFault::kCut, PageFault::kFormat, PageFault::kLayout, PageFault::kKey}) {
    EXPECT_GT(faults[static_cast<size_t>(fault)], 0u) << Name(fault);
  }
}

TEST_F(FaultsTest, TwoFilesSwapped) {
  for (const bool reopen : {false, true}) {
    const std::string other = PathOf(options_, bystander_.key);
    auto store = OpenStore(options_);
    store->Clear();
    ASSERT_TRUE(store->Put(entry_));
    ASSERT_TRUE(store->Put(bystander_));
    store->Flush();
    if (reopen) store.reset();
    fs::rename(path_, dir_.File("swap"));
    fs::rename(other, path_);
    fs::rename(dir_.File("swap"), other);
    if (reopen) store = OpenStore(options_);
    EXPECT_FALSE(GetLike(*store, entry_).has_value());
    EXPECT_FALSE(GetLike(*store, bystander_).has_value());
    EXPECT_EQ(store->stats().faults_of(PageFault::kKey), 2u);
    EXPECT_EQ(SumOfFaults(store->stats()), 2u);
    EXPECT_EQ(Measure(options_).pages, 0u);
    EXPECT_EQ(store->stats().bytes, 0u);
  }
}

// Faults that a right checksum does not excuse.
TEST_F(FaultsTest, HeadersThatLie) {
  ExpectLieDropped(0, 'q', PageFault::kFormat);
  ExpectLieDropped(kVersionAt, uint32_t{0}, PageFault::kFormat);
  ExpectLieDropped(kVersionAt, uint32_t{2}, PageFault::kFormat);
  ExpectLieDropped(kByteOrderAt, uint32_t{0x04030201}, PageFault::kFormat);
  ExpectLieDropped(kReservedAt, uint32_t{1}, PageFault::kFormat);
  ExpectLieDropped(kKeyAt, bystander_.key.bytes, PageFault::kKey);
  ExpectLieDropped(kParentAt, bystander_.key.bytes, PageFault::kKey);
  ExpectLieDropped(kDepthAt, uint32_t{1}, PageFault::kFormat);  // a root below depth 0
  ExpectLieDropped(kDepthAt, ~uint32_t{0}, PageFault::kFormat);
  ExpectLieDropped(kFingerprintAt, 'T', PageFault::kLayout);
  ExpectLieDropped(kRootBytesAt, uint32_t{0xffff}, PageFault::kFormat);  // beyond the file's end
  const size_t root_at = kFingerprintAt + options_.layout.fingerprint.size();
  ExpectLieDropped(root_at, 's', PageFault::kKey);
  const size_t tokens_at = root_at + entry_.root.size();
  ExpectLieDropped(tokens_at, TokenId{2}, PageFault::kKey);
  const size_t groups_at = tokens_at + entry_.tokens.size() * sizeof(TokenId);
  ExpectLieDropped(groups_at, uint64_t{39}, PageFault::kLayout);
  ExpectLieDropped(groups_at, uint64_t{0}, PageFault::kFormat);  // too long a file, then
}

TEST_F(FaultsTest, AnotherWorkersLayout) {
  std::vector<PageFileLayout> others(6, options_.layout);
  others[0].fingerprint = "toy model, float16";
  others[1].fingerprint += "!";
  others[2].block_size = 8;
  others[3].group_bytes = {40};
  others[4].group_bytes = {24, 40};
  others[5].group_bytes.push_back(8);
  for (size_t i = 0; i < others.size(); ++i) {
    SCOPED_TRACE(i);
    OpenStore(options_)->Put(entry_);
    OpenStore(options_)->Put(bystander_);
    PageFileStoreOptions other = options_;
    other.layout = others[i];
    const auto store = OpenStore(other);
    EXPECT_EQ(store->stats().entries, 0u);
    EXPECT_EQ(store->stats().faults_of(PageFault::kLayout), 2u);
    EXPECT_EQ(SumOfFaults(store->stats()), 2u);
    EXPECT_EQ(Measure(other).pages, 0u);
  }
}

// A root of more than kMaxRootBytes, right in all else.
TEST_F(FaultsTest, TooLongARoot) {
  entry_ = MakeEntry(nullptr, std::string(kMaxRootBytes, 'x'), TokensFrom(1));
  path_ = PathOf(options_, entry_.key);
  options_.max_bytes *= 4;
  options_.queue_bytes *= 4;
  ASSERT_TRUE(OpenStore(options_)->Put(entry_));
  good_ = ReadBytes(path_);
  EXPECT_TRUE(Try(good_, true).served);
  std::string bytes = good_;
  bytes.insert(kFingerprintAt + options_.layout.fingerprint.size(), 1, 'x');
  Poke(bytes, kFileBytesAt, uint64_t{bytes.size()});
  Poke(bytes, kRootBytesAt, uint32_t{kMaxRootBytes + 1});
  FixChecksum(bytes);
  for (const bool reopen : {false, true}) {
    EXPECT_EQ(Try(bytes, reopen).stats.faults_of(PageFault::kFormat), 1u);
  }
}

// A header may say any depth: then its page is in nobody's prefix, though its key is right.
TEST_F(FaultsTest, WrongDepth) {
  const PageEntry child = Next(entry_, 5);
  OpenStore(options_)->Put(child);
  std::string bytes = ReadBytes(PathOf(options_, child.key));
  Poke(bytes, kDepthAt, uint32_t{7});
  FixChecksum(bytes);
  WriteBytes(PathOf(options_, child.key), bytes);
  const auto store = OpenStore(options_);
  ASSERT_TRUE(Serves(*store, entry_));  // the more recent of the two: visited first
  int visited = 0;
  store->ForEach([&](const PageEntry& e) {
    EXPECT_NE(e.key, child.key);
    ++visited;
    return true;
  });
  EXPECT_EQ(visited, 2);
}

constexpr uint64_t kHostile[] = {0,
                                 1,
                                 0x7f,
                                 0xff,
                                 0xffff,
                                 0x7fffffff,
                                 0x80000000,
                                 0xffffffff,
                                 uint64_t{1} << 32,
                                 uint64_t{1} << 40,
                                 uint64_t{1} << 62,
                                 uint64_t{1} << 63,
                                 ~uint64_t{0},
                                 ~uint64_t{0} - 127};

// Every length in the file, set to numbers that would overflow or exhaust a reader that trusted
// them.
TEST_F(FaultsTest, HugeLengths) {
  const size_t groups_at = kFingerprintAt + options_.layout.fingerprint.size() +
                           entry_.root.size() + entry_.tokens.size() * sizeof(TokenId);
  const size_t narrow[] = {kNumTokensAt, kNumGroupsAt, kFingerprintBytesAt, kRootBytesAt};
  const size_t wide[] = {kFileBytesAt, groups_at, groups_at + 8};
  constexpr size_t kMaxAllocation = 256 << 10;  // two stores, two small files
  const auto check = [&](std::string bytes) {
    if (bytes == good_) return;
    FixChecksum(bytes);
    const AllocationMeter meter;
    ExpectDropped(bytes);
    EXPECT_LT(meter.bytes(), kMaxAllocation);
  };
  for (const uint64_t value : kHostile) {
    for (const size_t at : narrow) {
      SCOPED_TRACE(fmt::format("{} at {}", value, at));
      std::string bytes = good_;
      Poke(bytes, at, static_cast<uint32_t>(value));
      check(bytes);
    }
    for (const size_t at : wide) {
      SCOPED_TRACE(fmt::format("{} at {}", value, at));
      std::string bytes = good_;
      Poke(bytes, at, value);
      check(bytes);
    }
  }
}

void Mutate(std::string& bytes, std::mt19937_64& rng) {
  const auto below = [&rng](size_t n) { return static_cast<size_t>(rng() % n); };
  const size_t edits = 1 + below(4);
  for (size_t e = 0; e < edits && !bytes.empty(); ++e) {
    const size_t at = below(bytes.size());
    switch (below(7)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(below(256));
        break;
      case 2: {  // a number, mostly where numbers are
        const uint64_t value = kHostile[below(std::size(kHostile))];
        const size_t n = below(2) == 0 ? 4 : 8;
        const size_t to = below(2) == 0 ? at : 4 * below(50);
        if (to + n <= bytes.size()) std::memcpy(bytes.data() + to, &value, n);
        break;
      }
      case 3:
        bytes.resize(below(bytes.size()));
        break;
      case 4: {  // a piece over another
        const size_t from = below(bytes.size());
        const size_t n = std::min({below(64) + 1, bytes.size() - at, bytes.size() - from});
        std::memmove(bytes.data() + at, bytes.data() + from, n);
        break;
      }
      case 5:
        bytes.erase(at, below(16) + 1);
        break;
      default:
        bytes.insert(at, std::string(below(16) + 1, static_cast<char>(below(256))));
        break;
    }
  }
}

// Random mutations. With the checksum as it was, nothing but the very entry is served. With a
// right checksum over wrong bytes, whatever is served is still the page of these tokens and has
// the layout's sizes; only its content is the forger's.
TEST_F(FaultsTest, RandomMutations) {
  std::mt19937_64 rng(20261130);
  int served = 0;
  int dropped = 0;
  const auto store = OpenStore(options_);
  for (int step = 0; step < 6000; ++step) {
    SCOPED_TRACE(step);
    ASSERT_TRUE(store->Put(entry_));
    store->Flush();
    std::string bytes = good_;
    Mutate(bytes, rng);
    const bool forge = step % 2 == 0;
    if (forge && rng() % 2 == 0 && bytes.size() >= kFileBytesAt + 8) {
      Poke(bytes, kFileBytesAt, uint64_t{bytes.size()});
    }
    if (forge) FixChecksum(bytes);
    WriteBytes(path_, bytes);
    const uint64_t faults = SumOfFaults(store->stats());
    std::optional<PageEntry> got;
    if (step % 3 == 0) {
      store->ForEach([&](PageEntry entry) {
        if (entry.key == entry_.key) got = std::move(entry);
        return true;
      });
    } else {
      got = GetLike(*store, entry_);
    }
    if (!got.has_value()) {
      ++dropped;
      ASSERT_EQ(SumOfFaults(store->stats()), faults + 1);
      ASSERT_FALSE(fs::exists(path_));
      continue;
    }
    ++served;
    ASSERT_EQ(SumOfFaults(store->stats()), faults);
    if (!forge) {
      ASSERT_EQ(bytes, good_);
      ASSERT_TRUE(SameEntry(*got, entry_));
    }
    ASSERT_EQ(got->key, entry_.key);
    ASSERT_EQ(got->parent, entry_.parent);
    ASSERT_EQ(got->tokens, entry_.tokens);
    for (size_t g = 0; g < got->groups.size(); ++g) {
      const size_t size = got->groups[g].size();
      ASSERT_TRUE(size == 0 || size == options_.layout.group_bytes[g]);
    }
  }
  EXPECT_GT(served, 100);
  EXPECT_GT(dropped, 4000);
  EXPECT_TRUE(Serves(*store, bystander_));
}

// New groups come for an entry whose file has gone bad: what is new is kept.
TEST_F(FaultsTest, ABadFileIsReplaced) {
  const PageEntry full = MakeEntry(nullptr, "s", TokensFrom(1), 1);
  const PageEntry sliding = MakeEntry(nullptr, "s", TokensFrom(1), 2);
  WriterGate gate;
  options_.before_write = [&gate] { gate.Pass(); };
  const auto store = OpenStore(options_);
  gate.Open();
  ASSERT_TRUE(store->Put(full));
  store->Flush();
  std::string bytes = ReadBytes(PathOf(options_, full.key));
  bytes.back() ^= 1;
  WriteBytes(PathOf(options_, full.key), bytes);
  gate.Close();
  ASSERT_TRUE(store->Put(sliding));
  gate.AwaitWriter();  // it has seen the bad file
  EXPECT_TRUE(Serves(*store, sliding));
  EXPECT_EQ(store->stats().faults_of(PageFault::kChecksum), 1u);
  gate.Open();
  store->Flush();
  EXPECT_TRUE(Serves(*store, sliding));
  EXPECT_EQ(SumOfFaults(store->stats()), 1u);
  EXPECT_EQ(store->stats().bytes, Measure(options_).bytes);
  ASSERT_TRUE(store->Put(full));
  store->Flush();
  EXPECT_TRUE(Serves(*store, MakeEntry(nullptr, "s", TokensFrom(1), 3)));
}

// A chain that is broken in the middle: its beginning is served and visited, the rest is not
// visited.
TEST_F(FaultsTest, ABrokenChainEndsAtTheBreak) {
  std::vector<PageEntry> chain = {entry_};
  while (chain.size() < 6) chain.push_back(Next(chain.back(), 5));
  {
    const auto store = OpenStore(options_);
    for (const PageEntry& e : chain) ASSERT_TRUE(store->Put(e));
  }
  const std::string broken = PathOf(options_, chain[3].key);
  std::string bytes = ReadBytes(broken);
  bytes[bytes.size() - 20] ^= 1;
  WriteBytes(broken, bytes);
  const auto store = OpenStore(options_);
  EXPECT_EQ(store->stats().entries, 7u);  // the header is fine
  std::vector<Sha256Digest> visited;
  store->ForEach([&](const PageEntry& e) {
    if (e.key != bystander_.key) visited.push_back(e.key);
    return true;
  });
  EXPECT_EQ(visited, (std::vector<Sha256Digest>{chain[0].key, chain[1].key, chain[2].key}));
  EXPECT_EQ(store->stats().faults_of(PageFault::kChecksum), 1u);
  EXPECT_FALSE(store->Contains(chain[3].key));
  EXPECT_TRUE(Serves(*store, chain[4]));  // for one who holds its parent
}

}  // namespace
}  // namespace quire
