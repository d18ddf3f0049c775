// server/http/byte_stream.h -- a client's connection as bytes, with or without TLS.
//
// One read and one write may be in flight at a time. All handlers run on the socket's executor,
// which is the connection's strand. Close() lets what is in flight end with an error.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/system/error_code.hpp>
#include <functional>
#include <memory>
#include <vector>

namespace boost::asio::ssl {
class context;
}

namespace quire {

class ByteStream {
 public:
  using Ready = std::function<void(boost::system::error_code)>;
  using Done = std::function<void(boost::system::error_code, size_t)>;

  virtual ~ByteStream() = default;
  virtual boost::asio::ip::tcp::socket& socket() = 0;
  // Before anything else. Without TLS it is ready at once.
  virtual void Handshake(Ready ready) = 0;
  virtual void ReadSome(boost::asio::mutable_buffer into, Done done) = 0;
  // All of it.
  virtual void Write(const std::vector<boost::asio::const_buffer>& from, Done done) = 0;

  void CloseForSending() {
    boost::system::error_code ignored;
    socket().shutdown(boost::asio::ip::tcp::socket::shutdown_send, ignored);
  }
  void Close() {
    boost::system::error_code ignored;
    socket().close(ignored);
  }
};

std::unique_ptr<ByteStream> MakePlainStream(boost::asio::ip::tcp::socket socket);
// context: kept alive by the stream.
std::unique_ptr<ByteStream> MakeTlsStream(boost::asio::ip::tcp::socket socket,
                                          std::shared_ptr<boost::asio::ssl::context> context);

}  // namespace quire
