#include "scheduler/options.h"

namespace quire {

absl::Status Validate(const SchedulerOptions& o) {
  if (o.max_num_seqs < 1) {
    return InvalidArgument("max_num_seqs={} must be at least 1", o.max_num_seqs);
  }
  // With a smaller budget running sequences would have to take turns, and one step for all is what
  // keeps the time between tokens even.
  if (o.max_num_batched_tokens < o.max_num_seqs) {
    return InvalidArgument(
        "max_num_batched_tokens={} must be at least max_num_seqs={}; raise it or lower "
        "max_num_seqs",
        o.max_num_batched_tokens, o.max_num_seqs);
  }
  if (o.max_model_len < 2) {
    return InvalidArgument("max_model_len={} must be at least 2 (one token in, one out)",
                           o.max_model_len);
  }
  if (o.max_queued_requests < 1) {
    return InvalidArgument("max_queued_requests={} must be at least 1", o.max_queued_requests);
  }
  if (!(o.watermark >= 0 && o.watermark < 1)) {
    return InvalidArgument("watermark={} must be in [0, 1)", o.watermark);
  }
  return absl::OkStatus();
}

}  // namespace quire
