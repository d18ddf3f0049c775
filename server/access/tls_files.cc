// server/access/tls_files.cc -- see tls_files.h.
#include "server/access/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <time.h>

#include <utility>

#include "server/access/read_file.h"

namespace quire {
namespace {

constexpr size_t kMaxPemBytes = 1 << 20;

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* p) const {
    Free(p);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;

Bio Open(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// Nobody is there to ask.
int NoPassphrase(char*, int, int, void*) { return 0; }

// All certificates of a file must be readable; the first one is returned.
absl::StatusOr<Certificate> ReadCertificates(const char* option, const std::string& path,
                                             const std::string& pem) {
  const Bio bio = Open(pem);
  Certificate first(PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr));
  if (first == nullptr) {
    ERR_clear_error();
    return InvalidArgument("{}={} holds no readable PEM certificate", option, path);
  }
  for (;;) {
    const Certificate next(PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr));
    if (next != nullptr) continue;
    const bool is_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
    ERR_clear_error();
    if (is_end) return first;
    return InvalidArgument("{}={} holds a PEM certificate that can't be read", option, path);
  }
}

absl::StatusOr<TlsMaterial> Read(const TlsOptions& o) {
  TlsMaterial m;
  ASSIGN_OR_RETURN(m.certificate_pem, ReadSmallFile(o.certfile, kMaxPemBytes));
  ASSIGN_OR_RETURN(m.key_pem, ReadSmallFile(o.keyfile, kMaxPemBytes));
  ASSIGN_OR_RETURN(const Certificate certificate,
                   ReadCertificates("ssl_certfile", o.certfile, m.certificate_pem));
  const Key key(PEM_read_bio_PrivateKey(Open(m.key_pem).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) {
    return InvalidArgument("ssl_keyfile={} holds no readable PEM key without a passphrase",
                           o.keyfile);
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    ERR_clear_error();
    return InvalidArgument("ssl_keyfile={} is not the key of ssl_certfile={}", o.keyfile,
                           o.certfile);
  }
  if (!o.ca_certs.empty()) {
    ASSIGN_OR_RETURN(m.ca_pem, ReadSmallFile(o.ca_certs, kMaxPemBytes));
    RETURN_IF_ERROR(ReadCertificates("ssl_ca_certs", o.ca_certs, m.ca_pem).status());
  }
  char name[256] = {};
  X509_NAME_oneline(X509_get_subject_name(certificate.get()), name, sizeof(name));
  m.subject = name;
  tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) == 1) {
    m.not_after_s = ::timegm(&end);
  }
  return m;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Open(TlsOptions options) {
  std::unique_ptr<TlsFiles> self(new TlsFiles(std::move(options)));
  RETURN_IF_ERROR(self->Reload());
  return self;
}

std::shared_ptr<const TlsMaterial> TlsFiles::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

absl::Status TlsFiles::Reload() {
  absl::StatusOr<TlsMaterial> next = Read(options_);
  if (!next.ok()) {
    ++reload_errors_;
    return next.status();
  }
  const std::lock_guard lock(mutex_);
  next->version = current_ == nullptr ? 1 : current_->version + 1;
  current_ = std::make_shared<const TlsMaterial>(*std::move(next));
  return absl::OkStatus();
}

}  // namespace quire
