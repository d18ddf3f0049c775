#include "paged_cache/page_file_format.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

namespace quire {
namespace {

static_assert(std::endian::native == std::endian::little, "page files are little-endian");

constexpr char kMagic[8] = {'Q', 'U', 'I', 'R', 'E', 'P', 'G', '\n'};
constexpr uint32_t kVersion = 1;
constexpr uint32_t kByteOrder = 0x01020304;
constexpr std::string_view kRootTag("quire root 1\0", 13);
constexpr std::string_view kPageTag("quire page 1\0", 13);

// The file's first bytes. All fields are naturally aligned: there is no padding.
struct Head {
  char magic[8];
  uint32_t version;
  uint32_t byte_order;
  uint64_t file_bytes;
  uint8_t key[32];
  uint8_t parent[32];
  uint32_t depth;
  uint32_t num_tokens;
  uint32_t num_groups;
  uint32_t fingerprint_bytes;
  uint32_t root_bytes;
  uint32_t reserved;  // 0
};
static_assert(sizeof(Head) == 112);
using Checksum = XXH128_canonical_t;
static_assert(sizeof(Checksum) == 16);

struct FreeXxh3 {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

// XXH3-128 over pieces of a file.
class Digester {
 public:
  Digester() : state_(XXH3_createState()) {
    CHECK(state_ != nullptr, "no memory for a hash");
    XXH3_128bits_reset(state_.get());
  }
  void Add(const void* data, size_t size) { XXH3_128bits_update(state_.get(), data, size); }
  Checksum Get() const {
    Checksum out;
    XXH128_canonicalFromHash(&out, XXH3_128bits_digest(state_.get()));
    return out;
  }

