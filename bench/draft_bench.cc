// bench/draft_bench.cc -- what guesses by lookup and their control cost, per sequence and step.
//
//   draft_bench [context] [sequences]
//
// Thread CPU time of Plan, Propose, OnTokens and OnVerified, in microseconds for one sequence and
// step, with 8 guesses in one chain. Three kinds of text: random (hardly anything is found), words
// (a small vocabulary, so that short matches abound), and a loop (everything is found). The indexes
// are built before the clock starts; what that costs once per token is the last column.
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "scheduler/draft_control.h"
#include "scheduler/ngram_proposer.h"
#include "scheduler/suffix_proposer.h"

namespace quire {
namespace {

constexpr int kSteps = 400;
constexpr int32_t kDrafts = 8;

double ThreadUs() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

struct Kind {
  const char* name;
  uint32_t vocab;
  size_t period;  // 0 = none
};

std::vector<TokenId> TextOf(const Kind& kind, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> text(count);
  for (size_t i = 0; i < count; ++i) {
    text[i] = kind.period > 0 && i >= kind.period ? text[i - kind.period]
                                                  : static_cast<TokenId>(random() % kind.vocab);
  }
  return text;
}

void Measure(Proposer& proposer, const Kind& kind, size_t context, int num_seqs) {
  std::vector<std::vector<TokenId>> texts;
  std::vector<std::unique_ptr<Sequence>> seqs;
  std::vector<DraftRequest> requests;
  std::vector<DraftPlan> plans;
  for (int i = 0; i < num_seqs; ++i) {
    texts.push_back(TextOf(kind, context + kSteps, static_cast<uint32_t>(i)));
    auto seq = std::make_unique<Sequence>();
    auto request = std::make_shared<Request>();
    request->prompt.assign(texts.back().begin(),
                           texts.back().begin() + static_cast<std::ptrdiff_t>(context));
    seq->id = static_cast<SequenceId>(i) + 1;
    seq->tokens = request->prompt;
    seq->tokens.reserve(context + kSteps);
    seq->request = std::move(request);
    requests.push_back({.seq = seq.get(), .max_tokens = kDrafts, .max_chains = 1});
    plans.push_back({.seq = seq->id, .max_tokens = kDrafts});
    seqs.push_back(std::move(seq));
  }
  const double start = ThreadUs();
  proposer.Propose(requests);
  const double built = ThreadUs();
  DraftControl control;
  double propose_us = 0, tokens_us = 0, control_us = 0;
  int64_t found = 0;
  for (int step = 0; step < kSteps; ++step) {
    const double t0 = ThreadUs();
    control.Plan(plans, {.fixed_us = 4000, .per_token_us = 1500});
    const double t1 = ThreadUs();
    proposer.Propose(requests);
    const double t2 = ThreadUs();
    for (size_t i = 0; i < seqs.size(); ++i) {
      const int32_t drafted[] = {requests[i].chains.empty()
                                     ? 0
                                     : static_cast<int32_t>(requests[i].chains[0].tokens.size())};
      found += drafted[0] > 0;
      control.OnVerified(seqs[i]->id, drafted, 0, drafted[0] / 2);
    }
    const double t3 = ThreadUs();
    for (size_t i = 0; i < seqs.size(); ++i) {
      seqs[i]->tokens.push_back(texts[i][context + static_cast<size_t>(step)]);
      proposer.OnTokens(*seqs[i], {&seqs[i]->tokens.back(), 1});
    }
    const double t4 = ThreadUs();
    control_us += t1 - t0 + (t3 - t2);
    propose_us += t2 - t1;
    tokens_us += t4 - t3;
  }
  const double each = static_cast<double>(kSteps) * num_seqs;
  std::printf("%-8s %-8s %9.3f %9.3f %9.3f %9.1f%% %12.4f\n", std::string(proposer.name()).c_str(),
              kind.name, propose_us / each, tokens_us / each, control_us / each,
              100.0 * static_cast<double>(found) / each,
              (built - start) / static_cast<double>(context) / num_seqs);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  const size_t context = argc > 1 ? static_cast<size_t>(std::atoi(argv[1])) : 8192;
  const int num_seqs = argc > 2 ? std::atoi(argv[2]) : 8;
  if (context < 2 || num_seqs < 1) {
    std::fprintf(stderr, "usage: draft_bench [context >= 2] [sequences >= 1]\n");
    return 2;
  }
  std::printf("%zu tokens of context, %d sequences; us per sequence and step, thread CPU time\n",
              context, num_seqs);
  std::printf("%-8s %-8s %9s %9s %9s %10s %12s\n", "proposer", "text", "propose", "on_tokens",
              "control", "found", "build/token");
  for (const quire::Kind& kind : {quire::Kind{"random", 40000, 0}, quire::Kind{"words", 200, 0},
                                  quire::Kind{"loop", 40000, 300}}) {
    quire::NgramProposer ngram;
    quire::Measure(ngram, kind, context, num_seqs);
    quire::SuffixProposer suffix;
    quire::Measure(suffix, kind, context, num_seqs);
  }
  return 0;
}
