#include "server/admin/live_config.h"

#include <google/protobuf/descriptor.h>

#include <string>

#include "server/options.h"

namespace quire {
namespace {

using google::protobuf::FieldDescriptor;

double NumberIn(const pb::UpdateConfigRequest& request, const FieldDescriptor& field) {
  const google::protobuf::Reflection& values = *request.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return values.GetInt32(request, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return values.GetUInt32(request, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return values.GetDouble(request, &field);
    default:
      CHECK(false, "field {} of UpdateConfigRequest is no number", field.name());
      return 0;
  }
}

// Written so that NaN fails.
absl::Status CheckRanges(const pb::UpdateConfigRequest& request) {
  const ServerOptions defaults;
  absl::Status status;
  ServerOptions::VisitFields(defaults, [&](const OptionInfo& info, const auto&) {
    const FieldDescriptor* const field =
        request.GetDescriptor()->FindFieldByName(std::string(info.name));
    if (!status.ok() || field == nullptr || info.max == 0) return;
    if (!request.GetReflection()->HasField(request, field)) return;
    const double value = NumberIn(request, *field);
    // Of the pool's size 0 stands for a rule, which is for the start only.
    const double least = info.name == "num_blocks" ? 1 : info.min;
    if (value >= least && value <= info.max) return;
    status = InvalidArgument("{}={} is outside [{}, {}] ({})", info.name, value, least, info.max,
                             info.unit);
  });
  return status;
}

// What can be set back without a trace: all but the policy, which orders requests anew.
SchedulerUpdate LimitsOf(const SchedulerOptions& o) {
  return {.max_num_seqs = o.max_num_seqs,
          .max_num_batched_tokens = o.max_num_batched_tokens,
          .max_queued_requests = o.max_queued_requests,
          .watermark = o.watermark,
          .policy = std::nullopt,
          .long_prefill_token_threshold = o.long_prefill_token_threshold,
          .target_step_ms = o.target_step_ms,
          .num_speculative_tokens = o.num_speculative_tokens};
}

}  // namespace

absl::StatusOr<LiveUpdate> ReadUpdate(const pb::UpdateConfigRequest& r) {
  RETURN_IF_ERROR(CheckRanges(r));
  LiveUpdate u;
  if (r.has_num_blocks()) u.num_blocks = static_cast<int32_t>(r.num_blocks());
  SchedulerUpdate& s = u.scheduler;
  if (r.has_max_num_seqs()) s.max_num_seqs = r.max_num_seqs();
  if (r.has_max_num_batched_tokens()) s.max_num_batched_tokens = r.max_num_batched_tokens();
  if (r.has_max_queued_requests()) s.max_queued_requests = r.max_queued_requests();
  if (r.has_watermark()) s.watermark = r.watermark();
  if (r.has_long_prefill_token_threshold()) {
    s.long_prefill_token_threshold = r.long_prefill_token_threshold();
  }
  if (r.has_target_itl_ms()) s.target_step_ms = r.target_itl_ms();
  if (r.has_num_speculative_tokens()) s.num_speculative_tokens = r.num_speculative_tokens();
  if (r.has_scheduling_policy()) {
    s.policy = ParsePolicy(r.scheduling_policy());
    if (!s.policy) {
      return InvalidArgument("scheduling_policy={} is not one of {}", r.scheduling_policy(),
                             kPolicyNames);
    }
  }
  return u;
}

absl::Status ApplyUpdate(
    const LiveUpdate& update,
    const std::function<absl::Status(Scheduler&, int32_t num_blocks)>& set_num_blocks,
    Scheduler& scheduler) {
  SchedulerUpdate limits = update.scheduler;
  limits.policy.reset();
  const SchedulerUpdate before = LimitsOf(scheduler.options());
  RETURN_IF_ERROR(scheduler.Update(limits));
  if (update.num_blocks) {
    // A pool that shrinks forgets prefixes, so it comes when nothing else can fail any more.
    absl::Status resized = set_num_blocks(scheduler, *update.num_blocks);
    if (!resized.ok()) {
      const absl::Status undone = scheduler.Update(before);
      CHECK(undone.ok(), "limits that held can't be set back: {}", Message(undone));
      return resized;
    }
  }
  if (update.scheduler.policy) {
    const absl::Status ordered = scheduler.Update({.policy = update.scheduler.policy});
    CHECK(ordered.ok(), "a policy by itself is always possible: {}", Message(ordered));
  }
  return absl::OkStatus();
}

void ToProto(const SchedulerOptions& o, pb::Config& out) {
  out.set_max_num_seqs(o.max_num_seqs);
  out.set_max_num_batched_tokens(o.max_num_batched_tokens);
  out.set_max_queued_requests(o.max_queued_requests);
  out.set_watermark(o.watermark);
  out.set_scheduling_policy(Name(o.policy));
  out.set_long_prefill_token_threshold(o.long_prefill_token_threshold);
  out.set_target_itl_ms(o.target_step_ms);
  out.set_num_speculative_tokens(o.num_speculative_tokens);
}

}  // namespace quire