 private:
  std::unique_ptr<XXH3_state_t, FreeXxh3> state_;
};

// Fingerprint, root, tokens and group lengths: what stands between head and pages. Cannot overflow:
// all four are bounded.
size_t TailBytes(const PageFileLayout& layout, size_t root_bytes) {
  return layout.fingerprint.size() + root_bytes +
         static_cast<size_t>(layout.block_size) * sizeof(TokenId) +
         layout.group_bytes.size() * sizeof(uint64_t);
}

absl::Status WriteAll(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = write(fd, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int error = n < 0 ? errno : EIO;
      return Error(absl::StatusCode::kUnavailable, "cannot write: {}", std::strerror(error));
    }
    at += n;
    size -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

std::optional<PageFault> ReadAll(int fd, uint64_t offset, void* data, size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = pread(fd, at, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PageFault::kIo;
    if (n == 0) return PageFault::kCut;  // cut since its size was read
    at += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<size_t>(n);
  }
  return std::nullopt;
}

// A checked header, and where in the file its pages begin.
struct Parsed {
  std::string text;  // the header's bytes
  PageEntry entry;   // without its pages
  std::vector<uint64_t> group_bytes;
};

// The checks of what can be checked without reading the pages. Every length is compared with what
// the layout demands, so that the file's own numbers never decide how much is allocated; only the
// root's length is the file's, and it is bounded.
std::optional<PageFault> Parse(int fd, const PageFileLayout& layout, const Sha256Digest& key,
                               Parsed& out) {
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return PageFault::kIo;
  const auto file_bytes = static_cast<uint64_t>(info.st_size);
  if (file_bytes < sizeof(Head) + sizeof(Checksum)) return PageFault::kCut;
  Head head;
  if (const auto fault = ReadAll(fd, 0, &head, sizeof(head))) return fault;
  if (std::memcmp(head.magic, kMagic, sizeof(kMagic)) != 0 || head.version != kVersion ||
      head.byte_order != kByteOrder || head.reserved != 0) {
    return PageFault::kFormat;
  }
  if (head.file_bytes != file_bytes) return PageFault::kCut;
  if (head.fingerprint_bytes != layout.fingerprint.size() ||
      head.num_tokens != static_cast<uint32_t>(layout.block_size) ||
      head.num_groups != layout.group_bytes.size()) {
    return PageFault::kLayout;
  }
  if (head.root_bytes > kMaxRootBytes || head.depth > INT32_MAX ||
      (head.depth > 0 && head.root_bytes > 0)) {
    return PageFault::kFormat;
  }
  const size_t tail_bytes = TailBytes(layout, head.root_bytes);
  if (tail_bytes > file_bytes - sizeof(Head) - sizeof(Checksum)) return PageFault::kFormat;

  out.text.resize(sizeof(Head) + tail_bytes);
  std::memcpy(out.text.data(), &head, sizeof(head));
  if (const auto fault = ReadAll(fd, sizeof(Head), out.text.data() + sizeof(Head), tail_bytes)) {
    return fault;
  }
  const char* at = out.text.data() + sizeof(Head);
  const auto take = [&at](void* to, size_t size) {
    std::memcpy(to, at, size);
    at += size;
  };
  if (std::memcmp(at, layout.fingerprint.data(), layout.fingerprint.size()) != 0) {
    return PageFault::kLayout;
  }
  at += layout.fingerprint.size();
  PageEntry& entry = out.entry;
  entry.depth = static_cast<int32_t>(head.depth);
  entry.root.assign(at, head.root_bytes);
  at += head.root_bytes;
  entry.tokens.resize(head.num_tokens);
  take(entry.tokens.data(), entry.tokens.size() * sizeof(TokenId));
  out.group_bytes.resize(head.num_groups);
  take(out.group_bytes.data(), out.group_bytes.size() * sizeof(uint64_t));
  uint64_t expected = sizeof(Head) + tail_bytes + sizeof(Checksum);
  for (size_t g = 0; g < out.group_bytes.size(); ++g) {
    const uint64_t bytes = out.group_bytes[g];
    if (bytes != 0 && bytes != layout.group_bytes[g]) return PageFault::kLayout;
    expected += bytes;
  }
  if (expected != file_bytes) return PageFault::kFormat;

  std::memcpy(entry.key.bytes.data(), head.key, sizeof(head.key));
  std::memcpy(entry.parent.bytes.data(), head.parent, sizeof(head.parent));
  if (entry.key != key || PageKey(entry.parent, entry.tokens) != key ||
      (entry.depth == 0 && RootPageKey(entry.root) != entry.parent)) {
    return PageFault::kKey;
  }
  return std::nullopt;
}

}  // namespace

absl::Status PageFileLayout::Validate() const {
  if (fingerprint.size() > kMaxFingerprintBytes) {
    return InvalidArgument("fingerprint has {} bytes, limit is {}", fingerprint.size(),
                           kMaxFingerprintBytes);
  }
  if (block_size < 1 || block_size > 65536) {
    return InvalidArgument("block_size={} must be in [1, 65536]", block_size);
  }
  if (group_bytes.empty() || group_bytes.size() > kMaxPageFileGroups) {
    return InvalidArgument("{} cache groups, must be 1 to {}", group_bytes.size(),
                           kMaxPageFileGroups);
  }
  for (size_t g = 0; g < group_bytes.size(); ++g) {
    if (group_bytes[g] == 0 || group_bytes[g] > kMaxGroupBytes) {
      return InvalidArgument("group_bytes[{}]={} must be in [1, {}]", g, group_bytes[g],
                             kMaxGroupBytes);
    }
  }
  return absl::OkStatus();
}

Sha256Digest RootPageKey(std::string_view root_bytes) {
  std::string text(kRootTag);
  text += root_bytes;
  return Sha256(text);
}

Sha256Digest PageKey(const Sha256Digest& parent, std::span<const TokenId> tokens) {
  std::string text(kPageTag);
  text.append(parent.bytes.begin(), parent.bytes.end());
  text.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  return Sha256(text);
}

uint64_t GroupMask(const PageEntry& entry) {
  uint64_t mask = 0;
  for (size_t g = 0; g < entry.groups.size(); ++g) {
    if (!entry.groups[g].empty()) mask |= uint64_t{1} << g;
  }
  return mask;
}

void MergeGroups(PageEntry& entry, PageEntry other) {
  CHECK(entry.key == other.key && entry.groups.size() == other.groups.size(), "not the same page");
  for (size_t g = 0; g < entry.groups.size(); ++g) {
    if (entry.groups[g].empty()) entry.groups[g] = std::move(other.groups[g]);
  }
}

uint64_t PageFileBytes(const PageEntry& entry, const PageFileLayout& layout) {
  uint64_t bytes = sizeof(Head) + TailBytes(layout, entry.root.size()) + sizeof(Checksum);
  for (const auto& group : entry.groups) bytes += group.size();
  return bytes;
}

std::string_view Name(PageFault fault) {
  switch (fault) {
    case PageFault::kCut:
      return "cut";
    case PageFault::kFormat:
      return "format";
    case PageFault::kLayout:
      return "layout";
    case PageFault::kKey:
      return "key";
    case PageFault::kChecksum:
      return "checksum";
    case PageFault::kIo:
      return "io";
  }
  return "unknown";
}

absl::Status WritePageFile(int fd, const PageEntry& entry, const PageFileLayout& layout) {
  Head head{};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  head.version = kVersion;
  head.byte_order = kByteOrder;
  head.file_bytes = PageFileBytes(entry, layout);
  std::memcpy(head.key, entry.key.bytes.data(), sizeof(head.key));
  std::memcpy(head.parent, entry.parent.bytes.data(), sizeof(head.parent));
  head.depth = static_cast<uint32_t>(entry.depth);
  head.num_tokens = static_cast<uint32_t>(entry.tokens.size());
  head.num_groups = static_cast<uint32_t>(entry.groups.size());
  head.fingerprint_bytes = static_cast<uint32_t>(layout.fingerprint.size());
  head.root_bytes = static_cast<uint32_t>(entry.root.size());

  std::string text(reinterpret_cast<const char*>(&head), sizeof(head));
  text += layout.fingerprint;
  text += entry.root;
  text.append(reinterpret_cast<const char*>(entry.tokens.data()),
              entry.tokens.size() * sizeof(TokenId));
  for (const auto& group : entry.groups) {
    const uint64_t bytes = group.size();
    text.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  }
  Digester digester;
  digester.Add(text.data(), text.size());
  RETURN_IF_ERROR(WriteAll(fd, text.data(), text.size()));
  for (const auto& group : entry.groups) {
    digester.Add(group.data(), group.size());
    RETURN_IF_ERROR(WriteAll(fd, group.data(), group.size()));
  }
  const Checksum checksum = digester.Get();
  return WriteAll(fd, &checksum, sizeof(checksum));
}

std::variant<PageHeader, PageFault> ReadPageHeader(int fd, const PageFileLayout& layout,
                                                   const Sha256Digest& key) {
  Parsed parsed;
  if (const auto fault = Parse(fd, layout, key, parsed)) return *fault;
  PageHeader header{.parent = parsed.entry.parent, .depth = parsed.entry.depth};
  for (size_t g = 0; g < parsed.group_bytes.size(); ++g) {
    if (parsed.group_bytes[g] != 0) header.group_mask |= uint64_t{1} << g;
  }
  return header;
}

std::variant<PageEntry, PageFault> ReadPageFile(int fd, const PageFileLayout& layout,
                                                const Sha256Digest& key) {
  Parsed parsed;
  if (const auto fault = Parse(fd, layout, key, parsed)) return *fault;
  Digester digester;
  digester.Add(parsed.text.data(), parsed.text.size());
  uint64_t offset = parsed.text.size();
  PageEntry& entry = parsed.entry;
  entry.groups.resize(parsed.group_bytes.size());
  for (size_t g = 0; g < entry.groups.size(); ++g) {
    std::vector<std::byte>& group = entry.groups[g];
    group.resize(parsed.group_bytes[g]);
    if (const auto fault = ReadAll(fd, offset, group.data(), group.size())) return *fault;
    digester.Add(group.data(), group.size());
    offset += group.size();
  }
  Checksum stored;
  if (const auto fault = ReadAll(fd, offset, &stored, sizeof(stored))) return *fault;
  const Checksum computed = digester.Get();
  if (std::memcmp(&stored, &computed, sizeof(stored)) != 0) return PageFault::kChecksum;
  return std::move(entry);
}

}  // namespace quire
