// tokenizer/child_process.h -- a helper process that is spoken to in lines over two pipes.
//
// The child gets nothing of ours but its stdin and stdout: other descriptors are closed, stderr is
// /dev/null, signals are at their defaults, the session is its own (Ctrl-C does not reach it), and
// the environment is a short list. It is expected to end when its stdin ends, so it cannot outlive
// us, however we end. (PR_SET_PDEATHSIG would fire when the *thread* that started the child ends,
// which a pool thread may do at any time.)
//
// One thread at a time. Uses posix_spawn: no fork of a process that maps gigabytes of weights.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

class ChildProcess {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // argv[0] is looked up in PATH. ERRORS: kFailedPrecondition naming argv[0] and the reason.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& argv);

  ChildProcess() = default;
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  // Kills the child if it still runs, and reaps it.
  ~ChildProcess();

  bool running() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }

  // Writes all of `data`. ERRORS: kDeadlineExceeded; kUnavailable if the child has gone.
  absl::Status Write(std::string_view data, Deadline deadline);

  // The next line without its '\n'. ERRORS: kDeadlineExceeded; kUnavailable if the child has gone;
  // kResourceExhausted if the line is longer than `max_bytes`.
  absl::StatusOr<std::string> ReadLine(size_t max_bytes, Deadline deadline);

  // Ends the child at once. Returns the signal that ended it, or 0 if it had exited by itself.
  int Kill();

 private:
  pid_t pid_ = -1;
  int to_child_ = -1;
  int from_child_ = -1;
  std::string buffer_;  // read, but not returned yet
};

}  // namespace quire
