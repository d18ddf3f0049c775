#include "bench/simulation/trace_generator.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>

namespace quire {
namespace {

// Kinds of ids, see MixId.
enum : uint64_t { kSystem = 1, kFewShot, kUser, kAnswer };

constexpr double kMaxArrivalUs = 1e15;  // as in a file

class Arrivals {
 public:
  // events_per_s: of requests, or of conversations.
  Arrivals(const TraceSpec& spec, double events_per_s)
      : spec_(spec), mean_us_(1e6 / events_per_s), random_(MixId(spec.seed, 100, 0)) {
    if (spec_.arrivals == "on_off") {
      mean_us_ *= spec_.on_s / (spec_.on_s + spec_.off_s);  // while on
      left_us_ = random_.Exponential(spec_.on_s * 1e6);
    }
  }
  double NextUs() {
    if (spec_.arrivals == "gamma") {
      now_us_ += random_.Gamma(1 / (spec_.burstiness * spec_.burstiness), mean_us_);
      return now_us_;
    }
    double gap = random_.Exponential(mean_us_);
    if (spec_.arrivals == "on_off") {
      while (gap > left_us_) {
        gap -= left_us_;
        now_us_ += left_us_ + (spec_.off_s > 0 ? random_.Exponential(spec_.off_s * 1e6) : 0.0);
        left_us_ = random_.Exponential(spec_.on_s * 1e6);
      }
      left_us_ -= gap;
    }
    return now_us_ += gap;
  }

 private:
  const TraceSpec spec_;
  double mean_us_;
  Random random_;
  double now_us_ = 0;
  double left_us_ = 0;  // of the present on period
};

class Generator final : public TraceSource {
 public:
  explicit Generator(const TraceSpec& spec)
      : spec_(spec),
        is_chat_(spec.prompts == "chat"),
        arrivals_(spec, is_chat_ ? spec.rate / spec.turns : spec.rate),
        random_(MixId(spec.seed, 101, 0)),
        systems_(spec.num_systems, spec.skew),
        few_shots_(spec.num_few_shots, spec.skew),
        tenants_(std::max(spec.tenants, 1), spec.skew),
        next_arrival_us_(arrivals_.NextUs()) {}

  absl::StatusOr<bool> Next(TraceRequest& r) override {
    if (made_ == spec_.requests) return false;
    ++made_;
    const double at_us =
        open_.empty() ? next_arrival_us_ : std::min(next_arrival_us_, open_.top().at_us);
    if (at_us > kMaxArrivalUs) {
      return InvalidArgument("requests={} come too slowly, number {} after {} seconds; raise rate",
                             spec_.requests, made_, kMaxArrivalUs / 1e6);
    }
    if (!open_.empty() && open_.top().at_us <= next_arrival_us_) {
      Chat chat = open_.top();
      open_.pop();
      NextTurn(std::move(chat), r);
      return true;
    }
    Chat chat{.at_us = next_arrival_us_, .order = conversations_++};
    next_arrival_us_ = arrivals_.NextUs();
    if (spec_.tenants > 0) chat.tenant = fmt::format("t{}", tenants_.Pick(random_));
    chat.priority = random_.Between(0, spec_.priorities - 1);
    if (spec_.prompts != "own") {
      const uint64_t system = systems_.Pick(random_);
      Append(chat.said, {MixId(spec_.seed, kSystem, system), spec_.system_tokens});
      if (spec_.prompts == "tree") {
        const uint64_t few_shot = few_shots_.Pick(random_);
        const uint64_t n = static_cast<uint64_t>(spec_.num_few_shots);
        Append(chat.said,
               {MixId(spec_.seed, kFewShot, system * n + few_shot), spec_.few_shot_tokens});
      }
    }
    // Turns are uniform with the mean asked for.
    if (is_chat_) {
      chat.turns_left =
          static_cast<int32_t>(std::lround(1 + 2 * (spec_.turns - 1) * random_.Uniform()));
    }
    NextTurn(std::move(chat), r);
    return true;
  }

