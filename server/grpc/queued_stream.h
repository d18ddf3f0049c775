// server/grpc/queued_stream.h -- a call that answers with many messages, one write in flight.
//
// Life of a reactor. Created in the handler, on a gRPC thread. All its reactions only post to the
// edge thread, where all of its state lives; OnDone, which gRPC calls last, posts its deletion, and
// posts run in order. So a reactor is never touched after it is gone and needs no lock.
//
//   events from the edge -> queue -> StartWrite, one in flight -> OnWriteDone -> next ... -> Finish
#pragma once

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "server/edge/edge.h"
#include "server/grpc/call.h"

namespace quire {

// Reactor: grpc::ServerWriteReactor<Message> or a grpc::ServerBidiReactor that writes it.
template <typename Reactor, typename Message>
class QueuedStream : public Reactor {
 public:
  explicit QueuedStream(Edge& edge) : edge_(edge) { edge_.CallOpened(); }

  // gRPC threads.
  void OnWriteDone(bool ok) override {
    edge_.Post([this, ok] { WriteDone(ok); });
  }
  void OnCancel() override {
    edge_.Post([this] { GiveUp(); });
  }
  void OnDone() override { DeleteOnEdge(edge_, this); }

 protected:
  // Edge thread.
  void Enqueue(Message message) {
    if (gone_ || close_.has_value()) return;
    buffered_bytes_ += message.ByteSizeLong();
    queue_.push_back(std::move(message));
    Pump();
  }
  // What is queued is written first. The first call counts.
  void CloseWith(grpc::Status status) {
    if (!close_.has_value()) close_ = std::move(status);
    Pump();
  }
  // Drops what the reader didn't take.
  void DropQueue() {
    queue_.clear();
    buffered_bytes_ = 0;
  }
  // The last message that `holds` and that the reader has yet to get, to be added to; else null.
  template <typename Predicate>
  Message* LastQueued(Predicate&& holds) {
    const auto it = std::find_if(queue_.rbegin(), queue_.rend(), holds);
    return it == queue_.rend() ? nullptr : &*it;
  }
  // A queued message has grown.
  void AddQueuedBytes(size_t bytes) { buffered_bytes_ += bytes; }
  size_t queued_bytes() const { return buffered_bytes_; }
  bool gone() const { return gone_; }
  Edge& edge() { return edge_; }

 private:
  void Pump() {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      in_flight_ = std::move(queue_.front());
      queue_.pop_front();
      writing_ = true;
      this->StartWrite(&in_flight_);
    } else if (close_.has_value()) {
      finished_ = true;
      this->Finish(*close_);
    }
  }

  void WriteDone(bool ok) {
    writing_ = false;
    buffered_bytes_ -= std::min(buffered_bytes_, in_flight_.ByteSizeLong());
    if (!ok) return GiveUp();
    Pump();
  }

  // The client is gone: nothing more can be written, but gRPC still wants its Finish.
  void GiveUp() {
    gone_ = true;
    DropQueue();
    CloseWith(grpc::Status::CANCELLED);
  }

  Edge& edge_;
  std::deque<Message> queue_;
  Message in_flight_;          // alive until OnWriteDone
  size_t buffered_bytes_ = 0;  // queue_ and in_flight_
  bool writing_ = false;
  bool finished_ = false;
  bool gone_ = false;
  std::optional<grpc::Status> close_;  // set: finish once the queue is written
};

// One request, one stream: the reactor is the request's sink. What a message looks like is the
// deriving class's.
template <typename Message>
class GenerationStream : public QueuedStream<grpc::ServerWriteReactor<Message>, Message>,
                         public StreamSink {
 public:
  using Base = QueuedStream<grpc::ServerWriteReactor<Message>, Message>;
  using Base::Base;

  // In the handler, before the edge knows of it.
  absl::Status Named(const Generation& generation, Clock::time_point deadline) {
    deadline_ = deadline;
    return Begin(generation);
  }
  void Refuse(const absl::Status& status) {
    this->edge().Post([this, status] { OnClosed(status, false, {}); });
  }

  void OnCancel() override {
    this->edge().ClientGone(this, IsPast(deadline_));
    Base::OnCancel();
  }
  size_t buffered_bytes() const override { return this->queued_bytes(); }

 private:
  // What is to be known of the request before its first event; an error refuses it.
  virtual absl::Status Begin(const Generation& generation) = 0;

  Clock::time_point deadline_ = Clock::time_point::max();
};

}  // namespace quire
