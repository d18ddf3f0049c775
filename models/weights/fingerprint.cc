#include "models/weights/fingerprint.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "base/status.h"

namespace quire {

std::string WeightsFingerprint(const WeightSource& weights) {
  std::vector<std::string> names = weights.Names();
  std::sort(names.begin(), names.end());
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  CHECK(state != nullptr, "no memory for a hash state");
  XXH3_128bits_reset(state.get());
  for (const std::string& name : names) {
    const std::optional<TensorView> view = weights.Find(name);
    std::string head = name;
    head.push_back('\0');
    if (view) {
      head += view->ToString();
    }
    head.push_back('\0');
    XXH3_128bits_update(state.get(), head.data(), head.size());
    if (view) XXH3_128bits_update(state.get(), view->data, view->num_bytes());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace quire
