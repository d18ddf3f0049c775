#include "models/weights/main_format.h"

#include <map>
#include <optional>
#include <string_view>

namespace quire {

std::string MainFormat(const WeightSource& weights) {
  std::map<std::string_view, size_t> bytes;
  for (const std::string& name : weights.Names()) {
    if (const std::optional<TensorView> view = weights.Find(name)) {
      bytes[NameOf(view->dtype)] += view->num_bytes();
    }
  }
  std::string_view best = "?";
  size_t most = 0;
  for (const auto& entry : bytes) {
    if (entry.second > most) {
      most = entry.second;
      best = entry.first;
    }
  }
  return std::string(best);
}

}  // namespace quire
