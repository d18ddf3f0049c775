// server/guards.h -- what stands around the daemon's ports: who may call, TLS, metrics, and the
// watcher that reads keys and certificates again when their files have changed.
//
// Made before the ports are opened, kept until after they are closed. One thread makes and ends it;
// what it holds is for any thread.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "server/access/access_control.h"
#include "server/access/file_watcher.h"
#include "server/access/tls_files.h"
#include "server/metrics/metrics.h"
#include "server/options.h"
#include "server/served_model.h"

namespace quire {

class Guards {
 public:
  // ERRORS: those of CheckSecurity and ReadBuckets.
  static absl::StatusOr<std::unique_ptr<Guards>> Open(const ServerOptions& options,
                                                      const ServedModel& model);

  AccessControl& access() { return *access_; }
  TlsFiles* tls() { return tls_.get(); }  // null: plaintext
  Metrics& metrics() { return *metrics_; }

  // What can't be used when it has changed is told in the log, and the last good one stays.
  void StartWatching() { watcher_.Start(); }
  void StopWatching() { watcher_.Stop(); }

 private:
  Guards() = default;
  void WatchFiles(const ServerOptions& options);

  std::unique_ptr<AccessControl> access_;
  std::unique_ptr<TlsFiles> tls_;
  std::unique_ptr<Metrics> metrics_;
  FileWatcher watcher_;
};

// Of the names of metrics that vLLM has, too.
std::string MetricPrefix(const ServerOptions& options);

}  // namespace quire
