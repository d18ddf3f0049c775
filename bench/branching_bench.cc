// bench/branching_bench.cc -- what guessing ahead and beams bring and cost on a real model.
//
//   branching_bench <SmolLM2 GGUF> [rounds] [edit|random|streams|beams|draft|rows|all]
//
// In process, on scheduler, cache and executor as the daemon sets them up. Variants take turns in
// each round, so that a busy machine slows them alike; printed are medians, and the median and the
// extremes of the rounds' ratios. Outputs with and without guesses must be the same tokens in all
// rounds; in a round before the clock starts, the same bits of logprobs. Nothing is cached when a
// round begins, and nothing has been learnt from earlier outputs.
//
//   edit     one stream proofreads a text: lookups find most of it
//   random   one stream of random tokens, continued at temperature 1: there is nothing to find
//   streams  questions of all sorts, many at once; 64 streams leave no rows for guesses
//   beams    beam_width 4 beside n = 4 on a prompt of 512 tokens: time and pages
//   draft    the model as its own draft: that the guesses are right, not what they cost
//   rows     the time of a step by its rows: guesses of one sequence, and sequences with one each
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/gguf_vocabulary.h"
#include "bench/model_variants.h"
#include "tokenizer/tokenizer.h"

namespace quire {
namespace {

struct Model {
  std::unique_ptr<ModelRuntime> runtime;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<TokenId> end_tokens;

