// bench/accuracy_bench.cc -- perplexity and KL divergence that a format or an engine costs.
//
//   accuracy_bench [--windows=48] [--window=512] [--threads=2] [--every=0] TEXT REFERENCE OTHER...
//
// REFERENCE is a source as bench/logit_source.h describes it, OTHER is NAME=source: a model with
// settings ("model.gguf,kv_cache_dtype=bfloat16"), or "!command", an engine behind a pipe. The text
// is cut into windows of consecutive tokens, each read from an empty cache; every token but a
// window's first is predicted; --every=N prints what is known after each N windows. The reference's
// model is a GGUF file, whose tokenizer cuts the text.
//
// Columns: perplexity; the loss beyond the reference's with its standard error; KL(reference ||
// other) per token, mean, 99th percentile and largest; how often both rank the same token first.
// All in nats, summed in float64. deploy/fetch-text.sh brings the text that figures are given for.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "bench/gguf_vocabulary.h"
#include "bench/logit_source.h"
#include "bench/logit_stats.h"
#include "tokenizer/tokenizer.h"

namespace quire {
namespace {

struct Options {
  int32_t windows = 48, window = 512, threads = 2, every = 0;
  std::vector<std::string> rest;
};

struct Other {
  std::string name;
  std::unique_ptr<LogitSource> source;
  LogitComparison comparison;
  double seconds = 0;
};

[[noreturn]] void Die(const absl::Status& why) {
  std::fprintf(stderr, "%s\n", Message(why).c_str());
  std::exit(1);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) Die(value.status());
  return *std::move(value);
}

std::vector<TokenId> ReadTokens(const std::string& path, const LogitSource& reference) {
  std::ifstream file(path);
  if (!file) Die(InvalidArgument("text={} can't be read", path));
  std::stringstream text;
  text << file.rdbuf();
  if (reference.gguf() == nullptr) Die(InvalidArgument("the reference must be a GGUF file"));
  const auto tokenizer = Must(Tokenizer::FromGguf(VocabularyOf<GgufVocabulary>(*reference.gguf())));
  return Must(tokenizer->Encode(text.str(), /*add_special_tokens=*/false));
}

void Print(const std::string& name, const LogitComparison& comparison, double seconds) {
  const ComparisonResult r = comparison.Result();
  std::printf("%-28s %10.4f %+10.5f %8.5f  %10.6f %10.6f %10.4f  %8.3f%% %8.0f\n", name.c_str(),
              r.perplexity, r.loss_increase, r.increase_error, r.mean_kl, r.p99_kl, r.max_kl,
              100 * r.same_best, static_cast<double>(r.tokens) / seconds);
}

int Main(const Options& o) {
  const auto reference = Must(OpenLogitSource(o.rest[1], o.window, o.threads, 0));
  const int32_t vocab = reference->vocab_size();
  const std::vector<TokenId> tokens = ReadTokens(o.rest[0], *reference);
  const auto window = static_cast<size_t>(o.window);
  const size_t windows = std::min<size_t>(static_cast<size_t>(o.windows), tokens.size() / window);
  if (windows == 0) Die(InvalidArgument("text has {} tokens, less than a window", tokens.size()));
  std::printf("%s: %zu tokens, of which %zu windows of %zu; reference %s\n", o.rest[0].c_str(),
              tokens.size(), windows, window, o.rest[1].c_str());

  std::vector<Other> others;
  for (size_t i = 2; i < o.rest.size(); ++i) {
    const size_t equals = o.rest[i].find('=');
    if (equals == std::string::npos) Die(InvalidArgument("other={} has no name", o.rest[i]));
    others.push_back({.name = o.rest[i].substr(0, equals)});
    others.back().source =
        Must(OpenLogitSource(o.rest[i].substr(equals + 1), o.window, o.threads, vocab));
    if (others.back().source->vocab_size() != vocab) {
      Die(InvalidArgument("other={} has {} tokens, the reference {}", others.back().name,
                          others.back().source->vocab_size(), vocab));
    }
  }

  const auto timed = [](LogitSource& source, std::span<const TokenId> ids, double& seconds) {
    const auto start = std::chrono::steady_clock::now();
    const std::span<const float> logits = Must(source.Run(ids));
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return logits;
  };
  LogitComparison itself;
  double reference_seconds = 0;
  const auto print = [&] {
    std::printf("%-28s %10s %10s %8s  %10s %10s %10s  %9s %8s\n", "", "perplexity", "loss +", "+-",
                "KL mean", "KL p99", "KL max", "same best", "tokens/s");
    Print("reference", itself, reference_seconds);
    for (const Other& other : others) Print(other.name, other.comparison, other.seconds);
    std::fflush(stdout);
  };
  ReferenceRow row;
  for (size_t w = 0; w < windows; ++w) {
    const std::span<const TokenId> ids = std::span(tokens).subspan(w * window, window);
    const std::span<const float> expected = timed(*reference, ids, reference_seconds);
    std::vector<std::span<const float>> logits;
    logits.reserve(others.size());
    for (Other& other : others) logits.push_back(timed(*other.source, ids, other.seconds));
    const auto width = static_cast<size_t>(vocab);
    for (size_t i = 0; i + 1 < window; ++i) {
      row.Set(expected.subspan(i * width, width));
      itself.Add(row, expected.subspan(i * width, width), ids[i + 1]);
      for (size_t k = 0; k < others.size(); ++k) {
        others[k].comparison.Add(row, logits[k].subspan(i * width, width), ids[i + 1]);
      }
    }
    const auto done = static_cast<int32_t>(w) + 1;
    if (o.every > 0 && done % o.every == 0 && w + 1 < windows) {
      std::printf("after %d windows\n", done);
      print();
    }
  }
  print();
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  quire::Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto number = [&](const char* flag, int32_t& value) {
      const size_t n = std::strlen(flag);
      if (arg.compare(0, n, flag) != 0) return false;
      value = std::atoi(arg.c_str() + n);
      return true;
    };
    if (number("--windows=", o.windows) || number("--window=", o.window) ||
        number("--threads=", o.threads) || number("--every=", o.every)) {
      continue;
    }
    o.rest.push_back(arg);
  }
  if (o.rest.size() < 3 || o.windows < 1 || o.window < 2 || o.threads < 1) {
    std::fprintf(stderr,
                 "accuracy_bench [--windows=48] [--window=512] [--threads=2] [--every=0] TEXT "
                 "NAME=OTHER...\n");
    return 2;
  }
  return quire::Main(o);
}
