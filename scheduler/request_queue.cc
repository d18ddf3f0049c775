#include "scheduler/request_queue.h"

#include <algorithm>
#include <memory>

namespace quire {
namespace {

// Tenants without a waiting request are forgotten beyond so many; whoever is forgotten begins like
// a new one, at the least counter of those that wait.
constexpr size_t kMaxTenants = 4096;

}  // namespace

RequestQueue::RequestQueue(const SchedulerOptions& options, Clock::time_point start,
                           CachedTokens cached_tokens)
    : options_(options),
      start_(start),
      cached_tokens_(std::move(cached_tokens)),
      sweep_at_(kMaxTenants) {}

int64_t RequestQueue::StaticRank(const LiveRequest& live) const {
  const int64_t arrival_us =
      std::chrono::duration_cast<std::chrono::microseconds>(live.submitted - start_).count();
  const Request& r = *live.request;
  switch (options_.policy) {
    case SchedulingPolicy::kPriority:
      return arrival_us - int64_t{r.priority} * options_.priority_aging_ms * 1000;
    case SchedulingPolicy::kShortestFirst:
      return arrival_us + (static_cast<int64_t>(r.prompt.size()) + r.stop.max_tokens) *
                              options_.shortest_aging_us_per_token;
    case SchedulingPolicy::kFcfs:
    case SchedulingPolicy::kFair:
    case SchedulingPolicy::kPrefixAware:
      return 0;
  }
  return 0;
}

RequestQueue::Key RequestQueue::KeyOf(const LiveRequest& live) const {
  if (options_.policy != SchedulingPolicy::kFair) return {live.rank, live.order};
  const auto it = tenants_.find(live.request->tenant);
  return {it == tenants_.end() ? -1 : it->second->number, live.order};
}

void RequestQueue::Push(LiveRequest& live) {
  live.rank = StaticRank(live);
  if (options_.policy == SchedulingPolicy::kFair) {
    Settle();
    Tenant& tenant = TenantOf(live);
    if (tenant.num_queued++ == 0) {
      const double least = least_.empty() ? last_served_ : least_.begin()->first;
      tenant.served = std::max(tenant.served, least);
      least_.emplace(tenant.served, tenant.number);
    }
  }
  const bool fresh = queue_.emplace(KeyOf(live), &live).second;
  CHECK(fresh, "request {} is queued twice", live.request->id);
}

void RequestQueue::Erase(LiveRequest& live) {
  const size_t erased = queue_.erase(KeyOf(live));
  CHECK(erased == 1, "request {} is not queued", live.request->id);
  if (options_.policy != SchedulingPolicy::kFair) return;
  Settle();
  Tenant& tenant = TenantOf(live);
  if (--tenant.num_queued > 0) return;
  least_.erase({tenant.served, tenant.number});
  last_served_ = tenant.served;
}

LiveRequest* RequestQueue::Next() {
  if (queue_.empty()) return nullptr;
  switch (options_.policy) {
    case SchedulingPolicy::kFcfs:
    case SchedulingPolicy::kPriority:
    case SchedulingPolicy::kShortestFirst:
      return queue_.begin()->second;
    case SchedulingPolicy::kFair:
      Settle();
      return queue_.lower_bound({least_.begin()->second, 0})->second;
    case SchedulingPolicy::kPrefixAware:
      return NextByPrefix();
  }
  return nullptr;
}

LiveRequest* RequestQueue::NextByPrefix() {
  LiveRequest* const first = queue_.begin()->second;
  if (first->num_overtaken >= kMaxOvertaken) return first;
  LiveRequest* best = first;
  int32_t most = cached_tokens_(*first);
  int32_t looked_at = 1;
  for (auto it = std::next(queue_.begin()); it != queue_.end() && looked_at < kWindow;
       ++it, ++looked_at) {
    const int32_t cached = cached_tokens_(*it->second);
    if (cached <= most) continue;
    best = it->second;
    most = cached;
  }
  return best;
}

void RequestQueue::OnAdmitted(LiveRequest& live) {
  if (!IsStamped(options_.policy)) return;
  live.rank = next_stamp_++;
  if (options_.policy == SchedulingPolicy::kFair) return;
  int32_t looked_at = 0;
  for (auto it = queue_.begin(); it != queue_.end() && looked_at < kWindow; ++it, ++looked_at) {
    if (it->second->order > live.order) break;
    ++it->second->num_overtaken;
  }
}

void RequestQueue::OnServed(const LiveRequest& live, int32_t prompt_tokens, int32_t output_tokens) {
  if (options_.policy != SchedulingPolicy::kFair) return;
  Tenant& tenant = TenantOf(live);
  tenant.pending += prompt_tokens * options_.fair_prompt_weight + output_tokens;
  if (tenant.touched) return;
  tenant.touched = true;
  touched_.push_back(&tenant);
}

// Brings least_ up to date; O(tenants served since the last time).
void RequestQueue::Settle() {
  for (Tenant* const tenant : touched_) {
    const double served = tenant->served + std::exchange(tenant->pending, 0.0);
    if (tenant->num_queued > 0) {
      auto node = least_.extract({tenant->served, tenant->number});
      CHECK(!node.empty(), "tenant {} waits and is not in order", tenant->number);
      node.value().first = served;
      least_.insert(std::move(node));
    }
    tenant->served = served;
    tenant->touched = false;
  }
  touched_.clear();
}

RequestQueue::Tenant& RequestQueue::TenantOf(const LiveRequest& live) {
  const auto it = tenants_.find(live.request->tenant);
  if (it != tenants_.end()) return *it->second;
  if (tenants_.size() >= sweep_at_) {
    absl::erase_if(tenants_, [](const auto& entry) {
      return entry.second->num_queued == 0 && !entry.second->touched;
    });
    sweep_at_ = std::max(kMaxTenants, 2 * tenants_.size());
  }
  auto tenant = std::make_unique<Tenant>();
  tenant->number = next_tenant_++;
  return *tenants_.emplace(live.request->tenant, std::move(tenant)).first->second;
}

double RequestQueue::served(const std::string& tenant) const {
  const auto it = tenants_.find(tenant);
  return it == tenants_.end() ? 0.0 : it->second->served + it->second->pending;
}

void RequestQueue::Rebuild(const std::vector<LiveRequest*>& admitted) {
  std::vector<LiveRequest*> queued;
  for (const auto& [key, live] : queue_) queued.push_back(live);
  std::sort(queued.begin(), queued.end(),
            [](const LiveRequest* a, const LiveRequest* b) { return a->order < b->order; });
  queue_.clear();
  tenants_.clear();
  least_.clear();
  touched_.clear();
  last_served_ = 0;
  next_stamp_ = 0;
  for (LiveRequest* const live : admitted) {
    live->rank = IsStamped(options_.policy) ? next_stamp_++ : StaticRank(*live);
  }
  for (LiveRequest* const live : queued) {
    live->num_overtaken = 0;
    Push(*live);
  }
}

absl::Status RequestQueue::Audit() const {
  if (options_.policy != SchedulingPolicy::kFair) return absl::OkStatus();
  size_t waiting = 0;
  size_t queued = 0;
  for (const auto& [name, tenant] : tenants_) {
    queued += static_cast<size_t>(tenant->num_queued);
    waiting += tenant->num_queued > 0;
    if (tenant->num_queued > 0 && !least_.contains({tenant->served, tenant->number})) {
      return Error(absl::StatusCode::kInternal, "S6: tenant '{}' waits and is not in order", name);
    }
  }
  if (queued != queue_.size() || waiting != least_.size()) {
    return Error(absl::StatusCode::kInternal, "S6: {} requests of {} tenants, counted {} of {}",
                 queue_.size(), least_.size(), queued, waiting);
  }
  return absl::OkStatus();
}

}  // namespace quire
