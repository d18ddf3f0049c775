// CPU time of a mask, of a token and of forced text, over a vocabulary of 49,152 made-up tokens:
//   grammar_bench [runs]
// Each walk is random over the allowed tokens; the share of forced bytes is what jump-forward can
// guess at most.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "sampling/grammar.h"

namespace {

double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Bytes, then words of letters with and without a space in front, numbers, and pieces of JSON.
quire::GrammarVocabulary MakeVocabulary() {
  constexpr int32_t kSize = 49'152;
  quire::GrammarVocabulary vocabulary;
  auto& bytes = vocabulary.token_bytes;
  bytes.emplace_back();
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(std::string(1, static_cast<char>(byte)));
  for (const char* piece : {"{\"", "\":", "\": ", "\",", "\", \"", "\"}", "},", "[{", "]}", ": "}) {
    bytes.emplace_back(piece);
  }
  for (int i = 10; i < 1000; ++i) bytes.push_back(std::to_string(i));
  std::mt19937 random(1);
  while (bytes.size() < kSize) {
    std::string word = random() % 2 == 0 ? " " : "";
    const size_t length = 2 + random() % 8;
    for (size_t i = 0; i < length; ++i) word += static_cast<char>('a' + random() % 26);
    bytes.push_back(std::move(word));
  }
  vocabulary.vocab_size = kSize;
  vocabulary.stop_ids = {0};
  return vocabulary;
}

}  // namespace

int main(int argc, char** argv) {
  using quire::GrammarSpec;
  const int runs = argc > 1 ? std::atoi(argv[1]) : 20;
  const quire::GrammarVocabulary vocabulary = MakeVocabulary();
  auto compiler = quire::GrammarCompiler::Make(vocabulary);
  if (!compiler.ok()) return 1;
  const std::pair<const char*, GrammarSpec> cases[] = {
      {"json object", {.kind = GrammarSpec::Kind::kJsonObject}},
      {"json schema",
       {.kind = GrammarSpec::Kind::kJsonSchema,
        .text = R"({"type":"object","properties":{"name":{"type":"string","maxLength":20},
            "age":{"type":"integer","minimum":0,"maximum":150},"tags":{"type":"array",
            "items":{"enum":["red","green","blue"]},"maxItems":5},"active":{"type":"boolean"}},
            "required":["name","age","tags","active"]})",
        .any_whitespace = false}},
      {"regex", {.kind = GrammarSpec::Kind::kRegex, .text = "([a-z]+ ){5,20}[0-9]{3}"}},
  };
  std::vector<int32_t> mask(quire::MaskWords(vocabulary.vocab_size));
  for (const auto& [name, spec] : cases) {
    const auto grammar = (*compiler)->Compile(spec);
    if (!grammar.ok()) return 1;
    std::vector<double> fills;
    double accept = 0;
    double forced = 0;
    int64_t steps = 0;
    int64_t bytes = 0;
    int64_t forced_bytes = 0;
    std::mt19937 random(2);
    for (int run = 0; run < runs; ++run) {
      quire::GrammarMatcher matcher(*grammar);
      for (int step = 0; step < 100 && !matcher.IsTerminated(); ++step) {
        double start = ThreadSeconds();
        const std::string text = matcher.ForcedText();
        forced += ThreadSeconds() - start;
        start = ThreadSeconds();
        matcher.FillMask(mask);
        fills.push_back(ThreadSeconds() - start);
        std::vector<quire::TokenId> allowed;
        for (quire::TokenId id = 0; id < vocabulary.vocab_size; ++id) {
          if ((static_cast<uint32_t>(mask[id / 32]) >> (id % 32) & 1) != 0) allowed.push_back(id);
        }
        const quire::TokenId next = allowed[random() % allowed.size()];
        const auto length = static_cast<int64_t>(vocabulary.token_bytes[next].size());
        bytes += length;
        forced_bytes += std::min(length, static_cast<int64_t>(text.size()));
        start = ThreadSeconds();
        matcher.Accept(next);
        accept += ThreadSeconds() - start;
        ++steps;
      }
    }
    std::sort(fills.begin(), fills.end());
    fmt::print(
        "{:12} {:5} steps  mask p50 {:6.1f} us, p99 {:6.1f} us  accept {:5.1f} us  "
        "forced text {:5.1f} us  forced bytes {:4.1f}%\n",
        name, steps, fills[fills.size() / 2] * 1e6, fills[fills.size() * 99 / 100] * 1e6,
        accept / static_cast<double>(steps) * 1e6, forced / static_cast<double>(steps) * 1e6,
        100.0 * static_cast<double>(forced_bytes) / static_cast<double>(bytes));
  }
  return 0;
}
