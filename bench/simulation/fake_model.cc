#include "bench/simulation/fake_model.h"

#include "scheduler/sequence.h"

namespace quire {

absl::StatusOr<StepOutput> FakeModel::Run(const ScheduledBatch& batch) {
  StepOutput output;
  output.rows.reserve(batch.seqs.size());
  for (size_t i = 0; i < batch.seqs.size(); ++i) {
    const ScheduledSeq& s = batch.seqs[i];
    // The first row is that of the last known token.
    const int32_t first = s.seq->num_output_tokens() - s.num_drafts;
    for (int32_t k = 0; k < s.num_samples; ++k) {
      for (int32_t d = 0; d <= s.num_drafts; ++d) {
        SampledRow& row = output.rows.emplace_back();
        row.seq_index = static_cast<int32_t>(i);
        row.branch = s.num_samples > 1 ? k : s.seq->branch;
        row.draft = d;
        row.sampled.token = TokenOf(s.seq->request->seed, first + d);
      }
    }
  }
  return output;
}

}  // namespace quire
