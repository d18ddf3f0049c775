// server/access/file_watcher.h -- tells when files have changed: keys and certificates.
//
// A thread of its own looks once a second. A change is told once the files stand still from one
// look to the next, so that who writes two files one after the other is not caught in between; if
// he is, the files change once more and are told once more. Files may be replaced, be links whose
// target changes, or be gone for a while.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace quire {

class FileWatcher {
 public:
  explicit FileWatcher(std::chrono::milliseconds period = std::chrono::seconds(1))
      : period_(period) {}
  ~FileWatcher() { Stop(); }

  // changed: on the watcher's thread. REQUIRES: before Start. Call it before the files are read for
  // the first time.
  void Watch(std::vector<std::string> paths, std::function<void()> changed);
  // Without anything to watch there is no thread.
  void Start();
  void Stop();

 private:
  struct Watched {
    std::vector<std::string> paths;
    std::function<void()> changed;
    std::string told;  // what the files looked like when `changed` was called last
    std::string seen;  // at the last look
  };
  void Loop();

  const std::chrono::milliseconds period_;
  std::vector<Watched> watched_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace quire
