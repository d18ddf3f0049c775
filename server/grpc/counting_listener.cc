// server/grpc/counting_listener.cc -- see counting_listener.h.
#include "server/grpc/counting_listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/thread_name.h"

namespace quire {
namespace {

// After an accept that failed: no descriptor is free, and trying at once would spin.
constexpr std::chrono::milliseconds kAcceptPause{50};
constexpr std::chrono::seconds kWarnEvery{10};

void SetOption(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof(value));
}

uint16_t PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

void SetPort(sockaddr* address, int32_t port) {
  const in_port_t value = htons(static_cast<uint16_t>(port));
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = value;
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = value;
  }
}

int OpenListening(const addrinfo& info) {
  const int fd = ::socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(fd, info.ai_addr, info.ai_addrlen) == 0 && ::listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

bool Watch(int epoll, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

absl::StatusOr<AddressList> Resolve(const std::string& host, int32_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string bare =
      host.size() > 1 && host.front() == '[' ? host.substr(1, host.size() - 2) : host;
  if (const int error = ::getaddrinfo(bare.c_str(), std::to_string(port).c_str(), &hints, &found);
      error != 0) {
    return InvalidArgument("host={} is no address of this machine: {}", host,
                           ::gai_strerror(error));
  }
  return AddressList(found, &::freeaddrinfo);
}

CountingListener::CountingListener(int32_t max_connections) : max_connections_(max_connections) {}

absl::StatusOr<std::unique_ptr<CountingListener>> CountingListener::Listen(
    const std::string& host, int32_t port, int32_t max_connections) {
  ASSIGN_OR_RETURN(const AddressList found, Resolve(host, port));
  std::unique_ptr<CountingListener> self(new CountingListener(max_connections));
  self->epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  self->wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  self->port_ = port;
  int error = self->epoll_ < 0 || self->wake_ < 0 ? errno : 0;
  for (addrinfo* info = found.get(); info != nullptr && error == 0; info = info->ai_next) {
    SetPort(info->ai_addr, self->port_);
    const int fd = OpenListening(*info);
    if (fd < 0) {
      // A host of two addresses may have one that this machine has not.
      if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) error = errno;
      continue;
    }
    self->listening_.push_back(fd);
    self->port_ = PortOf(fd);
  }
  if (error == 0 && self->listening_.empty()) error = EADDRNOTAVAIL;
  if (error != 0) {
    return Error(absl::StatusCode::kUnavailable,
                 "port={} on host={} can't be listened on: {}; choose another --port (0 = any)",
                 port, host, std::strerror(error));
  }
  return self;
}

CountingListener::~CountingListener() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    (void)!::write(wake_, &one, sizeof(one));
    thread_.join();
  }
  for (const int fd : watched_) ::close(fd);
  for (const int fd : listening_) ::close(fd);
  if (wake_ >= 0) ::close(wake_);
  if (epoll_ >= 0) ::close(epoll_);
}

void CountingListener::Serve(
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor) {
  acceptor_ = std::move(acceptor);
  Watch(epoll_, wake_, EPOLLIN);
  for (const int fd : listening_) Watch(epoll_, fd, EPOLLIN);
  thread_ = std::thread([this] {
    SetThreadName("quire-accept");
    Loop();
  });
}

void CountingListener::Loop() {
  std::array<epoll_event, 64> events{};
  for (;;) {
    const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
    // Those that end make room for those that come.
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == wake_) return;
      if (watched_.count(fd) != 0) Forget(fd);
    }
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (std::find(listening_.begin(), listening_.end(), fd) == listening_.end()) continue;
      while (Take(fd)) {
      }
    }
  }
}

bool CountingListener::Take(int listening) {
  const int fd = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      std::this_thread::sleep_for(kAcceptPause);
    }
    return errno == ECONNABORTED || errno == EINTR;
  }
  const int second = num_connections_ < max_connections_ ? ::fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
  if (second < 0 || !Watch(epoll_, second, 0)) {
    if (second >= 0) ::close(second);
    ::close(fd);
    if (std::chrono::steady_clock::now() - warned_ >= kWarnEvery) {
      warned_ = std::chrono::steady_clock::now();
      spdlog::warn(
          "a gRPC connection was refused: {} are open, limit is {}; raise "
          "--grpc-max-connections, or the limit on open files",
          num_connections_.load(), max_connections_);
    }
    return true;
  }
  watched_.insert(second);
  ++num_connections_;
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.listener_fd = listening;
  parameters.fd = fd;
  acceptor_->HandleNewConnection(&parameters);
  return true;
}

void CountingListener::Forget(int fd) {
  watched_.erase(fd);
  // Closing is not enough: the set would keep the socket until gRPC's descriptor is closed, too.
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  ::close(fd);
  --num_connections_;
}

}  // namespace quire
