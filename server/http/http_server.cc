// server/http/http_server.cc -- see http_server.h.
#include "server/http/http_server.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread_name.h"
#include "server/http/connection.h"

namespace quire {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr int kIoThreads = 2;
constexpr size_t kWorkers = 3;
constexpr int kSendBuffer = 256 << 10;
// After an accept that failed: no descriptor is free, and trying at once would spin.
constexpr std::chrono::milliseconds kAcceptPause{50};

// Connections are descriptors; the soft limit is often 1024.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

template <typename Executor>
absl::Status Listen(const std::string& host, int32_t port, const Executor& executor,
                    tcp::acceptor& acceptor) {
  const std::string bare =
      host.size() > 1 && host.front() == '[' ? host.substr(1, host.size() - 2) : host;
  boost::system::error_code error;
  tcp::resolver resolver(executor);
  const auto found = resolver.resolve(bare, std::to_string(port), tcp::resolver::passive, error);
  if (error) {
    return InvalidArgument("http_host={} is no address of this machine: {}", host, error.message());
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return Error(
        absl::StatusCode::kUnavailable,
        "http_port={} on host={} can't be listened on: {}; choose another --http-port (0 = "
        "any, -1 = no HTTP)",
        port, host, error.message());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status HttpServer::CheckPort(const std::string& host, int32_t port) {
  asio::io_context io;
  tcp::acceptor acceptor(io);
  return Listen(host, port, io.get_executor(), acceptor);
}

class HttpServer::Impl : public std::enable_shared_from_this<HttpServer::Impl> {
 public:
  Impl(Options options, Router router)
      : work_(io_.get_executor()),
        workers_(kWorkers),
        strand_(asio::make_strand(io_)),
        acceptor_(strand_),
        pause_(strand_),
        shared_(std::make_shared<ConnectionShared>()) {
    shared_->options = std::move(options);
    shared_->router = std::move(router);
    shared_->run_on_worker = [this](std::function<void()> work) {
      asio::post(workers_, std::move(work));
    };
  }

  absl::Status Listen() {
    RETURN_IF_ERROR(
        quire::Listen(shared_->options.host, shared_->options.port, strand_, acceptor_));
    boost::system::error_code error;
    port_ = acceptor_.local_endpoint(error).port();
    return absl::OkStatus();
  }

  void Run() {
    RaiseDescriptorLimit();
    asio::post(strand_, [self = shared_from_this()] { self->Accept(); });
    for (size_t i = 0; i < kWorkers; ++i) {
      asio::post(workers_, [] { SetThreadName("http-worker"); });
    }
    for (int i = 0; i < kIoThreads; ++i)
      threads_.emplace_back([this] {
        SetThreadName("http-io");
        io_.run();
      });
  }

  void Shutdown() {
    if (std::exchange(shut_down_, true)) return;
    asio::post(strand_, [self = shared_from_this()] {
      self->CloseAcceptor();
      for (const auto& weak : self->connections_) {
        if (const auto connection = weak.lock()) connection->CloseSoon();
      }
    });
    workers_.join();  // what waits still runs; its connections are closed, so it is short
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
  }

  int32_t port() const { return port_; }
  int32_t num_connections() const { return shared_->num_connections.load(); }

 private:
  void CloseAcceptor() {
    closed_ = true;
    boost::system::error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
  }

  // Strand of the acceptor.
  void Accept() {
    if (closed_) return;
    acceptor_.async_accept(
        asio::make_strand(io_),
        [self = shared_from_this()](const boost::system::error_code& error, tcp::socket socket) {
          self->OnAccept(error, std::move(socket));
        });
  }

  void OnAccept(const boost::system::error_code& error, tcp::socket socket) {
    if (closed_) return;
    if (error) {
      spdlog::debug("http: accept failed: {}", error.message());
      pause_.expires_after(kAcceptPause);
      pause_.async_wait([self = shared_from_this()](const boost::system::error_code& cancelled) {
        if (!cancelled) self->Accept();
      });
      return;
    }
    if (num_connections() < shared_->options.max_connections) Open(std::move(socket));
    Accept();
  }

  void Open(tcp::socket socket) {
    boost::system::error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    // The kernel would take megabytes for a reader that has stopped, and hide it from us.
    socket.set_option(asio::socket_base::send_buffer_size(kSendBuffer), ignored);
    // Finds clients that vanished without closing.
    socket.set_option(asio::socket_base::keep_alive(true), ignored);
    std::unique_ptr<ByteStream> stream;
    if (shared_->options.hooks.tls != nullptr) {
      stream = MakeTlsStream(std::move(socket), shared_->options.hooks.tls());
    } else {
      stream = MakePlainStream(std::move(socket));
    }
    const auto executor = stream->socket().get_executor();
    auto connection = std::make_shared<Connection>(shared_, std::move(stream));
    Remember(connection);
    asio::post(executor, [connection] { connection->Start(); });
  }

  // Forgets those that have ended whenever their number has doubled.
  void Remember(const std::shared_ptr<Connection>& connection) {
    if (connections_.size() >= sweep_at_) {
      connections_.remove_if([](const auto& weak) { return weak.expired(); });
      sweep_at_ = std::max<size_t>(64, 2 * connections_.size());
    }
    connections_.push_back(connection);
  }

  asio::io_context io_{kIoThreads};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::thread_pool workers_;
  asio::strand<asio::io_context::executor_type> strand_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  std::shared_ptr<ConnectionShared> shared_;
  std::vector<std::thread> threads_;
  int32_t port_ = 0;
  bool shut_down_ = false;
  // Strand of the acceptor.
  bool closed_ = false;
  std::list<std::weak_ptr<Connection>> connections_;
  size_t sweep_at_ = 64;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options, Router router) {
  auto impl = std::make_shared<Impl>(std::move(options), std::move(router));
  RETURN_IF_ERROR(impl->Listen());
  impl->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() { Shutdown(); }

int32_t HttpServer::port() const { return impl_->port(); }
int32_t HttpServer::num_connections() const { return impl_->num_connections(); }
void HttpServer::Shutdown() { impl_->Shutdown(); }

}  // namespace quire
