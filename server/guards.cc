// server/guards.cc -- see guards.h.
#include "server/guards.h"

#include <spdlog/spdlog.h>
#include <time.h>

#include <utility>
#include <vector>

#include "server/access/security_options.h"

namespace quire {
namespace {

void TellCertificate(const char* what, const TlsMaterial& now) {
  const int64_t left_s = now.not_after_s - ::time(nullptr);
  spdlog::info("{} {}, valid for {} days", what, now.subject, left_s / 86400);
  if (left_s <= 0) spdlog::warn("certificate {} has expired", now.subject);
}

void ReloadKeys(AccessControl& access) {
  const absl::Status status = access.Reload();
  if (status.ok()) {
    spdlog::info("keys read again from {}", access.path());
  } else {
    spdlog::error("keys stay as they were: {}", Message(status));
  }
}

void ReloadCertificate(TlsFiles& tls) {
  const absl::Status status = tls.Reload();
  if (status.ok()) {
    TellCertificate("new certificate", *tls.current());
  } else {
    spdlog::error("the certificate stays as it was: {}", Message(status));
  }
}

}  // namespace

void Guards::WatchFiles(const ServerOptions& o) {
  if (!o.api_key_file.empty()) {
    watcher_.Watch({o.api_key_file}, [this] { ReloadKeys(*access_); });
  }
  if (!o.ssl_certfile.empty()) {
    std::vector<std::string> files = {o.ssl_certfile, o.ssl_keyfile};
    if (!o.ssl_ca_certs.empty()) files.push_back(o.ssl_ca_certs);
    watcher_.Watch(std::move(files), [this] { ReloadCertificate(*tls_); });
  }
}

std::string MetricPrefix(const ServerOptions& options) {
  return options.vllm_metric_names ? "vllm:" : "quire:";
}

absl::StatusOr<std::unique_ptr<Guards>> Guards::Open(const ServerOptions& o,
                                                     const ServedModel& model) {
  RETURN_IF_ERROR(CheckSecurity(o));
  std::unique_ptr<Guards> self(new Guards);
  self->WatchFiles(o);  // before they are read, so that no change is missed
  ASSIGN_OR_RETURN(self->access_, OpenAccess(o));
  ASSIGN_OR_RETURN(self->tls_, OpenTls(o));
  ASSIGN_OR_RETURN(self->metrics_, Metrics::Make({.model_name = model.name,
                                                  .prefix = MetricPrefix(o),
                                                  .legacy_names = o.legacy_metric_names,
                                                  .histogram_buckets = o.histogram_buckets,
                                                  .max_model_len = model.max_model_len}));
  if (self->tls_ != nullptr) TellCertificate("certificate", *self->tls_->current());
  return self;
}

}  // namespace quire
