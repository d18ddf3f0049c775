// server/admin/batch_reactor.h -- streams a list that was copied on the engine thread.
//
// Created in the handler; Send or Refuse, once, on any thread. From then on gRPC's threads turn the
// list into batches, one write in flight. Deletes itself when gRPC is done with it. Until Send or
// Refuse came, a cancelled call stays: the engine still knows it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <utility>

#include "server/admin/admin_convert.h"

namespace quire {

template <typename List, typename Batch>
class BatchReactor final : public grpc::ServerWriteReactor<Batch> {
 public:
  explicit BatchReactor(size_t max_bytes) : max_bytes_(max_bytes) {}

  void Send(List list) {
    list_ = std::move(list);
    WriteNext();
  }
  void Refuse(const grpc::Status& status) { this->Finish(status); }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      this->Finish(grpc::Status::CANCELLED);
    } else if (next_ == SizeOf(list_)) {
      this->Finish(grpc::Status::OK);
    } else {
      WriteNext();
    }
  }
  void OnDone() override { delete this; }

 private:
  // An empty list is one empty batch.
  void WriteNext() {
    batch_.Clear();
    next_ = FillBatch(list_, next_, max_bytes_, batch_);
    this->StartWrite(&batch_);
  }

  const size_t max_bytes_;
  List list_;
  size_t next_ = 0;
  Batch batch_;  // alive until OnWriteDone
};

}  // namespace quire
