// scheduler/request_queue.h -- requests that were never scheduled yet, and which of them is next.
//
//   fcfs            the one that came first.
//   priority        by arrival - priority x priority_aging_ms: a level is worth so much waiting.
//                   Whoever comes later than (p' - p) x aging can't pass.
//   shortest_first  by arrival + (prompt + max_tokens) x shortest_aging_us_per_token: a request is
//                   passed only by shorter ones that come within that time.
//   fair            virtual token counter (Sheng et al., OSDI 2024, arXiv:2401.00588): the tenant
//                   that was served least; a tenant that comes back after a pause starts at the
//                   least counter of those that wait, so that idling saves nothing up. Service is
//                   counted as it is given: prompts when they are admitted, outputs token by token.
//                   Two tenants that both wait all the time differ by at most twice
//                   max(largest prompt x weight, tokens that max_num_seqs branches can still make).
//   prefix_aware    of the kWindow oldest, the one of which most is cached (or being computed); but
//                   a request passed kMaxOvertaken times is next. So the p-th of the queue is
//                   started after at most (p + 1) x (kMaxOvertaken + 1) others.
//
// Bounds hold since the others in front all end (contract C5) and nobody who is passed is passed
// without limit: see tests/policy_test.cc.
//
// Thread: engine thread. Each call costs O(log queue), Next with prefix_aware O(kWindow) lookups.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "scheduler/live_request.h"
#include "scheduler/options.h"

namespace quire {

class RequestQueue {
 public:
  static constexpr int32_t kWindow = 16;
  static constexpr int32_t kMaxOvertaken = 16;

  // Tokens of a waiting request that need not be computed.
  using CachedTokens = std::function<int32_t(LiveRequest&)>;

  // start: the time that ranks count from.
  RequestQueue(const SchedulerOptions& options, Clock::time_point start,
               CachedTokens cached_tokens);

  // Sets its rank; it must not be queued.
  void Push(LiveRequest& live);
  void Erase(LiveRequest& live);
  // The next by the policy; null if there is none.
  LiveRequest* Next();
  // `live` was taken out by Erase and is running now: its rank may change, once.
  void OnAdmitted(LiveRequest& live);
  // So many tokens of the prompt and of outputs were computed for `live`.
  void OnServed(const LiveRequest& live, int32_t prompt_tokens, int32_t output_tokens);

  bool empty() const { return queue_.empty(); }
  size_t size() const { return queue_.size(); }
  bool contains(const LiveRequest& live) const { return queue_.contains(KeyOf(live)); }
  // Whether requests that were admitted and put back come before all others in the queue (else
  // ranks decide).
  bool admitted_first() const { return IsStamped(options_.policy); }
  // Whether a waiting request may take the place of a running one of lower priority.
  bool may_preempt() const { return options_.policy == SchedulingPolicy::kPriority; }

  // The options have another policy now. admitted: in their present order.
  void Rebuild(const std::vector<LiveRequest*>& admitted);

  absl::Status Audit() const;
  double served(const std::string& tenant) const;  // virtual tokens; 0 if unknown

 private:
  struct Key {
    int64_t rank;  // fair: the tenant's number
    uint64_t order;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Tenant {
    int64_t number = 0;
    double served = 0;   // as ordered in least_
    double pending = 0;  // served since
    int32_t num_queued = 0;
    bool touched = false;  // is in touched_
  };

  static bool IsStamped(SchedulingPolicy policy) {
    return policy == SchedulingPolicy::kFair || policy == SchedulingPolicy::kPrefixAware;
  }
  int64_t StaticRank(const LiveRequest& live) const;
  Key KeyOf(const LiveRequest& live) const;
  LiveRequest* NextByPrefix();
  void Settle();
  Tenant& TenantOf(const LiveRequest& live);

  const SchedulerOptions& options_;
  const Clock::time_point start_;
  const CachedTokens cached_tokens_;
  std::map<Key, LiveRequest*> queue_;
  int64_t next_stamp_ = 0;

  // kFair only. Tenants are kept while others may compare with them, at most kMaxTenants idle ones.
  absl::flat_hash_map<std::string, std::unique_ptr<Tenant>> tenants_;
  std::set<std::pair<double, int64_t>> least_;  // (served, number) of those that wait
  std::vector<Tenant*> touched_;
  int64_t next_tenant_ = 0;
  size_t sweep_at_;         // tenants
  double last_served_ = 0;  // counter of the tenant that was the last to have nothing waiting
};

}  // namespace quire
