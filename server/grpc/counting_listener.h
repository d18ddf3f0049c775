// server/grpc/counting_listener.h -- a listening TCP port with a limit on its connections, which
// the gRPC library has not: beyond the limit a connection is closed as soon as it is taken.
//
// Sits between the kernel and grpc::ServerBuilder's external acceptor: takes a connection, keeps a
// second descriptor of it, hands the first to gRPC. gRPC shuts a socket down in both directions
// when it is done with it, and a peer that is gone leaves it so too: then the second one says so
// (EPOLLHUP) and the connection no longer counts. What is sent and received wakes nobody here.
//
// Thread: an own one, quire-accept, from Serve to the destructor.
#pragma once

#include <grpcpp/server_builder.h>
#include <netdb.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/status.h"

namespace quire {

// The addresses of a host of this machine, in brackets or not, to listen on. ERRORS:
// kInvalidArgument.
using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;
absl::StatusOr<AddressList> Resolve(const std::string& host, int32_t port);

class CountingListener {
 public:
  // Listens on host:port (0 = any), takes nothing yet. ERRORS: kInvalidArgument for a host that is
  // none; kUnavailable with the system's reason.
  static absl::StatusOr<std::unique_ptr<CountingListener>> Listen(const std::string& host,
                                                                  int32_t port,
                                                                  int32_t max_connections);
  // Closes the port; connections that gRPC has stay.
  ~CountingListener();

  CountingListener(const CountingListener&) = delete;
  CountingListener& operator=(const CountingListener&) = delete;

  int32_t port() const { return port_; }
  // Hands connections to the server that has been started with this acceptor.
  void Serve(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor);
  // Any thread.
  int32_t num_connections() const { return num_connections_; }

 private:
  explicit CountingListener(int32_t max_connections);

  void Loop();
  // false: this listener has none at the moment.
  bool Take(int listening);
  void Forget(int fd);

  const int32_t max_connections_;
  int32_t port_ = 0;
  int epoll_ = -1;
  int wake_ = -1;               // an eventfd that ends the loop
  std::vector<int> listening_;  // one for each address of the host
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unordered_set<int> watched_;  // second descriptors; the loop's thread
  std::atomic<int32_t> num_connections_{0};
  std::chrono::steady_clock::time_point warned_{};
  std::thread thread_;
};

}  // namespace quire
