// server/http/connection.h -- one client's connection: requests in, answers out, one at a time.
//
//   kReading  bytes -> parser -> head checked (size, framing, authorization) -> body -> dispatch
//   kBusy     a handler owns the Exchange; the socket is still read, to notice that the client left
//             and to take in a little of what it sent ahead
//   kLingering  the last answer was sent: what the client still sends is thrown away until it
//             closes, so that the answer is not lost by a reset
//
// Strand of its socket, except what is marked. Timers bound every state: idle, head, body, a write
// that does not move.
#pragma once

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/byte_stream.h"
#include "server/http/exchange.h"
#include "server/http/http_server.h"
#include "server/http/router.h"

namespace quire {

// What connections share; outlives them.
struct ConnectionShared {
  HttpServer::Options options;
  Router router;
  std::function<void(std::function<void()>)> run_on_worker;
  std::atomic<int32_t> num_connections{0};
  std::atomic<int64_t> body_bytes{0};  // of requests that are being read or handled
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<ConnectionShared> shared, std::unique_ptr<ByteStream> stream);
  ~Connection();

  void Start();
  // Any thread.
  void CloseSoon();

 private:
  friend class ConnectionExchange;
  enum class State { kReading, kBusy, kLingering };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using Timer = boost::asio::steady_timer;

  void Read();
  void OnRead(const boost::system::error_code& error, size_t size);
  void Parse();
  bool ParseSome();  // true: more can be parsed now
  bool CheckHead();
  void AwaitBody();  // after both: its time begins, and who waits to be asked for it is asked
  bool TakeBodyBytes();
  void Dispatch();
  void Refuse(HttpReply reply, bool keep = false);

  void SendReply(const HttpReply& reply);
  void OpenStream();
  void SendEvents(std::string events);
  void EndStream();
  void Send(std::string bytes);
  void Pump();
  void OnWritten(const boost::system::error_code& error);
  void FinishAnswer();
  std::string Head(int status, std::string_view content_type, const HttpHeaders& headers,
                   std::optional<size_t> length) const;
  void Comment();

  void Expect(int64_t ms, std::function<void()> fire);
  void Gone();
  void ReleaseAnswer();
  void TellAnswered();

  const std::shared_ptr<ConnectionShared> shared_;
  const std::unique_ptr<ByteStream> stream_;
  Timer timer_;        // of the state; in a stream: of the next comment
  Timer write_timer_;  // of the write in flight
  uint64_t timer_turn_ = 0;

  State state_ = State::kReading;
  std::atomic<bool> closed_{false};  // written on the strand
  bool reading_ = false;
  std::vector<char> chunk_;
  std::string unread_;  // behind what the parser took
  std::optional<Parser> parser_;
  bool head_done_ = false;
  int64_t counted_body_bytes_ = 0;  // in shared_->body_bytes
  size_t lingered_ = 0;

  // The request being answered.
  uint64_t exchange_number_ = 0;
  HttpRequest request_;  // its head; the whole of it goes to the handler
  std::string id_;       // x-request-id
  const HttpRoute* route_ = nullptr;
  bool keep_alive_ = false;
  bool is_http10_ = false;
  bool is_head_ = false;
  std::string origin_;      // that may read the answer; empty: none
  bool streaming_ = false;  // announced
  bool stream_open_ = false;
  bool answer_ended_ = false;
  HttpHeaders stream_headers_;
  HttpAnswered answered_;    // status 0: none yet
  std::string load_format_;  // endpoint-load-metrics-format
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::function<void()> gone_;
  std::vector<std::shared_ptr<const void>> held_;

  std::vector<std::string> waiting_;
  std::vector<std::string> in_flight_;
  std::atomic<size_t> unsent_bytes_{0};
};

}  // namespace quire
