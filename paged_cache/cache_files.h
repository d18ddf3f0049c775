// paged_cache/cache_files.h -- the cache and files: what an entry of a PageFileStore is made of,
// and counts of a transfer. The work is BlockManager's (cache_files.cc).
//
// A node of the prefix tree is an entry: its tokens, and for each group the content that it has.
// Its root's bytes are the root's key (model, kernel, regime ...) and its salt, each with its
// length before it, so that a root can be made again from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "paged_cache/cache_layout.h"
#include "paged_cache/page_file_format.h"

namespace quire {

struct CacheTransfer {
  int64_t entries = 0;  // prefix blocks
  int64_t tokens = 0;
  int64_t bytes = 0;
  int64_t known = 0;    // were there already
  int64_t dropped = 0;  // no room, or no use without what is missing before them
};

std::string FileRootBytes(std::string_view root_key, std::string_view cache_salt);
// (root key, salt), or nullopt if it is not of this form.
std::optional<std::pair<std::string, std::string>> ParseFileRootBytes(std::string_view bytes);

// fingerprint: of the weights, and of all that decides what a page's bytes mean.
PageFileLayout MakePageFileLayout(const CacheLayout& layout, std::string fingerprint);

}  // namespace quire
