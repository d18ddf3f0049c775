// server/http/connection_answer.cc -- answers to bytes; see connection.h.
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/status.hpp>
#include <ctime>
#include <utility>

#include "server/http/connection.h"
#include "server/http/connection_exchange.h"
#include "server/openai/errors.h"

namespace quire {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

constexpr int64_t kLingerMs = 2'000;

std::string Date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[64];
  const size_t size = std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return {text, size};
}

}  // namespace

std::string Connection::Head(int status, std::string_view content_type, const HttpHeaders& headers,
                             std::optional<size_t> length) const {
  const http::status known = http::int_to_status(static_cast<unsigned>(status));
  const auto reason = http::obsolete_reason(known);
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\ndate: {}\r\nserver: quire\r\n", status,
                  known == http::status::unknown ? std::string_view("Error")
                                                 : std::string_view(reason.data(), reason.size()),
                  Date());
  if (!content_type.empty()) head += fmt::format("content-type: {}\r\n", content_type);
  if (length.has_value()) {
    if (status != 204) head += fmt::format("content-length: {}\r\n", *length);
  } else {
    head += "cache-control: no-cache\r\n";
    if (!is_http10_) head += "transfer-encoding: chunked\r\n";
  }
  head += fmt::format("x-request-id: {}\r\n", id_);
  if (!origin_.empty()) {
    head += fmt::format(
        "access-control-allow-origin: {}\r\nvary: origin\r\n"
        "access-control-expose-headers: x-request-id, retry-after, x-should-retry\r\n",
        origin_);
  }
  if (!load_format_.empty() && shared_->options.hooks.load != nullptr) {
    const std::string load = shared_->options.hooks.load(load_format_);
    if (!load.empty()) head += fmt::format("endpoint-load-metrics: {}\r\n", load);
  }
  for (const auto& [name, value] : headers) head += fmt::format("{}: {}\r\n", name, value);
  head += keep_alive_ ? (is_http10_ ? "connection: keep-alive\r\n" : "") : "connection: close\r\n";
  head += "\r\n";
  return head;
}

void Connection::SendReply(const HttpReply& reply) {
  if (stream_open_) {  // by a comment: too late for a status
    SendEvents(fmt::format("data: {}\n\ndata: [DONE]\n\n", reply.body));
    return EndStream();
  }
  std::string bytes = Head(reply.status, reply.content_type, reply.headers, reply.body.size());
  if (!is_head_) bytes += reply.body;
  answered_.status = reply.status;
  answer_ended_ = true;
  Send(std::move(bytes));
}

void Connection::OpenStream() {
  if (std::exchange(stream_open_, true)) return;
  if (is_http10_) keep_alive_ = false;  // its end is the connection's
  answered_.status = 200;
  Send(Head(200, "text/event-stream; charset=utf-8", stream_headers_, std::nullopt));
}

void Connection::SendEvents(std::string events) {
  if (answer_ended_) return;
  OpenStream();
  if (events.empty()) return;
  if (!is_http10_) events = fmt::format("{:x}\r\n{}\r\n", events.size(), events);
  Send(std::move(events));
  if (shared_->options.sse_keepalive_ms > 0) {
    Expect(shared_->options.sse_keepalive_ms, [this] { Comment(); });
  }
}

void Connection::Comment() { SendEvents(": keep-alive\n\n"); }

void Connection::EndStream() {
  if (answer_ended_) return;
  OpenStream();
  timer_.cancel();
  ++timer_turn_;
  answer_ended_ = true;
  if (is_http10_) {
    Pump();
  } else {
    Send("0\r\n\r\n");
  }
}

void Connection::Send(std::string bytes) {
  if (closed_) return;
  unsent_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
  waiting_.push_back(std::move(bytes));
  Pump();
}

