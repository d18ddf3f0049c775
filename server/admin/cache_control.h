// server/admin/cache_control.h -- what an operator does to the cache that needs the pages' bytes.
//
// The model's runtime has them (models/runtime.h says what each does); tests have fakes. An empty
// function: this daemon can't do it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "paged_cache/cache_files.h"
#include "paged_cache/page_file_store.h"
#include "scheduler/scheduler.h"

namespace quire {

struct CacheControl {
  // Engine thread, between two steps.
  std::function<absl::Status(Scheduler&, int32_t num_blocks)> set_num_blocks;
  // directory: canonical, below cache_directory.
  std::function<absl::StatusOr<CacheTransfer>(const std::string& directory)> save;
  std::function<absl::StatusOr<CacheTransfer>(const std::string& directory)> load;
  // Any thread. Of the file tier.
  std::function<PageFileStats()> files;
};

}  // namespace quire
