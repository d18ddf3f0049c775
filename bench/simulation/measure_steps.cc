#include "bench/simulation/measure_steps.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "scheduler/sequence.h"

namespace quire {
namespace {

struct Part {
  int32_t seqs = 0;
  int32_t tokens = 0;   // computed, each
  int32_t context = 0;  // before them, each
  bool samples = true;
};
struct GridShape {
  std::string name;
  std::vector<Part> parts;
  int32_t copies = 0;
};

std::string NameOf(const GridShape& shape) {
  std::string name;
  for (const Part& p : shape.parts) {
    name += fmt::format("{}{} x {} after {}{}", name.empty() ? "" : " + ", p.seqs, p.tokens,
                        p.context, p.samples ? "" : " (no row)");
  }
  if (shape.copies > 0) name += fmt::format(" + {} copies", shape.copies);
  return name;
}

std::vector<GridShape> Grid() {
  std::vector<GridShape> grid;
  const auto add = [&](std::vector<Part> parts, int32_t copies = 0) {
    grid.push_back({.parts = std::move(parts), .copies = copies});
    grid.back().name = NameOf(grid.back());
  };
  for (const int32_t seqs : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
    for (const int32_t context : {32, 256, 640, 1536, 4000}) add({{seqs, 1, context}});
  }
  for (const int32_t tokens : {16, 32, 64, 128, 256, 512}) {
    for (const int32_t context : {0, 512, 3500}) {
      add({{1, tokens, context, tokens != 512}});
    }
  }
  for (const int32_t tokens : {32, 64, 128}) {
    for (const int32_t seqs : {2, 4}) add({{seqs, tokens, 0}});
  }
  for (const int32_t seqs : {1, 4, 16, 48}) {
    for (const int32_t tokens : {16, 64, 192, 448}) {
      add({{seqs, 1, 320}, {1, tokens, 0, tokens != 448}});
      add({{seqs, 1, 1200}, {1, tokens, 600, tokens != 448}});
    }
  }
  for (const int32_t copies : {16, 64}) add({{8, 1, 256}}, copies);
  return grid;
}

// A batch with everything that it points at.
struct Prepared {
  std::vector<std::unique_ptr<Sequence>> seqs;
  std::vector<PageCopy> touches;  // give every page content
  ScheduledBatch batch;
};

// nullopt: the pool is too small for the shape.
std::optional<Prepared> Prepare(const GridShape& shape, ModelRuntime& runtime) {
  BlockManager& blocks = runtime.block_manager();
  const int32_t vocab_size = runtime.config().vocab_size;
  Prepared p;
  const RootId root = blocks.InternRoot("measured steps", /*keep=*/false);
  PageId first_page = kNullPage;
  for (const Part& part : shape.parts) {
    for (int32_t i = 0; i < part.seqs; ++i) {
      auto seq = std::make_unique<Sequence>();
      const int32_t end = part.context + part.tokens;
      for (int32_t t = 0; t < end; ++t) seq->tokens.push_back((t * 37 + i * 11) % vocab_size);
      auto request = std::make_shared<Request>();
      request->prompt = seq->tokens;
      if (part.tokens == 1) request->prompt.pop_back();
      request->sampling.temperature = 0;
      request->stop.max_tokens = 1 << 20;
      seq->request = std::move(request);
      seq->num_computed_tokens = part.context;
      seq->status = SequenceStatus::kRunning;
      seq->tables = blocks.NewTables(root, {.prompt_tokens = seq->num_prompt_tokens()});
      // As if the context had been computed: pages before the first write would be left out else.
      if (!blocks.Grow(seq->tables, 0, end, p.batch.copies)) return std::nullopt;
      for (size_t g = 0; g < seq->tables.groups.size(); ++g) {
        const int32_t pool = blocks.layout().groups[g].pool;
        for (const PageId page : seq->tables.groups[g].ids()) {
          if (page == kNullPage || pool != 0) continue;
          if (first_page == kNullPage) first_page = page;
          if (page == first_page) continue;
          p.touches.push_back({.pool = pool, .src = first_page, .dst = page});
        }
      }
      p.batch.seqs.push_back({.seq = seq.get(),
                              .first_pos = part.context,
                              .num_tokens = part.tokens,
                              .num_samples = part.samples ? 1 : 0});
      p.batch.num_tokens += part.tokens;
      p.seqs.push_back(std::move(seq));
    }
  }
  if (shape.copies > static_cast<int32_t>(p.touches.size())) return std::nullopt;
  return p;
}

absl::Status Time(const GridShape& shape, ModelRuntime& runtime, double& us, StepShape& out) {
  std::optional<Prepared> p = Prepare(shape, runtime);
  us = 0;
  if (!p) return absl::OkStatus();
  p->batch.copies = p->touches;
  RETURN_IF_ERROR(runtime.executor().Run(p->batch).status());
  p->batch.copies.assign(p->touches.begin(), p->touches.begin() + shape.copies);
  out = ShapeOf(p->batch);
  const Clock::time_point start = Clock::now();
  RETURN_IF_ERROR(runtime.executor().Run(p->batch).status());
  us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  return absl::OkStatus();
}

bool Fits(const GridShape& shape, const MeasureOptions& o) {
  int32_t seqs = 0, tokens = 0, longest = 0;
  for (const Part& part : shape.parts) {
    seqs += part.seqs;
    tokens += part.seqs * part.tokens;
    longest = std::max(longest, part.context + part.tokens);
  }
  return seqs <= o.max_num_seqs && tokens <= o.max_num_batched_tokens && longest <= o.max_context;
}

}  // namespace

absl::StatusOr<std::vector<MeasuredStep>> MeasureSteps(ModelRuntime& runtime,
                                                       const MeasureOptions& options) {
  MeasureOptions o = options;
  o.max_context = std::min(o.max_context, runtime.max_model_len());
  struct Sample {
    MeasuredStep step;
    std::vector<double> us;
  };
  const std::vector<GridShape> grid = Grid();
  std::vector<Sample> samples(grid.size());
  for (int32_t round = 0; round < o.repeats; ++round) {
    for (size_t i = 0; i < grid.size(); ++i) {
      if (!Fits(grid[i], o)) continue;
      double us = 0;
      RETURN_IF_ERROR(Time(grid[i], runtime, us, samples[i].step.shape));
      if (us > 0) samples[i].us.push_back(us);
    }
  }
  std::vector<MeasuredStep> steps;
  for (size_t i = 0; i < grid.size(); ++i) {
    const std::vector<double>& us = samples[i].us;
    if (us.empty()) continue;
    for (const double one : us) samples[i].step.us += one / static_cast<double>(us.size());
    samples[i].step.name = grid[i].name;
    steps.push_back(std::move(samples[i].step));
  }
  return steps;
}

}  // namespace quire
