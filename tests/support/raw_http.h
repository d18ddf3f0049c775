// tests/support/raw_http.h -- a client that sends bytes as they are and reads what comes, so that
// tests can say what no HTTP library would. Blocking; a read gives up after 20 s.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace quire::http_test {

struct RawAnswer {
  int status = 0;
  std::string head;       // status line and headers, lower case names as sent
  std::string body;       // chunks joined
  bool complete = false;  // the whole body came, by its length or its last chunk

  // The value of a header, or nullopt.
  std::optional<std::string> Header(const std::string& name) const {
    const std::string line = "\r\n" + name + ": ";
    const size_t begin = head.find(line);
    if (begin == std::string::npos) return std::nullopt;
    const size_t value = begin + line.size();
    return head.substr(value, head.find("\r\n", value) - value);
  }
};

class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
    const timeval timeout{20, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void Close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  // By RST instead of FIN.
  void Reset() {
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    Close();
  }
  void CloseForSending() { ::shutdown(fd_, SHUT_WR); }

  // False if the other side has closed.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Appends to unread(); false at the end, or after a time in which nothing came.
  bool Receive() {
    char buffer[65536];
    const ssize_t n = ::recv(fd_, buffer, sizeof(buffer), 0);
    if (n <= 0) return false;
    unread_.append(buffer, static_cast<size_t>(n));
    return true;
  }
  bool ReceiveUntil(std::string_view text) {
    while (unread_.find(text) == std::string::npos) {
      if (!Receive()) return false;
    }
    return true;
  }
  // True if the other side closes without another byte.
  bool IsClosed() { return unread_.empty() && !Receive(); }
  std::string& unread() { return unread_; }

  // The next answer. is_head: it has no body whatever its headers say.
  RawAnswer Read(bool is_head = false) {
    RawAnswer answer;
    if (!ReceiveUntil("\r\n\r\n")) return answer;
    const size_t end = unread_.find("\r\n\r\n") + 4;
    answer.head = unread_.substr(0, end);
    unread_.erase(0, end);
    answer.status = std::atoi(answer.head.c_str() + 9);
    if (is_head || answer.status == 204 || answer.status == 100) {
      answer.complete = true;
    } else if (const auto length = answer.Header("content-length")) {
      const size_t size = std::strtoul(length->c_str(), nullptr, 10);
      while (unread_.size() < size && Receive()) {
      }
      answer.complete = unread_.size() >= size;
      answer.body = unread_.substr(0, size);
      unread_.erase(0, size);
    } else if (answer.Header("transfer-encoding") == "chunked") {
      answer.complete = ReadChunks(answer.body);
    } else {
      while (Receive()) {
      }
      answer.complete = true;
      answer.body = std::exchange(unread_, {});
    }
    return answer;
  }

  // One chunk; nullopt if the connection ended within or before it.
  std::optional<std::string> ReadChunk() {
    if (!ReceiveUntil("\r\n")) return std::nullopt;
    const size_t size = std::strtoul(unread_.c_str(), nullptr, 16);
    const size_t begin = unread_.find("\r\n") + 2;
    while (unread_.size() < begin + size + 2) {
      if (!Receive()) return std::nullopt;
    }
    std::string chunk = unread_.substr(begin, size);
    unread_.erase(0, begin + size + 2);
    return chunk;
  }

 private:
  bool ReadChunks(std::string& body) {
    while (true) {
      const std::optional<std::string> chunk = ReadChunk();
      if (!chunk) return false;
      if (chunk->empty()) return true;
      body += *chunk;
    }
  }

  int fd_ = -1;
  std::string unread_;
};

inline std::string Post(std::string_view path, std::string_view body, std::string_view more = {}) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n" + std::string(more) +
         "content-length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

inline std::string Get(std::string_view path, std::string_view more = {}) {
  return "GET " + std::string(path) + " HTTP/1.1\r\nhost: h\r\n" + std::string(more) + "\r\n";
}

}  // namespace quire::http_test
