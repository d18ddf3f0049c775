// server/admin/live_config.h -- what operators change while serving: from the call to the
// scheduler, all of it or nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/status.h"
#include "quire/v1/quire.pb.h"
#include "scheduler/scheduler.h"

namespace quire {

namespace pb = ::quire::v1;

struct LiveUpdate {
  SchedulerUpdate scheduler;
  std::optional<int32_t> num_blocks;  // of the main pool
};

// Any thread. Checks each field against the range of the option of its name.
// ERRORS: kInvalidArgument naming field, value and limit.
absl::StatusOr<LiveUpdate> ReadUpdate(const pb::UpdateConfigRequest& request);

// Engine thread, between two steps. If it fails, nothing has changed.
// ERRORS: those of Scheduler::Update and of set_num_blocks.
absl::Status ApplyUpdate(
    const LiveUpdate& update,
    const std::function<absl::Status(Scheduler&, int32_t num_blocks)>& set_num_blocks,
    Scheduler& scheduler);

// All of Config but the pools.
void ToProto(const SchedulerOptions& options, pb::Config& out);

}  // namespace quire
