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

std::string MetricPrefix(const ServerOptions& options) {
  return options.vllm_metric_names ? "vllm:" : "quire:";
}

absl::StatusOr<std::unique_ptr<Guards>> Guards::Open(const ServerOptions& o,
                                                     const ServedModel& model) {
  RETURN_IF_ERROR(CheckSecurity(o));
  std::unique_ptr<Guards> self(new Guards);
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

void Guards::StartWatching() {
  if (access_->on()) {
    watcher_.Watch({access_->path()}, [this] { ReloadKeys(*access_); });
  }
  if (tls_ != nullptr) {
    const TlsOptions& o = tls_->options();
    std::vector<std::string> files = {o.certfile, o.keyfile};
    if (!o.ca_certs.empty()) files.push_back(o.ca_certs);
    watcher_.Watch(std::move(files), [this] { ReloadCertificate(*tls_); });
  }
  watcher_.Start();
}

}  // namespace quire