 private:
  struct Chat {
    double at_us = 0;
    uint64_t order = 0;
    std::string tenant;
    int32_t priority = 0;
    int32_t turns_left = 1;
    std::vector<PromptSegment> said;
    friend bool operator>(const Chat& a, const Chat& b) {
      return std::pair(a.at_us, a.order) > std::pair(b.at_us, b.order);
    }
  };

  static void Append(std::vector<PromptSegment>& prompt, PromptSegment segment) {
    if (segment.num_tokens > 0) prompt.push_back(segment);
  }

  void NextTurn(Chat chat, TraceRequest& r) {
    const bool is_long = spec_.long_share > 0 && random_.Uniform() < spec_.long_share;
    const int32_t own = is_long ? random_.Between(spec_.long_prompt_min, spec_.long_prompt_max)
                                : random_.Between(spec_.prompt_min, spec_.prompt_max);
    const int32_t output = is_long ? random_.Between(spec_.long_output_min, spec_.long_output_max)
                                   : random_.Between(spec_.output_min, spec_.output_max);
    const auto number = static_cast<uint64_t>(made_);
    Append(chat.said, {MixId(spec_.seed, kUser, number), own});
    r = {.arrival_us = static_cast<int64_t>(chat.at_us),
         .prompt = chat.said,
         .answer = MixId(spec_.seed, kAnswer, number),
         .output_tokens = output,
         .priority = chat.priority,
         .tenant = chat.tenant};
    if (!is_chat_ || --chat.turns_left < 1) return;
    Append(chat.said, {r.answer, output});
    int64_t said = 0;
    for (const PromptSegment& segment : chat.said) said += segment.num_tokens;
    if (said + spec_.prompt_max + spec_.output_max > spec_.chat_tokens) return;
    chat.at_us += spec_.think_s > 0 ? random_.Exponential(spec_.think_s * 1e6) : 0.0;
    open_.push(std::move(chat));
  }

  const TraceSpec spec_;
  const bool is_chat_;
  Arrivals arrivals_;
  Random random_;
  const ZipfPicker systems_, few_shots_, tenants_;
  double next_arrival_us_;
  int64_t made_ = 0;
  uint64_t conversations_ = 0;
  // Conversations that go on, the next turn first.
  std::priority_queue<Chat, std::vector<Chat>, std::greater<>> open_;
};

}  // namespace

absl::StatusOr<TraceSpec> NamedTrace(std::string_view name) {
  TraceSpec s;
  if (name == "uniform") return s;
  if (name == "bursty") {
    s.arrivals = "gamma";
  } else if (name == "on_off") {
    s.arrivals = "on_off";
  } else if (name == "mix") {
    s.long_share = 0.1;
  } else if (name == "tree" || name == "chat") {
    s.prompts = std::string(name);
    s.prompt_min = 16;
    s.prompt_max = 128;
  } else {
    return InvalidArgument(
        "trace={} must be uniform, bursty, on_off, mix, tree, chat or a .jsonl file", name);
  }
  return s;
}

absl::StatusOr<std::unique_ptr<TraceSource>> GenerateTrace(const TraceSpec& s) {
  for (const auto& [name, low, high] : {std::tuple{"prompt", s.prompt_min, s.prompt_max},
                                        {"output", s.output_min, s.output_max},
                                        {"long_prompt", s.long_prompt_min, s.long_prompt_max},
                                        {"long_output", s.long_output_min, s.long_output_max}}) {
    if (low > high) {
      return InvalidArgument("{}_min={} must be at most {}_max={}", name, low, name, high);
    }
  }
  if (s.prompts == "chat" && s.system_tokens + s.prompt_max + s.output_max > s.chat_tokens) {
    return InvalidArgument(
        "chat_tokens={} must be at least system_tokens={} + prompt_max={} + output_max={}",
        s.chat_tokens, s.system_tokens, s.prompt_max, s.output_max);
  }
  return std::make_unique<Generator>(s);
}

}  // namespace quire
