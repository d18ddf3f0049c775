// A limit on the gRPC port's connections: those within it are served, one more is closed at once,
// and one that has ended makes room, however it ended.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "tests/support/server_rig.h"

namespace quire::server_test {
namespace {

using grpc::StatusCode;

RigOptions Limited(int32_t connections) {
  RigOptions options;
  options.server.grpc_max_connections = connections;
  return options;
}

grpc::Status CallOnce(const std::shared_ptr<grpc::Channel>& channel) {
  const auto stub = pb::Generation::NewStub(channel);
  grpc::ClientContext context;
  pb::TokenizeRequest request;
  request.set_text("some text");
  pb::TokenizeResponse response;
  grpc::Status status = stub->Tokenize(&context, request, &response);
  EXPECT_EQ(response.token_ids_size() > 0, status.ok());
  return status;
}

// A plain socket; -1 if the port doesn't take it.
int Open(int32_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  ::close(fd);
  return -1;
}

// Whether the server speaks first, as HTTP/2 servers do with their settings; false: it has closed.
bool IsServed(int fd) {
  char byte = 0;
  return ::recv(fd, &byte, 1, MSG_PEEK) == 1;
}

TEST(ConnectionLimit, OneMoreIsClosedAndAnEndMakesRoom) {
  Rig rig(Limited(3));
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < 3; ++i) {
    channels.push_back(rig.Connect());
    EXPECT_TRUE(CallOnce(channels.back()).ok());
  }
  EXPECT_EQ(CallOnce(rig.Connect()).error_code(), StatusCode::UNAVAILABLE);
  // Those that stand don't notice.
  for (const auto& channel : channels) EXPECT_TRUE(CallOnce(channel).ok());
  channels.pop_back();
  EXPECT_TRUE(rig.Eventually([&] { return CallOnce(rig.Connect()).ok(); }));
}

TEST(ConnectionLimit, HoweverAConnectionEndsItCountsNoMore) {
  Rig rig(Limited(2));
  const int32_t port = rig.daemon().port();
  for (int round = 0; round < 200; ++round) {
    // Served once the one before is gone, within the listener's next turn.
    int fd = -1;
    ASSERT_TRUE(rig.Eventually([&] {
      if (fd >= 0) ::close(fd);
      fd = Open(port);
      return fd >= 0 && IsServed(fd);
    })) << round;
    if (round % 4 == 0) {  // aborted: a reset instead of an end
      const linger abort{.l_onoff = 1, .l_linger = 0};
      ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &abort, sizeof(abort));
    } else if (round % 4 == 1) {  // what the server will close itself
      (void)!::send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
      char rest[4096];
      while (::recv(fd, rest, sizeof(rest), 0) > 0) {
      }
    } else if (round % 4 == 2) {
      ::shutdown(fd, SHUT_WR);
    }
    ::close(fd);
  }
  // Both places are free.
  int first = -1, second = -1;
  EXPECT_TRUE(rig.Eventually([&] {
    for (const int fd : {first, second}) {
      if (fd >= 0) ::close(fd);
    }
    first = Open(port);
    second = Open(port);
    return first >= 0 && second >= 0 && IsServed(first) && IsServed(second);
  }));
  const int third = Open(port);
  EXPECT_TRUE(third < 0 || !IsServed(third));
  for (const int fd : {first, second, third}) ::close(fd);
}

TEST(ConnectionLimit, StreamsEndBeforeTheServerDoes) {
  Rig rig(Limited(2));
  rig.executor.Pause(milliseconds(1));
  Call call(rig.stub(), Rig::IdsRequest({1, 2}, 200));
  ASSERT_TRUE(call.Read());
  const int32_t port = rig.daemon().port();
  std::thread client([&] { EXPECT_TRUE(call.Finish().ok()); });
  rig.daemon().Drain(std::chrono::seconds(60));
  EXPECT_TRUE(rig.daemon().Wait().ok());
  rig.daemon().Stop();
  client.join();
  EXPECT_EQ(call.answer.token_ids[0].size(), 200u);
  EXPECT_LT(Open(port), 0);
}

}  // namespace
}  // namespace quire::server_test
