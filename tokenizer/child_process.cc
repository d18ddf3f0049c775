#include "tokenizer/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace quire {
namespace {

constexpr size_t kReadChunk = 64 * 1024;

// Variables that a Python needs to be found and to tell the time zone; nothing else is passed on.
constexpr const char* kPassedVariables[] = {"PATH", "HOME", "TZ", "TZDIR", "LD_LIBRARY_PATH"};

std::vector<std::string> ChildEnvironment() {
  std::vector<std::string> environment = {"LC_ALL=C.UTF-8"};
  for (const char* name : kPassedVariables) {
    if (const char* value = getenv(name)) environment.push_back(fmt::format("{}={}", name, value));
  }
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

struct Pipe {
  int read_end = -1;
  int write_end = -1;
  ~Pipe() {
    if (read_end >= 0) close(read_end);
    if (write_end >= 0) close(write_end);
  }
  bool Open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read_end = ends[0];
    write_end = ends[1];
    return true;
  }
};

void SetNonBlocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

// Waits until `fd` is ready for `events` or hung up; false at the deadline.
bool Wait(int fd, short events, ChildProcess::Deadline deadline) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd p{.fd = fd, .events = events, .revents = 0};
    const int timeout = static_cast<int>(std::clamp<int64_t>(left.count() + 1, 0, 60'000));
    const int rc = poll(&p, 1, timeout);
    if (rc > 0) return true;
    if (rc == 0 && std::chrono::steady_clock::now() >= deadline) return false;
    if (rc < 0 && errno != EINTR) return true;  // the read or write will tell
  }
}

// write(2) without SIGPIPE, which a library must neither raise nor disable for the whole process.
ssize_t WriteWithoutSignal(int fd, std::string_view data) {
  sigset_t pipe_set;
  sigset_t old_mask;
  sigset_t pending;
  sigemptyset(&pipe_set);
  sigaddset(&pipe_set, SIGPIPE);
  sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &pipe_set, &old_mask);
  const ssize_t rc = write(fd, data.data(), data.size());
  const int error = errno;
  if (rc < 0 && error == EPIPE && !was_pending) {
    const timespec now{0, 0};
    while (sigtimedwait(&pipe_set, nullptr, &now) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &old_mask, nullptr);
  errno = error;
  return rc;
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& argv) {
  Pipe in;
  Pipe out;
  if (!in.Open() || !out.Open()) {
    return Error(absl::StatusCode::kResourceExhausted, "pipe: {}", strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.read_end, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.write_end, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(
      &attributes,
      static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID));
  std::vector<std::string> arguments = argv;
  std::vector<std::string> environment = ChildEnvironment();
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0].c_str(), &actions, &attributes,
                                 Pointers(arguments).data(), Pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    return Error(absl::StatusCode::kFailedPrecondition, "cannot start '{}': {}", argv[0],
                 strerror(error));
  }
  ChildProcess child;
  child.pid_ = pid;
  child.to_child_ = std::exchange(in.write_end, -1);
  child.from_child_ = std::exchange(out.read_end, -1);
  SetNonBlocking(child.to_child_);
  SetNonBlocking(child.from_child_);
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept { *this = std::move(other); }

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this == &other) return *this;
  Kill();
  pid_ = std::exchange(other.pid_, -1);
  to_child_ = std::exchange(other.to_child_, -1);
  from_child_ = std::exchange(other.from_child_, -1);
  buffer_ = std::exchange(other.buffer_, {});
  return *this;
}

ChildProcess::~ChildProcess() { Kill(); }

int ChildProcess::Kill() {
  if (pid_ <= 0) return 0;
  close(to_child_);
  close(from_child_);
  kill(pid_, SIGKILL);  // no effect on one that has ended already
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = to_child_ = from_child_ = -1;
  buffer_.clear();
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

absl::Status ChildProcess::Write(std::string_view data, Deadline deadline) {
  while (!data.empty()) {
    const ssize_t rc = WriteWithoutSignal(to_child_, data);
    if (rc > 0) {
      data.remove_prefix(static_cast<size_t>(rc));
    } else if (rc < 0 && errno == EAGAIN) {
      if (!Wait(to_child_, POLLOUT, deadline)) return absl::DeadlineExceededError("write");
    } else if (rc < 0 && errno != EINTR) {
      return absl::UnavailableError("the helper process has gone");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ChildProcess::ReadLine(size_t max_bytes, Deadline deadline) {
  size_t searched = 0;
  for (;;) {
    const size_t newline = buffer_.find('\n', searched);
    if (newline != std::string::npos) {
      std::string line = buffer_.substr(0, newline);
      buffer_.erase(0, newline + 1);
      return line;
    }
    searched = buffer_.size();
    if (searched > max_bytes) {
      return Error(absl::StatusCode::kResourceExhausted, "answer is longer than {} bytes",
                   max_bytes);
    }
    buffer_.resize(searched + kReadChunk);
    const ssize_t rc = read(from_child_, buffer_.data() + searched, kReadChunk);
    const int error = errno;
    buffer_.resize(searched + (rc > 0 ? static_cast<size_t>(rc) : 0));
    if (rc > 0) continue;
    if (rc < 0 && error == EINTR) continue;
    if (rc < 0 && error == EAGAIN) {
      if (!Wait(from_child_, POLLIN, deadline)) return absl::DeadlineExceededError("read");
      continue;
    }
    return absl::UnavailableError("the helper process has gone");
  }
}

}  // namespace quire
