// server/grpc/tokenizer_archive.h -- the model's tokenizer files as a ZIP archive, for gateways
// that tokenize and render templates by themselves.
//
// Built at the first request, kept afterwards. Any thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "server/served_model.h"

namespace quire {

class TokenizerArchive {
 public:
  struct Archive {
    std::string bytes;
    std::string sha256;  // of bytes, in hex
  };

  explicit TokenizerArchive(const ServedModel& model) : model_(model) {}

  // ERRORS: kFailedPrecondition if the server knows of no files; those of reading them.
  absl::StatusOr<std::shared_ptr<const Archive>> Get() const;

 private:
  const ServedModel& model_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Archive> archive_;  // guarded by mutex_
};

}  // namespace quire
