// server/access/tls_files.h -- the server's certificate, its key and the CAs of clients, as files
// that may change while serving.
//
// gRPC and HTTP take what current() is for each new connection; connections that stand keep theirs.
// A pair that doesn't match, or is half written, is refused as a whole and the last good one stays.
// Any thread. TLS below 1.2 is refused by both front ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"

namespace quire {

enum class ClientCertificates : uint8_t { kNone, kOptional, kRequired };

struct TlsOptions {
  std::string certfile;  // PEM: the server's certificate, then the chain
  std::string keyfile;   // PEM, without a passphrase
  std::string ca_certs;  // PEM; empty: no client is asked for a certificate
  ClientCertificates client_certificates = ClientCertificates::kNone;
};

// Immutable; checked: the key belongs to the certificate.
struct TlsMaterial {
  std::string certificate_pem;
  std::string key_pem;
  std::string ca_pem;
  std::string subject;      // of the certificate, for the log
  int64_t not_after_s = 0;  // its end, since the epoch
  uint64_t version = 0;     // grows by one with each change
};

class TlsFiles {
 public:
  // ERRORS: kInvalidArgument, kNotFound, naming the option and the file.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Open(TlsOptions options);

  const TlsOptions& options() const { return options_; }
  std::shared_ptr<const TlsMaterial> current() const;

  // Reads them again. ERRORS: as Open; nothing changes then.
  absl::Status Reload();
  uint64_t reload_errors() const { return reload_errors_; }

 private:
  explicit TlsFiles(TlsOptions options) : options_(std::move(options)) {}

  const TlsOptions options_;
  mutable std::mutex mutex_;
  std::shared_ptr<const TlsMaterial> current_;  // guarded by mutex_
  std::atomic<uint64_t> reload_errors_{0};
};

}  // namespace quire
