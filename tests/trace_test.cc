// Traces: generators keep what they promise, files are read back and refused by line and field.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/simulation/trace_file.h"
#include "bench/simulation/trace_generator.h"

namespace quire {
namespace {

std::vector<TraceRequest> All(const TraceSpec& spec) {
  auto source = GenerateTrace(spec);
  EXPECT_TRUE(source.ok()) << source.status();
  std::vector<TraceRequest> requests;
  for (TraceRequest r; *(*source)->Next(r);) requests.push_back(r);
  return requests;
}

TraceSpec Named(std::string_view name, int64_t requests) {
  TraceSpec spec = *NamedTrace(name);
  spec.requests = requests;
  return spec;
}

TEST(TraceGenerator, SameSeedSameRequestsOtherSeedOthers) {
  for (const char* name : {"uniform", "bursty", "on_off", "mix", "tree", "chat"}) {
    TraceSpec spec = Named(name, 500);
    spec.tenants = 3;
    spec.priorities = 2;
    const std::vector<TraceRequest> once = All(spec);
    EXPECT_EQ(once.size(), 500u);
    EXPECT_EQ(once, All(spec)) << name;
    for (size_t i = 1; i < once.size(); ++i) {
      EXPECT_GE(once[i].arrival_us, once[i - 1].arrival_us) << name;
    }
    ++spec.seed;
    EXPECT_NE(once, All(spec)) << name;
  }
}

TEST(TraceGenerator, RateAndBurstinessAreThoseAskedFor) {
  for (const char* name : {"uniform", "bursty", "on_off"}) {
    TraceSpec spec = Named(name, 200'000);
    spec.rate = 50;
    spec.on_s = 1;
    spec.off_s = 2;
    const std::vector<TraceRequest> requests = All(spec);
    double sum = 0, squares = 0;
    for (size_t i = 1; i < requests.size(); ++i) {
      const double gap = static_cast<double>(requests[i].arrival_us - requests[i - 1].arrival_us);
      sum += gap;
      squares += gap * gap;
    }
    const auto n = static_cast<double>(requests.size() - 1);
    const double mean = sum / n, deviation = std::sqrt(squares / n - mean * mean);
    EXPECT_NEAR(mean, 20'000, 600) << name;
    // Of an exponential gap the deviation is the mean; of a gamma gap as asked for. Of on-off: a
    // gap within a burst is exponential with mean m = 1e6 / 150 and, in one of 150 cases, holds an
    // off period of mean 2e6, so E[gap^2] = 2 m^2 + (2 * 4e12 + 2 * 2e6 * m) / 150.
    double want = 1;
    if (spec.arrivals == "gamma") want = spec.burstiness;
    if (spec.arrivals == "on_off") {
      const double m = 1e6 / 150, p = 1.0 / 151;
      want = std::sqrt(2 * m * m + p * (8e12 + 4e6 * m) - mean * mean) / mean;
    }
    EXPECT_NEAR(deviation / mean, want, 0.06 * want) << name;
  }
}

TEST(TraceGenerator, LengthsAndLongOnes) {
  TraceSpec spec = Named("mix", 20'000);
  int64_t num_long = 0;
  for (const TraceRequest& r : All(spec)) {
    const int32_t prompt = NumPromptTokens(r);
    const bool is_long = prompt >= spec.long_prompt_min;
    num_long += is_long;
    EXPECT_LE(prompt, is_long ? spec.long_prompt_max : spec.prompt_max);
    EXPECT_GE(prompt, spec.prompt_min);
    EXPECT_GE(r.output_tokens, 16);
    EXPECT_LE(r.output_tokens, is_long ? spec.long_output_max : spec.output_max);
    EXPECT_EQ(PromptTokens(r).size(), static_cast<size_t>(prompt));
  }
  EXPECT_NEAR(static_cast<double>(num_long), 2000, 200);
}

// A chat's next prompt is the one before with its answer, and more.
TEST(TraceGenerator, ChatsGoOn) {
  TraceSpec spec = Named("chat", 3000);
  spec.rate = 100;
  std::map<uint64_t, TraceRequest> by_answer;
  int follow_ups = 0;
  for (const TraceRequest& r : All(spec)) {
    ASSERT_GE(r.prompt.size(), 2u);
    EXPECT_LE(NumPromptTokens(r) + r.output_tokens, spec.chat_tokens);
    if (r.prompt.size() > 2) {
      const PromptSegment answer = r.prompt[r.prompt.size() - 2];
      const auto before = by_answer.find(answer.text);
      ASSERT_NE(before, by_answer.end());
      EXPECT_EQ(answer.num_tokens, before->second.output_tokens);
      EXPECT_GE(r.arrival_us, before->second.arrival_us);
      std::vector<PromptSegment> said = before->second.prompt;
      said.push_back(answer);
      said.push_back(r.prompt.back());
      EXPECT_EQ(r.prompt, said);
      ++follow_ups;
    }
    by_answer[r.answer] = r;
  }
  EXPECT_GT(follow_ups, 1500);  // five turns on average
}

TEST(TraceGenerator, ContradictionsAreNamed) {
  EXPECT_FALSE(NamedTrace("other").ok());
  TraceSpec spec;
  spec.prompt_min = 600;
  EXPECT_NE(Message(GenerateTrace(spec).status()).find("prompt_min=600"), std::string::npos);
  spec = *NamedTrace("chat");
  spec.chat_tokens = 600;
  EXPECT_NE(Message(GenerateTrace(spec).status()).find("chat_tokens=600"), std::string::npos);
  // Later than 1e12 ms there is nothing.
  spec = {.requests = 10'000, .rate = 1e-6};
  const std::unique_ptr<TraceSource> slow = *GenerateTrace(spec);
  absl::StatusOr<bool> next = true;
  for (TraceRequest r; next.ok() && *next; next = slow->Next(r)) {
    ASSERT_LE(r.arrival_us, int64_t{1'000'000'000'000'000});
  }
  EXPECT_NE(Message(next.status()).find("raise rate"), std::string::npos) << next.status();
  EXPECT_FALSE(SetField(spec, "rate", "0").ok());
  EXPECT_FALSE(SetField(spec, "rate", "nan").ok());
  EXPECT_FALSE(SetField(spec, "rate", "1x").ok());
  EXPECT_FALSE(SetField(spec, "prompts", "tre").ok());
  EXPECT_FALSE(SetField(spec, "requests", "1.5").ok());
  EXPECT_EQ(SetField(spec, "nothing", "1").code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(SetField(spec, "rate", "2.5").ok());
  EXPECT_EQ(spec.rate, 2.5);
}

TEST(TraceFile, WhatIsWrittenIsReadBack) {
  TraceSpec spec = Named("chat", 400);
  spec.tenants = 3;
  spec.priorities = 3;
  int64_t line = 0;
  for (const TraceRequest& r : All(spec)) {
    const auto read = ParseTraceLine(TraceLine(r), ++line);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, r);
  }
  const TraceRequest ids{.arrival_us = 1500, .token_ids = {3, 1, 4}, .answer = 9};
  const auto read = ParseTraceLine(TraceLine(ids), 1);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, ids);
}

TEST(TraceFile, NamesShareAndLinesDoNot) {
  const auto parse = [](const char* text, int64_t line) {
    auto r = ParseTraceLine(text, line);
    EXPECT_TRUE(r.ok()) << r.status();
    return PromptTokens(*r);
  };
  const char* const text =
      R"({"arrival_ms": 0, "prompt_tokens": 40, "prefix": [["a", 30]], "output_tokens": 1})";
  const std::vector<TokenId> first = parse(text, 1), second = parse(text, 2);
  ASSERT_EQ(first.size(), 40u);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 30, second.begin()));
  EXPECT_NE(first[30], second[30]);
  // An answer by name is what a later prompt continues.
  const auto answer = ParseTraceLine(
      R"({"arrival_ms": 0, "prompt_tokens": 1, "output_tokens": 8, "answer": "a"})", 3);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(TokenOf(answer->answer, 0), first[0]);
}

TEST(TraceFile, MalformedLinesAreRefusedByLineAndField) {
  const std::string path = ::testing::TempDir() + "/malformed_trace.jsonl";
  const char* const good = R"({"arrival_ms": 5, "prompt_tokens": 3, "output_tokens": 2})";
  for (const auto& [line, says] : std::vector<std::pair<std::string, std::string>>{
           {"{", "byte"},
           {"[1]", "object"},
           {"null", "object"},
           {R"({"prompt_tokens": 3, "output_tokens": 2})", "arrival_ms"},
           {R"({"arrival_ms": -1, "prompt_tokens": 3, "output_tokens": 2})", "arrival_ms=-1"},
           {R"({"arrival_ms": 1e300, "prompt_tokens": 3, "output_tokens": 2})", "arrival_ms"},
           {R"({"arrival_ms": "5", "prompt_tokens": 3, "output_tokens": 2})", "arrival_ms"},
           {R"({"arrival_ms": 4, "prompt_tokens": 3, "output_tokens": 2})", "line before"},
           {R"({"arrival_ms": 5, "output_tokens": 2})", "prompt_tokens=0"},
           {R"({"arrival_ms": 5, "prompt_tokens": 0, "output_tokens": 2})", "prompt_tokens=0"},
           {R"({"arrival_ms": 5, "prompt_tokens": 3})", "output_tokens"},
           {R"({"arrival_ms": 5, "prompt_tokens": 3, "output_tokens": 0})", "output_tokens=0"},
           {R"({"arrival_ms": 5, "prompt_tokens": 3, "output_tokens": 5000000})", "output_tokens"},
           {R"({"arrival_ms": 5, "prompt_tokens": 2.5, "output_tokens": 2})", "prompt_tokens=2.5"},
           {R"({"arrival_ms": 5, "prompt_tokens": 99999999999, "output_tokens": 2})", "prompt"},
           {R"({"arrival_ms": 5, "prefix": 3, "output_tokens": 2})", "prefix"},
           {R"({"arrival_ms": 5, "prefix": [["a"]], "output_tokens": 2})", "pairs"},
           {R"({"arrival_ms": 5, "prefix": [["a", 0]], "output_tokens": 2})", "prefix tokens=0"},
           {R"({"arrival_ms": 5, "prefix": [[1, 1]], "output_tokens": 2})", "prefix name"},
           {R"({"arrival_ms": 5, "prefix": [["a", 4000000], ["b", 4000000]], "output_tokens": 2})",
            "prompt_tokens=8000000"},
           {R"({"arrival_ms": 5, "prefix": [["a", 9]], "prompt_tokens": 8, "output_tokens": 2})",
            "contradicts"},
           {R"({"arrival_ms": 5, "token_ids": [], "output_tokens": 2})", "token_ids"},
           {R"({"arrival_ms": 5, "token_ids": [-1], "output_tokens": 2})", "token_ids=-1"},
           {R"({"arrival_ms": 5, "token_ids": [2147483648], "output_tokens": 2})", "token_ids"},
           {R"({"arrival_ms": 5, "token_ids": [1], "prompt_tokens": 2, "output_tokens": 2})",
            "contradicts"},
           {R"({"arrival_ms": 5, "token_ids": [1], "prefix": [["a", 1]], "output_tokens": 2})",
            "exclude"},
           {R"({"arrival_ms": 5, "prompt_tokens": 3, "output_tokens": 2, "priority": 3e9})",
            "priority"},
           {R"({"arrival_ms": 5, "prompt_tokens": 3, "output_tokens": 2, "tenant": 1})", "tenant"},
           {R"({"arrival_ms": 5, "prompt_tokens": 3, "output_tokens": 2, "answer": 1})", "answer"},
           {R"({"arrival_ms": 5, "prompt_tokens": 3, "output_token": 2})", "output_token is not"},
       }) {
    std::ofstream(path) << good << "\n\n" << line << "\n";
    auto source = OpenTrace(path);
    ASSERT_TRUE(source.ok());
    TraceRequest r;
    ASSERT_TRUE((*source)->Next(r).value());
    const auto next = (*source)->Next(r);
    ASSERT_FALSE(next.ok()) << line;
    EXPECT_EQ(next.status().code(), absl::StatusCode::kInvalidArgument) << next.status();
    EXPECT_EQ(Message(next.status()).find(path + ":3: "), 0u) << next.status();
    EXPECT_NE(Message(next.status()).find(says), std::string::npos) << next.status();
  }
  std::remove(path.c_str());
  EXPECT_EQ(OpenTrace("no/such/trace.jsonl").status().code(), absl::StatusCode::kNotFound);
}

// Whatever a line says, it is a request within the limits or an error.
TEST(TraceFile, ChangedBytesNeverGiveARequestBeyondTheLimits) {
  const std::string good =
      R"({"arrival_ms": 12.5, "prompt_tokens": 40, "prefix": [["a", 16], ["b", 8]], )"
      R"("output_tokens": 7, "answer": "c", "priority": 1, "tenant": "t"})";
  Random random(3);
  int64_t read = 0, refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string line = good;
    for (int32_t k = random.Between(1, 3); k > 0; --k) {
      const auto at = static_cast<size_t>(random.Between(0, static_cast<int32_t>(line.size()) - 1));
      switch (random.Between(0, 2)) {
        case 0:
          line[at] = static_cast<char>(random.Between(0, 255));
          break;
        case 1:
          line.erase(at, 1);
          break;
        default:
          line.insert(at, 1, "0123456789[]{},\"-e."[random.Between(0, 18)]);
      }
    }
    const auto r = ParseTraceLine(line, 1);
    if (!r.ok()) {
      ++refused;
      continue;
    }
    ++read;
    ASSERT_GE(NumPromptTokens(*r), 1);
    ASSERT_LE(NumPromptTokens(*r), kMaxTraceTokens);
    ASSERT_GE(r->output_tokens, 1);
    ASSERT_LE(r->output_tokens, kMaxTraceTokens);
    ASSERT_GE(r->arrival_us, 0);
  }
  EXPECT_GT(read, 300);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace quire