// What came while a write was in flight goes out together; a client that keeps up gets each step's
// events by themselves.
void Connection::Pump() {
  if (closed_ || !in_flight_.empty()) return;
  if (waiting_.empty()) {
    if (answer_ended_) FinishAnswer();
    return;
  }
  in_flight_.swap(waiting_);
  std::vector<asio::const_buffer> buffers;
  buffers.reserve(in_flight_.size());
  for (const std::string& bytes : in_flight_) buffers.push_back(asio::buffer(bytes));
  write_timer_.expires_after(std::chrono::milliseconds(shared_->options.write_timeout_ms));
  write_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (!error) self->Gone();
  });
  stream_->Write(buffers, [self = shared_from_this()](boost::system::error_code error, size_t) {
    self->OnWritten(error);
  });
}

void Connection::OnWritten(const boost::system::error_code& error) {
  size_t bytes = 0;
  for (const std::string& part : in_flight_) bytes += part.size();
  unsent_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  in_flight_.clear();
  if (closed_) return;
  write_timer_.cancel();
  if (error) return Gone();
  Pump();
}

void Connection::FinishAnswer() {
  TellAnswered();
  answer_ended_ = false;
  streaming_ = false;
  stream_open_ = false;
  stream_headers_.clear();
  route_ = nullptr;
  ++exchange_number_;
  ReleaseAnswer();
  if (!keep_alive_) {
    state_ = State::kLingering;
    unread_.clear();
    stream_->CloseForSending();
    Expect(kLingerMs, [this] { Gone(); });
    return Read();
  }
  state_ = State::kReading;
  Expect(shared_->options.keepalive_ms, [this] { Gone(); });
  Parse();
  Read();
}

ConnectionExchange::ConnectionExchange(std::shared_ptr<Connection> connection, uint64_t number,
                                       HttpRequest request)
    : connection_(std::move(connection)), number_(number), request_(std::move(request)) {}

ConnectionExchange::~ConnectionExchange() {
  if (connection_->closed_) return;
  asio::post(connection_->stream_->socket().get_executor(),
             [connection = connection_, number = number_] {
               if (connection->closed_ || connection->exchange_number_ != number) return;
               if (connection->answer_ended_) return;
               connection->SendReply(ErrorReply(500, "the request was dropped"));
             });
}

template <typename Fn>
void ConnectionExchange::OnStrand(Fn&& fn) {
  asio::dispatch(connection_->stream_->socket().get_executor(),
                 [connection = connection_, number = number_, fn = std::forward<Fn>(fn)]() mutable {
                   if (connection->closed_ || connection->exchange_number_ != number) return;
                   if (!connection->answer_ended_) fn(*connection);
                 });
}

void ConnectionExchange::Reply(HttpReply reply) {
  OnStrand([reply = std::move(reply)](Connection& c) { c.SendReply(reply); });
}

void ConnectionExchange::AnnounceStream(HttpHeaders headers) {
  OnStrand([headers = std::move(headers)](Connection& c) mutable {
    c.stream_headers_ = std::move(headers);
    c.streaming_ = true;
    if (c.shared_->options.sse_keepalive_ms > 0) {
      c.Expect(c.shared_->options.sse_keepalive_ms, [&c] { c.Comment(); });
    }
  });
}

void ConnectionExchange::Write(std::string events) {
  OnStrand(
      [events = std::move(events)](Connection& c) mutable { c.SendEvents(std::move(events)); });
}

void ConnectionExchange::End() {
  OnStrand([](Connection& c) { c.EndStream(); });
}

void ConnectionExchange::Abort() {
  OnStrand([](Connection& c) { c.Gone(); });
}

size_t ConnectionExchange::unsent_bytes() const {
  return connection_->unsent_bytes_.load(std::memory_order_relaxed);
}

void ConnectionExchange::WhenGone(std::function<void()> gone) {
  asio::dispatch(connection_->stream_->socket().get_executor(),
                 [connection = connection_, number = number_, gone = std::move(gone)]() mutable {
                   if (connection->closed_ || connection->exchange_number_ != number) return gone();
                   connection->gone_ = std::move(gone);
                 });
}

void ConnectionExchange::Hold(std::shared_ptr<const void> held) {
  OnStrand([held = std::move(held)](Connection& c) { c.held_.push_back(held); });
}

void ConnectionExchange::Post(std::function<void()> work) {
  asio::post(connection_->stream_->socket().get_executor(), std::move(work));
}

}  // namespace quire
