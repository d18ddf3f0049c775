// tests/page_storage_test.cc -- addresses, copies and the poisoning of freed pages.
#include "paged_cache/page_storage.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

namespace quire {
namespace {

CacheLayout TwoPools() {
  CacheLayout layout;
  layout.pools = {{4096}, {192}};
  return layout;
}

std::unique_ptr<PageStorage> Storage() {
  return PageStorage::Create(TwoPools(), std::vector<int32_t>{5, 7}).value();
}

void Fill(PageStorage& s, int32_t pool, PageId page, int value) {
  std::memset(s.page(pool, page), value, s.page_bytes(pool));
}
bool Holds(const PageStorage& s, int32_t pool, PageId page, int value) {
  for (size_t i = 0; i < s.page_bytes(pool); ++i) {
    if (s.page(pool, page)[i] != static_cast<std::byte>(value)) return false;
  }
  return true;
}

TEST(PageStorage, EveryPageHasItsOwnBytes) {
  const auto s = Storage();
  EXPECT_EQ(s->num_pools(), 2);
  EXPECT_EQ(s->page_bytes(0), 4096);
  EXPECT_EQ(s->page_bytes(1), 192);
  for (int32_t pool = 0; pool < 2; ++pool) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(s->base(pool)) % (2 << 20), 0);
    for (PageId page = 0; page <= 5 + 2 * pool; ++page) Fill(*s, pool, page, 10 * pool + page);
  }
  for (int32_t pool = 0; pool < 2; ++pool) {
    for (PageId page = 0; page <= 5 + 2 * pool; ++page) {
      EXPECT_TRUE(Holds(*s, pool, page, 10 * pool + page)) << pool << " " << page;
    }
  }
}

