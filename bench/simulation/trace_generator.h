// bench/simulation/trace_generator.h -- traces from a few numbers and a seed.
//
// Called by `quire simulate` and tests. The same spec gives the same requests on any machine.
//
// Arrivals: poisson; gamma (burstiness = coefficient of variation of the gaps: above 1 they come in
// bursts); on_off (poisson while on, nothing while off; both of exponential length).
// Prompts: own (nothing is shared); tree (system prompt, then one of its few-shot examples, then
// the user's own tokens); chat (conversations: each prompt is all that was said, answers included).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "bench/simulation/fields.h"
#include "bench/simulation/trace.h"

namespace quire {

struct TraceSpec {
  int64_t requests = 1000;
  uint64_t seed = 1;
  double rate = 4;  // requests per second, on average
  std::string arrivals = "poisson";
  double burstiness = 4;
  double on_s = 10, off_s = 20;
  std::string prompts = "own";
  int32_t prompt_min = 64, prompt_max = 512;  // a user's own tokens
  int32_t output_min = 16, output_max = 128;
  double long_share = 0;  // of requests with lengths of their own
  int32_t long_prompt_min = 2048, long_prompt_max = 6144;
  int32_t long_output_min = 16, long_output_max = 64;
  int32_t num_systems = 8, system_tokens = 512;
  int32_t num_few_shots = 4, few_shot_tokens = 256;  // of each system prompt
  double skew = 1;                                   // of systems, few-shots and tenants: Zipf
  double turns = 5;                                  // of a conversation, on average
  double think_s = 10;                               // between its turns, on average
  int32_t chat_tokens = 4096;  // a conversation ends before prompt and output exceed this
  int32_t tenants = 0;         // 0: none are named
  int32_t priorities = 1;      // levels, evenly

  template <typename Self, typename Visitor>
  static void VisitFields(Self& s, Visitor&& visit) {
    constexpr double kMax = 1e9, kTokens = 1 << 20;
    visit(FieldInfo{"requests", "requests in all", 1, 1e12}, s.requests);
    visit(FieldInfo{"seed", "of the trace", 0, 1e18}, s.seed);
    visit(FieldInfo{"rate", "requests per second, on average", 1e-6, kMax}, s.rate);
    visit(FieldInfo{"arrivals", "how they come", 0, 0, "poisson|gamma|on_off"}, s.arrivals);
    visit(FieldInfo{"burstiness", "gamma: standard deviation of gaps over their mean", 0.05, 20},
          s.burstiness);
    visit(FieldInfo{"on_s", "on_off: seconds with arrivals, on average", 1e-3, kMax}, s.on_s);
    visit(FieldInfo{"off_s", "on_off: seconds without", 0, kMax}, s.off_s);
    visit(FieldInfo{"prompts", "what prompts share", 0, 0, "own|tree|chat"}, s.prompts);
    visit(FieldInfo{"prompt_min", "tokens of the user's own", 1, kTokens}, s.prompt_min);
    visit(FieldInfo{"prompt_max", "", 1, kTokens}, s.prompt_max);
    visit(FieldInfo{"output_min", "tokens", 1, kTokens}, s.output_min);
    visit(FieldInfo{"output_max", "", 1, kTokens}, s.output_max);
    visit(FieldInfo{"long_share", "of requests that are long ones", 0, 1}, s.long_share);
    visit(FieldInfo{"long_prompt_min", "tokens of a long one's own", 1, kTokens},
          s.long_prompt_min);
    visit(FieldInfo{"long_prompt_max", "", 1, kTokens}, s.long_prompt_max);
    visit(FieldInfo{"long_output_min", "tokens", 1, kTokens}, s.long_output_min);
    visit(FieldInfo{"long_output_max", "", 1, kTokens}, s.long_output_max);
    visit(FieldInfo{"num_systems", "tree, chat: system prompts", 1, 1e6}, s.num_systems);
    visit(FieldInfo{"system_tokens", "of each", 0, kTokens}, s.system_tokens);
    visit(FieldInfo{"num_few_shots", "tree: few-shot examples of each system prompt", 1, 1e6},
          s.num_few_shots);
    visit(FieldInfo{"few_shot_tokens", "of each", 0, kTokens}, s.few_shot_tokens);
    visit(FieldInfo{"skew", "of systems, few-shots, tenants: Zipf; 0: evenly", 0, 8}, s.skew);
    visit(FieldInfo{"turns", "chat: of a conversation, on average", 1, 1000}, s.turns);
    visit(FieldInfo{"think_s", "chat: seconds from turn to turn, on average", 0, kMax}, s.think_s);
    visit(FieldInfo{"chat_tokens", "chat: longest prompt and output", 2, kTokens}, s.chat_tokens);
    visit(FieldInfo{"tenants", "that share the server; 0: none are named", 0, 1e6}, s.tenants);
    visit(FieldInfo{"priorities", "levels, evenly", 1, 100}, s.priorities);
  }
};

// Starting points: uniform, bursty, on_off, mix (a tenth are long), tree, chat.
// ERRORS: kInvalidArgument listing the names.
absl::StatusOr<TraceSpec> NamedTrace(std::string_view name);

// ERRORS: kInvalidArgument naming fields that contradict each other.
absl::StatusOr<std::unique_ptr<TraceSource>> GenerateTrace(const TraceSpec& spec);

}  // namespace quire
