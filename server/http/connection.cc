// server/http/connection.cc -- bytes to requests; see connection.h. Answers: connection_answer.cc.
#include "server/http/connection.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>
#include <chrono>
#include <utility>

#include "server/http/connection_exchange.h"
#include "server/http/cors.h"
#include "server/http/request_id.h"
#include "server/openai/errors.h"

namespace quire {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr size_t kIdleChunk = 2 << 10;
constexpr size_t kBodyChunk = 64 << 10;
constexpr uint32_t kMaxHeadBytes = 32 << 10;
// Of requests that were sent before the answer to the present one; the rest stays in the kernel.
constexpr size_t kMaxSentAhead = 64 << 10;
constexpr size_t kMaxLingered = 1 << 20;

std::string Lower(beast::string_view text) {
  std::string lower(text.data(), text.size());
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string Text(beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

Connection::Connection(std::shared_ptr<ConnectionShared> shared, std::unique_ptr<ByteStream> stream)
    : shared_(std::move(shared)),
      stream_(std::move(stream)),
      timer_(stream_->socket().get_executor()),
      write_timer_(stream_->socket().get_executor()) {
  shared_->num_connections.fetch_add(1);
}

Connection::~Connection() {
  shared_->body_bytes.fetch_sub(counted_body_bytes_);
  shared_->num_connections.fetch_sub(1);
}

void Connection::Start() {
  Expect(shared_->options.request_timeout_ms, [this] { Gone(); });
  stream_->Handshake([self = shared_from_this()](boost::system::error_code error) {
    if (error) return self->Gone();
    self->Expect(self->shared_->options.keepalive_ms, [c = self.get()] { c->Gone(); });
    self->Read();
  });
}

void Connection::CloseSoon() {
  asio::post(stream_->socket().get_executor(), [self = shared_from_this()] { self->Gone(); });
}

void Connection::Read() {
  if (reading_ || closed_) return;
  if (state_ == State::kBusy && unread_.size() >= kMaxSentAhead) return;
  chunk_.resize(state_ == State::kReading && head_done_ ? kBodyChunk : kIdleChunk);
  reading_ = true;
  stream_->ReadSome(asio::buffer(chunk_),
                    [self = shared_from_this()](boost::system::error_code error, size_t size) {
                      self->reading_ = false;
                      self->OnRead(error, size);
                    });
}

// A client that closes its sending side has left: no HTTP client does that to wait for an answer.
void Connection::OnRead(const boost::system::error_code& error, size_t size) {
  if (closed_) return;
  if (error) return Gone();
  if (state_ == State::kLingering) {
    lingered_ += size;
    if (lingered_ > kMaxLingered) return Gone();
    return Read();
  }
  unread_.append(chunk_.data(), size);
  if (state_ == State::kReading) Parse();
  Read();
}

void Connection::Parse() {
  while (state_ == State::kReading && !closed_ && !unread_.empty() && ParseSome()) {
  }
}

bool Connection::ParseSome() {
  if (!parser_) {
    parser_.emplace();
    parser_->header_limit(kMaxHeadBytes);
    parser_->body_limit(shared_->options.max_body_bytes);
    head_done_ = false;
    origin_.clear();
    id_.clear();
    is_http10_ = false;
    is_head_ = false;
    Expect(shared_->options.request_timeout_ms,
           [this] { Refuse(ErrorReply(408, "the request did not arrive in time")); });
  }
  beast::error_code error;
  const size_t used = parser_->put(asio::buffer(unread_), error);
  unread_.erase(0, used);
  if (error == http::error::need_more) error = {};
  if (error == http::error::body_limit) {
    Refuse(ErrorReply(413, fmt::format("the body is larger than {} bytes (max_message_bytes)",
                                       shared_->options.max_body_bytes)));
    return false;
  }
  if (error == http::error::header_limit) {
    Refuse(ErrorReply(
        431, fmt::format("the head of the request is larger than {} bytes", kMaxHeadBytes)));
    return false;
  }
  if (error) {
    Refuse(ErrorReply(400, fmt::format("malformed HTTP request: {}", error.message())));
    return false;
  }
  if (parser_->is_header_done() && !head_done_) {
    head_done_ = true;
    if (!CheckHead() || !TakeBodyBytes()) return false;
    if (!parser_->is_done()) AwaitBody();
  }
  if (head_done_ && !TakeBodyBytes()) return false;
  if (parser_->is_done()) {
    Dispatch();
    return false;
  }
  return used > 0;
}

// Whatever can be refused is refused before the body is read.
bool Connection::CheckHead() {
  const auto& head = parser_->get();
  request_ = {};
  request_.method = Text(head.method_string());
  const std::string target = Text(head.target());
  request_.path = target.substr(0, target.find('?'));
  if (request_.path.size() < target.size())
    request_.query = target.substr(request_.path.size() + 1);
  for (const auto& field : head) {
    request_.headers.emplace_back(Lower(field.name_string()), Text(field.value()));
  }
  begin_ = std::chrono::steady_clock::now();
  answered_ = {};
  load_format_ = request_.Header("endpoint-load-metrics-format");
  is_http10_ = head.version() < 11;
  is_head_ = request_.method == "HEAD";
  keep_alive_ = head.keep_alive();
  const std::string_view client_id = request_.Header("x-request-id");
  request_.has_client_id = IsRequestId(client_id);
  request_.id = request_.has_client_id ? std::string(client_id) : NewRequestId();
  id_ = request_.id;
  origin_ = AllowedOrigin(shared_->options.allowed_origins, request_.Header("origin"));

  if (head.version() != 11 && head.version() != 10) {
    Refuse(ErrorReply(505, "only HTTP/1.1 and HTTP/1.0 are spoken here"));
    return false;
  }
  if (!is_http10_ && request_.Header("host").empty() &&
      head.find(http::field::host) == head.end()) {
    Refuse(ErrorReply(400, "the header host is missing"));
    return false;
  }
  // "5, 5" is legal to take and safer to refuse.
  if (request_.Header("content-length").find_first_not_of("0123456789") != std::string_view::npos) {
    Refuse(ErrorReply(400, "content-length is not a number"));
    return false;
  }
  const std::string encoding = Lower(head[http::field::transfer_encoding]);
  if (!encoding.empty() && encoding != "chunked") {
    Refuse(ErrorReply(501, "transfer-encoding is none but chunked"));
    return false;
  }
  const Router::Match match = shared_->router.Find(request_.method, request_.path);
  route_ = match.route;
  if (route_ == nullptr) {
    const bool is_preflight = request_.method == "OPTIONS" && !match.allowed.empty();
    if (is_preflight && !origin_.empty()) {
      Refuse(Preflight(match.allowed, request_.Header("access-control-request-headers")), true);
    } else if (match.allowed.empty()) {
      Refuse(ErrorReply(404, fmt::format("path={} is unknown here", request_.path)), true);
    } else {
      HttpReply reply = ErrorReply(405, fmt::format("method={} is not for {}; use {}",
                                                    request_.method, request_.path, match.allowed));
      reply.headers.emplace_back("allow", match.allowed);
      Refuse(std::move(reply), true);
    }
    return false;
  }
  answered_.method = request_.method;
  answered_.handler = route_->path;
  if (!route_->is_open && shared_->options.hooks.authorize != nullptr) {
    absl::StatusOr<HttpCaller> caller =
        shared_->options.hooks.authorize({.method = request_.method,
                                          .path = request_.path,
                                          .authorization = request_.Header("authorization"),
                                          .api_key = request_.Header("x-api-key")});
    if (!caller.ok()) {
      Refuse(ErrorReply(caller.status()), true);
      return false;
    }
    request_.caller = *std::move(caller);
  }
  if (request_.method == "POST") {
    const std::string type = Lower(head[http::field::content_type]);
    const std::string media = type.substr(0, type.find_first_of("; "));
    if (!media.empty() && media != "application/json") {
      Refuse(ErrorReply(415, fmt::format("content-type={} is not application/json", media)), true);
      return false;
    }
    const std::string coding = Lower(head[http::field::content_encoding]);
    if (!coding.empty() && coding != "identity") {
      Refuse(
          ErrorReply(415, fmt::format("content-encoding={} is not taken; send plain JSON", coding)),
          true);
      return false;
    }
  }
  return true;
}

void Connection::AwaitBody() {
  Expect(shared_->options.request_timeout_ms,
         [this] { Refuse(ErrorReply(408, "the body did not arrive in time")); });
  if (Lower(parser_->get()[http::field::expect]) == "100-continue") {
    Send("HTTP/1.1 100 Continue\r\n\r\n");
  }
}

// Bounds what all bodies together take: what is announced counts at once.
bool Connection::TakeBodyBytes() {
  int64_t bytes = static_cast<int64_t>(parser_->get().body().size());
  if (const auto length = parser_->content_length()) {
    bytes = std::max(bytes, static_cast<int64_t>(*length));
  }
  if (bytes <= counted_body_bytes_) return true;
  const int64_t all =
      shared_->body_bytes.fetch_add(bytes - counted_body_bytes_) + bytes - counted_body_bytes_;
  counted_body_bytes_ = bytes;
  // One body alone always fits.
  if (all <= static_cast<int64_t>(shared_->options.max_all_bodies_bytes) || all <= bytes) {
    return true;
  }
  Refuse(ErrorReply(503, "too many large requests arrive at the same time; try again later"));
  return false;
}

void Connection::Dispatch() {
  timer_.cancel();
  ++timer_turn_;
  state_ = State::kBusy;
  request_.body = std::move(parser_->get().body());
  parser_.reset();
  head_done_ = false;
  const HttpRoute* const route = route_;
  auto exchange = std::make_shared<ConnectionExchange>(shared_from_this(), ++exchange_number_,
                                                       std::move(request_));
  request_ = {};
  if (route->is_open) return route->handler(std::move(exchange));
  shared_->run_on_worker([self = shared_from_this(), route, exchange = std::move(exchange)] {
    if (!self->closed_) route->handler(exchange);
  });
}

// keep: the framing is known to be right, so that the connection may go on if there is no body.
void Connection::Refuse(HttpReply reply, bool keep) {
  if (closed_ || state_ != State::kReading) return;
  if (id_.empty()) id_ = NewRequestId();
  timer_.cancel();
  ++timer_turn_;
  state_ = State::kBusy;
  const bool whole = parser_ && parser_->is_done();
  if (!keep || !whole) {
    keep_alive_ = false;
  }
  parser_.reset();
  head_done_ = false;
  request_ = {};
  ++exchange_number_;
  SendReply(reply);
}

void Connection::Expect(int64_t ms, std::function<void()> fire) {
  timer_.expires_after(std::chrono::milliseconds(ms));
  timer_.async_wait([self = shared_from_this(), turn = ++timer_turn_,
                     fire = std::move(fire)](const boost::system::error_code& error) {
    if (!error && turn == self->timer_turn_ && !self->closed_) fire();
  });
}

void Connection::ReleaseAnswer() {
  gone_ = nullptr;
  held_.clear();
  shared_->body_bytes.fetch_sub(std::exchange(counted_body_bytes_, 0));
}

void Connection::Gone() {
  if (closed_.exchange(true)) return;
  TellAnswered();
  stream_->Close();
  timer_.cancel();
  write_timer_.cancel();
  waiting_.clear();
  const std::function<void()> gone = std::exchange(gone_, nullptr);
  if (gone != nullptr) gone();
  ReleaseAnswer();
}

void Connection::TellAnswered() {
  if (answered_.status != 0 && shared_->options.hooks.answered != nullptr) {
    answered_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    shared_->options.hooks.answered(answered_);
  }
  answered_ = {};
  load_format_.clear();
  begin_ = std::chrono::steady_clock::now();  // of one whose head can't be read
}

}  // namespace quire