  std::vector<TokenId> Chat(const std::string& question) const {
    auto ids = tokenizer->Encode(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
        "Face<|im_end|>\n<|im_start|>user\n" +
            question + "<|im_end|>\n<|im_start|>assistant\n",
        /*add_special_tokens=*/false);
    if (!ids.ok()) Die(ids.status());
    return *std::move(ids);
  }
};

Model Open(const std::string& path, bool with_draft) {
  RuntimeOptions options;
  options.model = path;
  options.num_threads = 2;
  options.memory.num_blocks = 4096;
  if (with_draft) options.draft_model = path;
  auto runtime = ModelRuntime::Load(options);
  if (!runtime.ok()) Die(runtime.status());
  Model model;
  model.runtime = *std::move(runtime);
  const GgufFile* const file = model.runtime->gguf();
  if (file == nullptr) Die(absl::InvalidArgumentError("needs a GGUF file"));
  const auto v = VocabularyOf<GgufVocabulary>(*file);
  auto tokenizer = Tokenizer::FromGguf(v);
  if (!tokenizer.ok()) Die(tokenizer.status());
  model.tokenizer = *std::move(tokenizer);
  model.end_tokens = model.runtime->config().eos_token_ids;
  if (v.eos_token_id) model.end_tokens.push_back(static_cast<TokenId>(*v.eos_token_id));
  return model;
}

std::shared_ptr<Request> NewRequest(RequestId id, std::vector<TokenId> prompt, int32_t max_tokens) {
  auto request = std::make_shared<Request>();
  request->id = id;
  request->prompt = std::move(prompt);
  request->stop.max_tokens = max_tokens;
  request->sampling.temperature = 0;
  request->arrival = Clock::now();
  return request;
}

std::vector<std::unique_ptr<Variant>> Variants(const Model& model,
                                               std::initializer_list<SpeculationMethod> methods) {
  std::vector<std::unique_ptr<Variant>> variants;
  for (const SpeculationMethod m : methods) {
    variants.push_back(std::make_unique<Variant>(m == SpeculationMethod::kNone     ? "none"
                                                 : m == SpeculationMethod::kNgram  ? "ngram"
                                                 : m == SpeculationMethod::kSuffix ? "suffix"
                                                                                   : "draft",
                                                 *model.runtime, m));
  }
  return variants;
}
std::vector<std::unique_ptr<Variant>> Lookups(const Model& model) {
  return Variants(
      model, {SpeculationMethod::kNone, SpeculationMethod::kNgram, SpeculationMethod::kSuffix});
}

// --- edit ---

constexpr const char* kText =
    "The harbour master kept a ledger of every ship that came through the narrow channel. On the "
    "first of March the brig Aurora arrived from the north with a cargo of timber and wool. Her "
    "captain, Edmund, asked for a berth near the old customs house, because the cranes there were "
    "the only ones tall enough to lift the beams. The harbour master agreed, but he asked Edmund "
    "to pay two weeks in advance. Edmund counted out the coins on the desk and signed his name "
    "beneath the entry. In the evening the crew carried the wool to the market square, where the "
    "weavers were already waiting. They bought all of it before the lamps were lit. The timber "
    "took longer: a storm came in from the west, and for three days nobody could work on the quay. "
    "When the weather cleared, Edmund hired a dozen men from the village, and together they "
    "emptied the hold in a single morning. The beams were meant for the roof of the new school, "
    "and the children came down to the water to watch. Before he sailed again, Edmund gave the "
    "harbour master a small brass compass as a sign of thanks. It still hangs on the wall above "
    "the ledger, next to the window that looks out over the channel.";

void Edit(const Model& model, int rounds) {
  const std::vector<TokenId> prompt = model.Chat(
      std::string("Proofread the following text. Write it again with all errors corrected.\n\n") +
      kText);
  auto variants = Lookups(model);
  const auto make = [&](int, bool logprobs) {
    auto request = NewRequest(1, prompt, 400);
    request->stop.eos_token_ids = model.end_tokens;
    request->sampling.num_logprobs = logprobs ? 0 : -1;
    return Requests{request};
  };
  // Whether it does as told, as far as a model of this size does.
  const std::vector<TokenId> said = variants[0]->Run(make(0, false)).tokens.at({1, 0});
  const std::string answer = model.tokenizer->Decode(said, /*skip_special_tokens=*/true);
  const std::string wanted = kText;  // it has no errors
  const auto words = [](const std::string& text) {
    std::vector<std::string> list(1);
    for (const char c : text) {
      if (c == ' ' || c == '\n') {
        list.emplace_back();
      } else {
        list.back() += c;
      }
    }
    std::sort(list.begin(), list.end());
    return list;
  };
  std::vector<std::string> common;
  const std::vector<std::string> a = words(answer), b = words(wanted);
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  std::printf(
      "edit: prompt of %zu tokens, answer of %zu; %zu of its %zu words are the "
      "text's (%zu)\n",
      prompt.size(), said.size(), common.size(), a.size(), b.size());
  if (std::getenv("QUIRE_BENCH_SHOW") != nullptr) std::printf("%s\n", answer.c_str());
  Compare("edit", variants, rounds, make);
}

// --- random, streams ---

std::vector<TokenId> RandomTokens(std::mt19937& rng, int32_t n) {
  std::vector<TokenId> tokens(static_cast<size_t>(n));
  for (TokenId& t : tokens) t = static_cast<TokenId>(300 + rng() % 40'000);
  return tokens;
}

void Random(const Model& model, int rounds) {
  auto variants = Lookups(model);
  Compare("random", variants, rounds, [](int round, bool logprobs) {
    std::mt19937 rng(static_cast<uint32_t>(round + 100));
    auto request = NewRequest(1, RandomTokens(rng, 128), 256);
    request->sampling.temperature = 1;
    request->seed = rng();
    request->sampling.num_logprobs = logprobs ? 0 : -1;
    return Requests{request};
  });
}

void Streams(const Model& model, int rounds, int32_t count) {
  const char* const subjects[] = {
      "the tides",     "a bicycle",         "fresh bread", "the French horn",    "glaciers",
      "a good letter", "compound interest", "bees",        "the printing press", "sleep",
      "volcanoes",     "chess openings",    "rainbows",    "the Roman roads",    "yeast",
      "a telescope"};
  const char* const questions[] = {"Explain in a few sentences how %s work or works.",
                                   "Write a short story about %s.", "List five facts about %s.",
                                   "What should a beginner know about %s?"};
  std::vector<std::vector<TokenId>> prompts;
  for (int32_t i = 0; i < count; ++i) {
    std::string question = questions[i / 16 % 4];
    question.replace(question.find("%s"), 2, subjects[i % 16]);
    prompts.push_back(model.Chat(question));
  }
  auto variants = Lookups(model);
  Compare(std::to_string(count) + " chats", variants, rounds, [&](int round, bool logprobs) {
    Requests requests;
    for (size_t i = 0; i < prompts.size(); ++i) {
      // Every second one greedy; all at an end at once, so that there are `count` to the end.
      auto request = NewRequest(i + 1, prompts[i], 96);
      request->sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
      request->seed = i * 1000 + static_cast<uint64_t>(round) + 1;
      request->sampling.num_logprobs = logprobs ? 0 : -1;
      requests.push_back(std::move(request));
    }
    return requests;
  });
}

// --- beams ---

void Beams(const Model& model, int rounds) {
  Variant variant("none", *model.runtime, SpeculationMethod::kNone);
  std::vector<TokenId> prompt = model.Chat(std::string("Continue this text.\n\n") + kText + kText);
  prompt.resize(512);
  std::printf("%-24s %10s %10s %8s %14s %8s %8s %8s\n", "512 tokens and", "n=4 s", "beams s",
              "ratio", "of rounds", "n=4 pp", "beams pp", "ratio");
  for (const int32_t new_tokens : {64, 128}) {
    std::vector<double> samples_s, beams_s, ratios;
    double samples_pages = 0, beam_pages = 0;
    for (int round = -1; round < rounds; ++round) {
      auto samples = NewRequest(1, prompt, new_tokens);
      samples->sampling.temperature = 1;
      samples->sampling.n = 4;
      samples->seed = static_cast<uint64_t>(round) + 1;
      auto beams = NewRequest(2, prompt, new_tokens);
      beams->beam.beam_width = 4;
      beams->beam.num_return_sequences = 4;
      RunResult a, b;
      if (round % 2 == 0) {
        a = variant.Run({samples});
        b = variant.Run({beams});
      } else {
        b = variant.Run({beams});
        a = variant.Run({samples});
      }
      if (round < 0) continue;
      for (const auto& [key, tokens] : b.tokens) {
        if (static_cast<int32_t>(tokens.size()) != new_tokens) Die(absl::InternalError("beams"));
      }
      samples_s.push_back(a.total_s);
      beams_s.push_back(b.total_s);
      ratios.push_back(b.total_s / a.total_s);
      samples_pages = a.peak_pages;
      beam_pages = std::max<double>(beam_pages, b.peak_pages);
    }
    std::printf("%4d new%16s %10.3f %10.3f %8.2f (%5.2f to %4.2f) %7.0f %8.0f %8.2f\n", new_tokens,
                "", Median(samples_s), Median(beams_s), Median(ratios),
                *std::min_element(ratios.begin(), ratios.end()),
                *std::max_element(ratios.begin(), ratios.end()), samples_pages, beam_pages,
                beam_pages / samples_pages);
    std::fflush(stdout);
  }
}

// --- draft ---

void Draft(const std::string& path) {
  const Model model = Open(path, /*with_draft=*/true);
  auto variants = Variants(model, {SpeculationMethod::kNone, SpeculationMethod::kDraft});
  PrintHead();
  Compare("draft", variants, 2, [&](int round, bool logprobs) {
    auto request = NewRequest(1, model.Chat("Write a short story about a lighthouse."), 96);
    request->sampling.temperature = round == 0 ? 0.0f : 1.0f;
    request->seed = 5;
    request->sampling.num_logprobs = logprobs ? 0 : -1;
    return Requests{request};
  });
}

// --- rows ---

// The executor alone: steps that a scheduler would plan, on tables of our own.
void Rows(const Model& model, int rounds) {
  constexpr int32_t kContext = 300;
  BlockManager& blocks = model.runtime->block_manager();
  blocks.Flush();
  const std::vector<int32_t> counts = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 24, 32};
  std::vector<std::vector<double>> of_one(counts.size()), of_many(counts.size());
  std::vector<std::unique_ptr<Sequence>> seqs;
  std::mt19937 rng(3);
  const RootId root = blocks.InternRoot("rows");
  for (int32_t i = 0; i < counts.back(); ++i) {
    auto seq = std::make_unique<Sequence>();
    seq->request = NewRequest(static_cast<RequestId>(i) + 1, RandomTokens(rng, kContext + 1), 64);
    seq->id = static_cast<SequenceId>(i) + 1;
    seq->tokens = seq->request->prompt;
    seq->tables = blocks.NewTables(root);
    ScheduledBatch fill;
    if (!blocks.Grow(seq->tables, 0, kContext, fill.copies)) std::abort();
    fill.seqs.push_back({.seq = seq.get(), .num_tokens = kContext});
    fill.num_tokens = kContext;
    if (!model.runtime->executor().Run(fill).ok()) std::abort();
    seq->num_computed_tokens = kContext;
    seqs.push_back(std::move(seq));
  }
  const auto time_us = [&](ScheduledBatch& batch) {
    for (const ScheduledSeq& s : batch.seqs) {
      SequenceTables& tables = const_cast<Sequence*>(s.seq)->tables;
      if (!blocks.Grow(tables, kContext, kContext + s.num_tokens, batch.copies)) std::abort();
    }
    const Clock::time_point start = Clock::now();
    if (!model.runtime->executor().Run(batch).ok()) std::abort();
    const double us = Seconds(start) * 1e6;
    for (const ScheduledSeq& s : batch.seqs) {
      blocks.Truncate(const_cast<Sequence*>(s.seq)->tables, kContext);
    }
    return us;
  };
  for (int round = 0; round < rounds * 5; ++round) {
    for (size_t k = 0; k < counts.size(); ++k) {
      const int32_t rows = counts[k];
      Sequence& seq = *seqs[0];
      for (int32_t d = 1; d < rows; ++d) seq.tokens.push_back(static_cast<TokenId>(500 + d));
      seq.num_drafts = rows - 1;
      ScheduledBatch one;
      one.num_tokens = rows;
      one.seqs.push_back({.seq = &seq,
                          .first_pos = kContext,
                          .num_tokens = rows,
                          .num_samples = 1,
                          .num_drafts = rows - 1});
      of_one[k].push_back(time_us(one));
      seq.tokens.resize(kContext + 1);
      seq.num_drafts = 0;
      ScheduledBatch many;
      many.num_tokens = rows;
      for (int32_t i = 0; i < rows; ++i) {
        many.seqs.push_back({.seq = seqs[static_cast<size_t>(i)].get(),
                             .first_pos = kContext,
                             .num_tokens = 1,
                             .num_samples = 1});
      }
      of_many[k].push_back(time_us(many));
    }
  }
  std::printf("rows   one sequence, us   by 1 row   sequences of one row, us   by 1 row\n");
  for (size_t k = 0; k < counts.size(); ++k) {
    const double one = Median(of_one[k]), many = Median(of_many[k]);
    std::printf("%4d %18.0f %10.2f %26.0f %10.2f\n", counts[k], one, one / Median(of_one[0]), many,
                many / Median(of_many[0]));
  }
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const std::string what = argc > 3 ? argv[3] : "all";
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  const std::vector<std::string> parts = {"edit", "random", "streams", "beams", "rows", "draft"};
  if (argc < 2 || rounds < 1 ||
      (what != "all" && std::find(parts.begin(), parts.end(), what) == parts.end())) {
    std::fprintf(stderr,
                 "branching_bench <GGUF file> [rounds] [edit|random|streams|beams|draft|rows]\n");
    return 2;
  }
  const auto asked = [&](const char* part) { return what == "all" || what == part; };
  {
    const Model model = Open(argv[1], /*with_draft=*/false);
    std::printf("%d threads, %d rounds\n", model.runtime->num_threads(), rounds);
    if (asked("edit") || asked("random") || asked("streams")) PrintHead();
    if (asked("edit")) Edit(model, rounds);
    if (asked("random")) Random(model, rounds);
    if (asked("streams")) {
      for (const int32_t count : {64, 32, 8}) Streams(model, rounds, count);
    }
    if (asked("beams")) Beams(model, rounds);
    if (asked("rows")) Rows(model, rounds);
  }
  if (asked("draft")) Draft(argv[1]);
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) { return quire::Main(argc, argv); }
