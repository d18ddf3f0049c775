// server/front_door.cc -- see front_door.h.
#include "server/front_door.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "base/json.h"

namespace quire {
namespace {

constexpr size_t kMaxLoggedBytes = 64 << 10;

// As the model gets it, on one line.
void LogPrompt(const Generation& generation, const Tokenizer& tokenizer) {
  std::string text = tokenizer.Decode(generation.request->prompt, /*skip_special_tokens=*/false);
  const size_t bytes = text.size();
  if (bytes > kMaxLoggedBytes) text.resize(kMaxLoggedBytes);
  JsonWriter quoted;
  quoted.String(text);
  spdlog::info("prompt id={} bytes={} text={}", generation.client_id, bytes, quoted.text());
}

}  // namespace

absl::StatusOr<Admitted> FrontDoor::Admit(const pb::GenerateRequest& request, Arrival arrival,
                                          bool unary) {
  arrival.id = edge_.NewId();
  arrival.time = Clock::now();
  absl::StatusOr<Admitted> admitted = Check(request, arrival, unary);
  if (!admitted.ok()) edge_.CountRefused(admitted.status());
  return admitted;
}

absl::StatusOr<Admitted> FrontDoor::Check(const pb::GenerateRequest& request,
                                          const Arrival& arrival, bool unary) {
  ASSIGN_OR_RETURN(QueueSlot slot, edge_.Reserve());  // before any work is done for it
  RETURN_IF_ERROR(access_.TakeRequest(arrival.account.get(), arrival.time));
  ASSIGN_OR_RETURN(Generation generation, FromProto(request, model_, arrival, unary));
  if (arrival.account != nullptr) {
    arrival.account->TakeTokens(static_cast<int64_t>(generation.request->prompt.size()),
                                arrival.time);
  }
  if (log_prompts_) LogPrompt(generation, *model_.tokenizer);
  return Admitted{std::move(slot), std::move(generation)};
}

}  // namespace quire
