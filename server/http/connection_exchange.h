// server/http/connection_exchange.h -- the Exchange of a Connection: posts to its strand.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/http/exchange.h"

namespace quire {

class Connection;

// Each belongs to one request, by number; what comes after its answer has no effect.
class ConnectionExchange final : public Exchange {
 public:
  ConnectionExchange(std::shared_ptr<Connection> connection, uint64_t number, HttpRequest request);
  // A handler that never answered: 500, for the client must not wait for ever.
  ~ConnectionExchange() override;

  const HttpRequest& request() const override { return request_; }
  void Reply(HttpReply reply) override;
  void AnnounceStream(HttpHeaders headers) override;
  void Write(std::string events) override;
  void End() override;
  void Abort() override;
  size_t unsent_bytes() const override;
  void WhenGone(std::function<void()> gone) override;
  void Hold(std::shared_ptr<const void> held) override;
  void Post(std::function<void()> work) override;

 private:
  // Runs on the strand, if the connection still has this request.
  template <typename Fn>
  void OnStrand(Fn&& fn);

  const std::shared_ptr<Connection> connection_;
  const uint64_t number_;
  const HttpRequest request_;
};

}  // namespace quire
