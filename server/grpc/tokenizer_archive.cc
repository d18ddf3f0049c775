// server/grpc/tokenizer_archive.cc -- see tokenizer_archive.h.
#include "server/grpc/tokenizer_archive.h"

#include <openssl/sha.h>

#include <array>
#include <utility>

#include "server/grpc/zip.h"

namespace quire {
namespace {

std::string Sha256Hex(const std::string& bytes) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  ::SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TokenizerArchive::Archive>> TokenizerArchive::Get() const {
  const std::lock_guard lock(mutex_);
  if (archive_ == nullptr) {
    if (model_.tokenizer_files == nullptr) {
      return absl::FailedPreconditionError("the server knows of no tokenizer files");
    }
    ASSIGN_OR_RETURN(const auto files, model_.tokenizer_files());
    ASSIGN_OR_RETURN(std::string bytes, MakeZip(files));
    std::string sha256 = Sha256Hex(bytes);
    archive_ = std::make_shared<const Archive>(Archive{std::move(bytes), std::move(sha256)});
  }
  return archive_;
}

}  // namespace quire
