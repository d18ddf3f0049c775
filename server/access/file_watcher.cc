// server/access/file_watcher.cc -- see file_watcher.h.
#include "server/access/file_watcher.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <utility>

#include "base/thread_name.h"

namespace quire {
namespace {

std::string LookAt(const std::vector<std::string>& paths) {
  std::string look;
  for (const std::string& path : paths) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) {
      look += "gone;";
      continue;
    }
    look += fmt::format("{}/{} {} {}.{:09};", info.st_dev, info.st_ino, info.st_size,
                        info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  }
  return look;
}

}  // namespace

void FileWatcher::Watch(std::vector<std::string> paths, std::function<void()> changed) {
  std::string look = LookAt(paths);
  watched_.push_back({std::move(paths), std::move(changed), look, look});
}

void FileWatcher::Start() {
  if (watched_.empty()) return;
  thread_ = std::thread([this] {
    SetThreadName("quire-watcher");
    Loop();
  });
}

void FileWatcher::Stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void FileWatcher::Loop() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, period_, [this] { return stopped_; })) {
    for (Watched& w : watched_) {
      std::string look = LookAt(w.paths);
      const bool stands_still = look == w.seen;
      w.seen = std::move(look);
      if (!stands_still || w.seen == w.told) continue;
      w.told = w.seen;
      w.changed();
    }
  }
}

}  // namespace quire
