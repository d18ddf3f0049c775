// server/metrics/daemon_metrics.h -- metrics of the process, of what is fixed since its start, and
// of who was turned away. Any thread.
#pragma once

#include <string>

#include "server/access/access_control.h"
#include "server/access/tls_files.h"
#include "server/admin/admin_service.h"
#include "server/edge/edge.h"
#include "server/metrics/families.h"

namespace quire {

// tls: null = plaintext.
void WriteDaemon(const ServerFacts& facts, const ServedModel& model, const Edge& edge,
                 const AccessControl& access, const TlsFiles* tls, const std::string& prefix,
                 Families& out);

}  // namespace quire