// HARD-CASES R03: page 10^6 with a stride of 2^20 bytes lies far beyond 2^32.
TEST(PageStorage, OffsetsHave64Bits) {
  constexpr uintptr_t kBase = uintptr_t{1} << 21;  // an address to reckon with, never touched
  const auto offset = [](PageId page, size_t stride) {
    return reinterpret_cast<uintptr_t>(
               PageAddress(reinterpret_cast<std::byte*>(kBase), page, stride)) -
           kBase;
  };
  EXPECT_EQ(offset(1'000'000, size_t{1} << 20), 1'048'576'000'000u);
  EXPECT_EQ(offset(1'000'000, 16384), 16'384'000'000u);
  EXPECT_EQ(offset(2147483647, 64), 137'438'953'408u);
}

TEST(PageStorage, MemoryIsCommittedLazily) {
  CacheLayout layout;
  layout.pools = {{size_t{1} << 20}};
  // 10 GiB of address space, of which the last page is touched.
  const auto s = PageStorage::Create(layout, std::vector<int32_t>{10'000});
  ASSERT_TRUE(s.ok()) << s.status();
  std::byte* const last = (*s)->page(0, 10'000);
  *last = std::byte{7};
  EXPECT_EQ(last - (*s)->base(0), int64_t{10'000} << 20);
  EXPECT_EQ(*last, std::byte{7});
}

TEST(PageStorage, CopiesRunInOrder) {
  const auto s = Storage();
  for (PageId page = 1; page <= 3; ++page) Fill(*s, 0, page, page);
  Fill(*s, 1, 1, 99);
  const std::vector<PageCopy> copies = {{0, 1, 2}, {0, 2, 3}, {1, 1, 7}};
  s->Copy(copies);
  EXPECT_TRUE(Holds(*s, 0, 2, 1));
  EXPECT_TRUE(Holds(*s, 0, 3, 1));  // the second copy sees the first
  EXPECT_TRUE(Holds(*s, 0, 1, 1));
  EXPECT_TRUE(Holds(*s, 1, 7, 99));
}

// Slots of the host tier have memory of their own, and pages move in the order of the list: a page
// that is evicted is saved before its new content comes.
TEST(PageStorage, SavesLoadsAndFillsRunInOrder) {
  const auto s =
      PageStorage::Create(TwoPools(), std::vector<int32_t>{5, 7}, {}, std::vector<int32_t>{3, 2})
          .value();
  for (PageId page = 1; page <= 5; ++page) Fill(*s, 0, page, page);
  Fill(*s, 1, 4, 44);
  const std::vector<std::vector<std::byte>> fills = {std::vector<std::byte>(192, std::byte{9}),
                                                     std::vector<std::byte>(4096, std::byte{8})};
  const std::vector<PageCopy> ops = {{0, 1, 3, PageOp::kSave},  // page 1 -> slot 3
                                     {0, 2, 1},                 // page 2 -> page 1
                                     {0, 3, 5, PageOp::kLoad},  // slot 3 -> page 5: once page 1
                                     {0, 4, 3, PageOp::kSave},  // the slot is used again
                                     {0, 1, 4, PageOp::kFill},  // and so is the page
                                     {1, 4, 2, PageOp::kSave},
                                     {1, 0, 4, PageOp::kFill}};
  s->Copy(ops, fills);
  EXPECT_TRUE(Holds(*s, 0, 1, 2));
  EXPECT_TRUE(Holds(*s, 0, 2, 2));
  EXPECT_TRUE(Holds(*s, 0, 3, 3));
  EXPECT_TRUE(Holds(*s, 0, 4, 8));
  EXPECT_TRUE(Holds(*s, 0, 5, 1));
  EXPECT_TRUE(Holds(*s, 1, 4, 9));
  const auto slot_holds = [&](int32_t pool, PageId slot, int value) {
    const std::byte* bytes = s->host_page(pool, slot);
    return std::all_of(bytes, bytes + s->page_bytes(pool),
                       [&](std::byte b) { return b == static_cast<std::byte>(value); });
  };
  EXPECT_TRUE(slot_holds(0, 3, 4));
  EXPECT_TRUE(slot_holds(1, 2, 44));
}

TEST(PageStorageDeathTest, OperationsOnTheNullPageAreFatal) {
  const auto s = Storage();
  EXPECT_DEATH(s->Copy(std::vector<PageCopy>{{0, 0, 1}}), "copy of page 0 to 1");
  EXPECT_DEATH(s->Copy(std::vector<PageCopy>{{0, 2, 2}}), "copy of page 2 to 2");
  EXPECT_DEATH(s->Copy(std::vector<PageCopy>{{0, 0, 1, PageOp::kFill}}), "fill 0 of 0");
}

// Resident bytes of this process.
int64_t Resident() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// What a pool gives up is memory that the machine has back; its neighbours keep every byte.
TEST(PageStorage, DiscardedPagesCostNothing) {
  CacheLayout layout;
  layout.pools = {{(size_t{1} << 20) + 192}};  // borders inside pages of the system
  const auto s = PageStorage::Create(layout, std::vector<int32_t>{10}, std::vector<int32_t>{40});
  ASSERT_TRUE(s.ok()) << s.status();
  EXPECT_EQ((*s)->most_usable(0), 40);
  for (PageId page = 1; page <= 40; ++page) Fill(**s, 0, page, page);
  std::vector<PageId> gone;
  for (PageId page = 2; page <= 40; page += 2) gone.push_back(page);
  const int64_t before = Resident();
  (*s)->Discard(0, gone);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_GT(before - Resident(), 15 << 20) << "20 pages of a MiB each";
#else
  (void)before;
#endif
  for (PageId page = 1; page <= 40; page += 2) EXPECT_TRUE(Holds(**s, 0, page, page)) << page;
  EXPECT_EQ((*s)->page(0, 2)[1 << 19], std::byte{0}) << "it comes back as zeros";
  Fill(**s, 0, 2, 7);
  EXPECT_TRUE(Holds(**s, 0, 2, 7));
}

// HARD-CASES R07. The source of a copy may be free already when the step runs, and its target too
// may have been freed and taken again; neither must lose what it is needed for.
TEST(PageStorage, PoisonsFreedPagesAfterCopies) {
  const auto s = Storage();
  std::vector<PagePool> pools;
  pools.emplace_back(5, 8, PagePoolOptions{.record_freed = true});
  pools.emplace_back(7, 8, PagePoolOptions{.record_freed = true});
  std::vector<PageId> p(3);
  ASSERT_TRUE(pools[0].Take(p));
  for (const PageId page : p) Fill(*s, 0, page, page);
  pools[0].Release(p[0]);  // freed
  pools[0].Release(p[1]);  // freed, taken again as a target
  PageId again = kNullPage;
  ASSERT_TRUE(pools[0].Take({&again, 1}));
  ASSERT_EQ(again, p[1]);
  const std::vector<PageCopy> copies = {{0, p[0], p[1]}};
  s->Copy(copies);
  s->PoisonFreed(pools, copies);
  float value = 0;
  std::memcpy(&value, s->page(0, p[0]) + 64, sizeof(value));
  EXPECT_TRUE(std::isnan(value));
  EXPECT_TRUE(Holds(*s, 0, p[0], 0xFF));
  EXPECT_TRUE(Holds(*s, 0, p[1], p[0]));
  EXPECT_TRUE(Holds(*s, 0, p[2], p[2]));
  Fill(*s, 0, p[0], 1);
  s->PoisonFreed(pools, {});  // nothing was freed since
  EXPECT_TRUE(Holds(*s, 0, p[0], 1));
}

TEST(PageStorage, WithoutPoolsItIsEmpty) {
  PageStorage none;
  EXPECT_EQ(none.base(0), nullptr);
  EXPECT_EQ(none.page_bytes(0), 0);
}

TEST(PageStorage, RefusesSizesThatAreNone) {
  struct Case {
    size_t page_bytes;
    int32_t pages;
    absl::StatusCode code;
    const char* text;
  };
  const Case cases[] = {
      {4096, 0, absl::StatusCode::kInvalidArgument, "num_blocks=0 of 4096 bytes in pool 0"},
      {4096, -1, absl::StatusCode::kInvalidArgument, "num_blocks=-1"},
      {size_t{1} << 62, 4, absl::StatusCode::kInvalidArgument, "num_blocks=4"},
      {size_t{1} << 40, 1'000'000, absl::StatusCode::kResourceExhausted, "cannot be mapped"},
  };
  for (const Case& c : cases) {
    CacheLayout layout;
    layout.pools = {{c.page_bytes}};
    const auto s = PageStorage::Create(layout, std::vector<int32_t>{c.pages});
    EXPECT_EQ(s.status().code(), c.code) << s.status();
    EXPECT_NE(Message(s.status()).find(c.text), std::string::npos) << s.status();
  }
}

}  // namespace
}  // namespace quire
