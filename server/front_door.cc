// server/front_door.cc -- see front_door.h.
#include "server/front_door.h"

#include <utility>

namespace quire {

absl::StatusOr<Admitted> FrontDoor::Admit(const pb::GenerateRequest& request, Arrival arrival,
                                          bool unary) {
  arrival.id = edge_.NewId();
  arrival.time = Clock::now();
  absl::StatusOr<Admitted> admitted = Check(request, arrival, unary);
  if (!admitted.ok()) edge_.CountRefused();
  return admitted;
}

absl::StatusOr<Admitted> FrontDoor::Check(const pb::GenerateRequest& request,
                                          const Arrival& arrival, bool unary) {
  ASSIGN_OR_RETURN(QueueSlot slot, edge_.Reserve());  // before any work is done for it
  ASSIGN_OR_RETURN(Generation generation, FromProto(request, model_, arrival, unary));
  return Admitted{std::move(slot), std::move(generation)};
}

}  // namespace quire
