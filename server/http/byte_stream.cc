#include "server/http/byte_stream.h"

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <utility>

namespace quire {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(tcp::socket socket) : socket_(std::move(socket)) {}
  tcp::socket& socket() override { return socket_; }
  void Handshake(Ready ready) override { ready({}); }
  void ReadSome(asio::mutable_buffer into, Done done) override {
    socket_.async_read_some(into, std::move(done));
  }
  void Write(const std::vector<asio::const_buffer>& from, Done done) override {
    asio::async_write(socket_, from, std::move(done));
  }

 private:
  tcp::socket socket_;
};

class TlsStream final : public ByteStream {
 public:
  TlsStream(tcp::socket socket, std::shared_ptr<asio::ssl::context> context)
      : context_(std::move(context)), stream_(std::move(socket), *context_) {}
  tcp::socket& socket() override { return stream_.next_layer(); }
  void Handshake(Ready ready) override {
    stream_.async_handshake(asio::ssl::stream_base::server, std::move(ready));
  }
  void ReadSome(asio::mutable_buffer into, Done done) override {
    stream_.async_read_some(into, std::move(done));
  }
  void Write(const std::vector<asio::const_buffer>& from, Done done) override {
    asio::async_write(stream_, from, std::move(done));
  }

 private:
  const std::shared_ptr<asio::ssl::context> context_;
  asio::ssl::stream<tcp::socket> stream_;
};

}  // namespace

std::unique_ptr<ByteStream> MakePlainStream(tcp::socket socket) {
  return std::make_unique<PlainStream>(std::move(socket));
}

std::unique_ptr<ByteStream> MakeTlsStream(tcp::socket socket,
                                          std::shared_ptr<asio::ssl::context> context) {
  return std::make_unique<TlsStream>(std::move(socket), std::move(context));
}

}  // namespace quire
