// paged_cache/page_file_format.h -- one cache page in one file: its names, its bytes, its checks.
//
// An entry is the prefix page of one step down from its parent: the page's tokens and, for every
// cache group that has one, the page's content. Its key names the whole prefix:
//
//   key(depth 0)  = SHA-256("quire page 1\0" | root key | token ids)
//   key(depth d)  = SHA-256("quire page 1\0" | key of the parent | token ids)
//   root key      = SHA-256("quire root 1\0" | root bytes)
//
// with token ids as 32-bit little-endian numbers. docs/formats.md has the layout of the file.
//
// Every byte of a file is untrusted. Lengths are compared with the file's size and with what the
// layout says before anything is allocated or read by them; the key is computed again from parent
// and tokens; the checksum covers all bytes before it. The checksum finds accidents, not forgers:
// who can write into the directory can write pages.
//
// Thread: any; no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "paged_cache/sha256.h"

namespace quire {

// What pages of one directory have in common.
struct PageFileLayout {
  // Whatever else decides what a page's bytes mean: model, dtype, kernel layout ... Compared as is.
  std::string fingerprint;
  int32_t block_size = 0;             // tokens of a page
  std::vector<uint64_t> group_bytes;  // of a page, by group

  // ERRORS: kInvalidArgument, naming the field.
  absl::Status Validate() const;
};

inline constexpr size_t kMaxFingerprintBytes = 4096;
inline constexpr size_t kMaxPageFileGroups = 64;  // the width of a mask of groups
inline constexpr uint64_t kMaxGroupBytes = uint64_t{1} << 32;
inline constexpr size_t kMaxRootBytes = size_t{1} << 20;

Sha256Digest RootPageKey(std::string_view root_bytes);
Sha256Digest PageKey(const Sha256Digest& parent, std::span<const TokenId> tokens);

struct PageEntry {
  Sha256Digest key;             // PageKey(parent, tokens)
  Sha256Digest parent;          // key of the page before; at depth 0 RootPageKey(root)
  int32_t depth = 0;            // pages before this one
  std::string root;             // root bytes at depth 0, else empty
  std::vector<TokenId> tokens;  // [block_size]
  // [groups]: a page's content, or empty where the group has none here.
  std::vector<std::vector<std::byte>> groups;
};

// Bit g: group g has content.
uint64_t GroupMask(const PageEntry& entry);
// Moves into `entry` the groups that only `other`, an entry of the same key, has.
void MergeGroups(PageEntry& entry, PageEntry other);
uint64_t PageFileBytes(const PageEntry& entry, const PageFileLayout& layout);

// Why a file is not the page that it should be.
enum class PageFault : uint8_t {
  kCut,       // shorter or longer than its header says
  kFormat,    // no page file, another version or byte order, impossible lengths
  kLayout,    // a page of another model or layout
  kKey,       // another page than its name says
  kChecksum,  // bytes have changed
  kIo,        // cannot be read, or is no regular file
};
inline constexpr size_t kNumPageFaults = 6;
std::string_view Name(PageFault fault);  // "cut", "format" ...

// What a header says. Not covered by a checksum until the whole page is read.
struct PageHeader {
  Sha256Digest parent;
  int32_t depth = 0;
  uint64_t group_mask = 0;
};

// Writes all of `entry` to `fd`. REQUIRES: it fits `layout`. ERRORS: as errno says.
absl::Status WritePageFile(int fd, const PageEntry& entry, const PageFileLayout& layout);

// Read the file of `key`, open as `fd`, from its start.
std::variant<PageHeader, PageFault> ReadPageHeader(int fd, const PageFileLayout& layout,
                                                   const Sha256Digest& key);
std::variant<PageEntry, PageFault> ReadPageFile(int fd, const PageFileLayout& layout,
                                                const Sha256Digest& key);

}  // namespace quire
