#include "server/cli/admin_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace quire {
namespace {

namespace pb = ::quire::v1;

std::string Bytes(uint64_t bytes) {
  if (bytes < (1u << 20)) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / 1024);
  if (bytes < (10ull << 30)) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 0x1p20);
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / 0x1p30);
}

std::string Duration(double ms) {
  if (ms < 1e4) return fmt::format("{:.0f} ms", ms);
  if (ms < 6e5) return fmt::format("{:.1f} s", ms / 1e3);
  return fmt::format("{:.1f} min", ms / 6e4);
}

// What can be told apart at a glance.
std::string Short(const std::string& hash) {
  std::string hex;
  for (size_t i = 0; i < std::min<size_t>(hash.size(), 6); ++i) {
    hex += fmt::format("{:02x}", static_cast<unsigned char>(hash[i]));
  }
  return hex;
}

std::string Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? "-"
                    : fmt::format("{:.1f}%",
                                  100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

// "<1 ms: 3, <64 ms: 10"; empty buckets left out.
template <typename Buckets>
std::string Histogram(const Buckets& buckets) {
  std::string text;
  for (int i = 0; i < buckets.size(); ++i) {
    if (buckets[i] == 0) continue;
    text += fmt::format("{}<{}: {}", text.empty() ? "" : ", ",
                        Duration(static_cast<double>(uint64_t{1} << i)), buckets[i]);
  }
  return text.empty() ? "none" : text;
}

std::string DropsText(const pb::Drops& d) {
  return fmt::format(
      "evicted {}, orphaned {}, flushed {}, shrunk {}, merged {}, rewritten {}, unshared {}, "
      "failed {}",
      d.evicted(), d.orphaned(), d.flushed(), d.shrunk(), d.merged(), d.rewritten(), d.unshared(),
      d.failed());
}

const char* NameOf(pb::BlockState state) {
  return state == pb::BLOCK_STATE_USED     ? "used"
         : state == pb::BLOCK_STATE_CACHED ? "cached"
                                           : "empty";
}

const char* NameOf(pb::BranchState state) {
  switch (state) {
    case pb::BRANCH_STATE_QUEUED:
      return "queued";
    case pb::BRANCH_STATE_RUNNING:
      return "running";
    case pb::BRANCH_STATE_PREEMPTED:
      return "preempted";
    case pb::BRANCH_STATE_SWAPPED:
      return "swapped";
    case pb::BRANCH_STATE_PARKED:
      return "parked";
    default:
      return "?";
  }
}

std::string TableText(const pb::TableInfo& table, const char* what) {
  std::string text = fmt::format("    group {} {}:", table.group(), what);
  for (const uint32_t block : table.blocks()) {
    text += block == 0 ? " -" : fmt::format(" {}", block);
  }
  return text + "\n";
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (u < ' ' || u >= 0x7f || c == '"' || c == '\\') {
      out += fmt::format("\\x{:02x}", u);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace

std::string StatsText(const pb::BlockStats& s) {
  std::string text = fmt::format(
      "blocks of {} tokens: {} = {} used ({}) + {} cached + {} empty\n"
      "  used: {} pinned, {} shared; {} references, sharing ratio {:.2f}{}\n",
      s.block_size(), s.total_blocks(), s.used_blocks(), Share(s.used_blocks(), s.total_blocks()),
      s.cached_blocks(), s.empty_blocks(), s.pinned_blocks(), s.shared_blocks(), s.logical_blocks(),
      s.sharing_ratio(),
      s.retiring_blocks() > 0 ? fmt::format("; {} go when they come back", s.retiring_blocks())
                              : "");
  if (s.host_total_blocks() > 0) {
    text += fmt::format("host tier: {} = {} swapped + {} cached + {} empty; saved {}, loaded {}\n",
                        s.host_total_blocks(), s.swapped_blocks(), s.host_cached_blocks(),
                        s.host_total_blocks() - s.swapped_blocks() - s.host_cached_blocks(),
                        s.saved_blocks(), s.loaded_blocks());
  }
  if (s.has_files()) {
    const pb::FileTierStats& f = s.files();
    uint64_t faults = 0;
    for (const auto& fault : f.faults()) faults += fault.second;
    text += fmt::format(
        "file tier: {} entries, {}, {} queued; {} of {} reads found, {} written, {} evicted, {} "
        "without room, {} dropped at fault{}\n",
        f.entries(), Bytes(f.bytes()), Bytes(f.queued_bytes()), f.hits(), f.gets(), f.written(),
        f.evicted(), f.dropped_queue_full() + f.dropped_no_room(), faults,
        f.write_errors() > 0
            ? fmt::format("; {} writes failed, last: {}", f.write_errors(), f.last_write_error())
            : "");
  }
  text += fmt::format(
      "requests: {} live, {} of them queued; sequences: {} running, {} waiting\n"
      "since start: {} steps, {} tokens generated, {} preemptions ({} by swap, {} swapped in)\n"
      "prefix cache: {} of {} prompt tokens found ({}), {} of hits in the same step, {} by copy\n"
      "  {} nodes, {} roots, {} pins; forks {}, copies {}, merged {}, collisions {}\n",
      s.live_requests(), s.queued_requests(), s.running_sequences(), s.waiting_sequences(),
      s.steps(), s.generated_tokens(), s.preemptions(), s.swapped_preemptions(), s.swap_ins(),
      s.cached_tokens(), s.prompt_tokens(), Share(s.cached_tokens(), s.prompt_tokens()),
      s.in_step_hit_tokens(), s.partial_hit_tokens(), s.prefix_nodes() - s.prefix_roots(),
      s.prefix_roots(), s.pins(), s.forks(), s.copied_blocks(), s.merged_blocks(), s.collisions());
  const pb::SchedulerStats& d = s.scheduler();
  text += fmt::format(
      "scheduler: policy {}{}, changed {} times; a step takes {:.2f} ms + {:.1f} us a token\n"
      "  guesses: {} of {} right ({}), {} further chains; beams: {} steps, {} forks\n",
      d.policy(), d.paused() ? " (paused)" : "", d.policy_changes(), d.step_fixed_us() / 1e3,
      d.step_us_per_token(), d.accepted_draft_tokens(), d.draft_tokens(),
      Share(d.accepted_draft_tokens(), d.draft_tokens()), d.draft_chains(), d.beam_steps(),
      d.beam_forks());
  for (int i = 0; i < s.pools_size(); ++i) {
    const pb::PoolStats& p = s.pools(i);
    text += fmt::format(
        "pool {}: {} = {} used + {} cached + {} empty\n"
        "  found again {}, retentions that ran out {}\n"
        "  dropped: {}\n"
        "  evicted after: {}\n"
        "  unused before: {}\n",
        i, p.total_blocks(), p.used_blocks(), p.cached_blocks(), p.empty_blocks(), p.revived(),
        p.expired(), DropsText(p.drops()), Histogram(p.lifetime_ms()), Histogram(p.idle_ms()));
    if (p.host_total_blocks() > 0) {
      text += fmt::format("  host tier dropped: {}\n", DropsText(p.host_drops()));
    }
  }
  return text;
}

std::string BlocksText(const pb::BlockBatch& all) {
  std::string text = fmt::format(
      "{:>4} {:>8} {:<6} {:>4} {:>5} {:>10} {:>8} {:>10} {:>10} {:<12} {}\n", "pool", "block",
      "state", "refs", "group", "to token", "priority", "ttl", "unused", "hash", "held by");
  for (const pb::BlockInfo& b : all.blocks()) {
    std::string holders = b.pinned() ? "(pin)" : "";
    for (const std::string& id : b.request_ids()) holders += (holders.empty() ? "" : " ") + id;
    const auto sealed = [&](const std::string& value) { return b.sealed() ? value : "-"; };
    text += fmt::format(
        "{:>4} {:>8} {:<6} {:>4} {:>5} {:>10} {:>8} {:>10} {:>10} {:<12} {}\n", b.pool(), b.block(),
        NameOf(b.state()), b.refs(), sealed(std::to_string(b.group())),
        sealed(std::to_string(b.end_token())), sealed(std::to_string(b.priority())),
        b.has_ttl_ms() ? Duration(static_cast<double>(b.ttl_ms())) : "-",
        Duration(static_cast<double>(b.idle_ms())), sealed(Short(b.hash())), holders);
  }
  return text;
}

std::string RequestsText(const pb::RequestBatch& all, bool tables) {
  std::string text =
      fmt::format("{:<24} {:>3} {:<9} {:>9} {:>9} {:>8} {:>8} {:>15} {:>7} {:>9} {:>11} {:>8} {}\n",
                  "request", "out", "state", "age", "queued", "prompt", "cached", "computed",
                  "blocks", "put back", "guesses", "priority", "tenant");
  for (const pb::RequestInfo& r : all.requests()) {
    for (const pb::BranchInfo& b : r.branches()) {
      int64_t blocks = 0;
      for (const pb::TableInfo& t : b.tables()) {
        blocks += t.blocks_size() - std::count(t.blocks().begin(), t.blocks().end(), 0u);
      }
      text += fmt::format(
          "{:<24} {:>3} {:<9} {:>9} {:>9} {:>8} {:>8} {:>15} {:>7} {:>9} {:>11} {:>8} {}\n",
          r.request_id(), b.output_index(), NameOf(b.state()), Duration(r.age_ms()),
          Duration(r.queue_ms()), r.prompt_tokens(), r.cached_tokens(),
          fmt::format("{}/{}", b.computed_tokens(), b.total_tokens()), blocks, r.preemptions(),
          fmt::format("{}/{}", r.accepted_draft_tokens(), r.draft_tokens()), r.priority(),
          Quoted(r.tenant()));
      if (!tables) continue;
      for (const pb::TableInfo& t : b.tables()) text += TableText(t, "blocks");
      for (const pb::TableInfo& t : b.swapped_tables()) text += TableText(t, "host slots");
    }
  }
  return text;
}

std::string TreeText(const pb::PrefixBatch& all) {
  std::map<int32_t, const pb::PrefixNode*> nodes;
  std::map<int32_t, std::vector<int32_t>> children;  // of nodes
  std::map<int64_t, std::vector<int32_t>> of_root;
  for (const pb::PrefixNode& n : all.nodes()) {
    nodes[n.node()] = &n;
    if (n.parent() < 0) {
      of_root[n.root()].push_back(n.node());
    } else {
      children[n.parent()].push_back(n.node());
    }
  }
  std::string text;
  // (first node of a run, its depth in the printed tree); a stack, so that no depth is too much.
  std::vector<std::pair<int32_t, size_t>> open;
  const auto push = [&](const std::vector<int32_t>& ids, size_t indent) {
    for (auto it = ids.rbegin(); it != ids.rend(); ++it) open.emplace_back(*it, indent);
  };
  const auto print_run = [&](int32_t first, size_t indent) {
    const pb::PrefixNode* n = nodes[first];
    const uint32_t from = n->parent() < 0 ? 0 : nodes[n->parent()]->depth_tokens();
    int64_t blocks = 0;
    int64_t slots = 0;
    std::string tokens;
    while (true) {
      for (const pb::PrefixContent& c : n->contents()) ++(c.has_block() ? blocks : slots);
      for (const uint32_t id : n->token_ids()) tokens += fmt::format(" {}", id);
      const std::vector<int32_t>& next = children[n->node()];
      if (n->children() != 1 || next.size() != 1) break;
      n = nodes[next[0]];
    }
    text += fmt::format(
        "{:{}}{}..{} tokens: {} blocks{}, hash {}{}\n", "", 2 * indent, from, n->depth_tokens(),
        blocks, slots > 0 ? fmt::format(", {} in the host tier", slots) : "", Short(n->hash()),
        n->children() > 1 ? fmt::format(", {} branches", n->children()) : "");
    if (!tokens.empty()) text += fmt::format("{:{}} {}\n", "", 2 * indent + 1, tokens);
    push(children[n->node()], indent + 1);
  };
  for (const pb::PrefixRoot& root : all.roots()) {
    text += fmt::format("root {}: salt {}{}{}\n", root.root(), Quoted(root.cache_salt()),
                        root.rope_regime().empty() ? "" : ", rope " + Quoted(root.rope_regime()),
                        root.is_private() ? ", of one request only" : "");
    push(of_root[root.root()], 1);
    while (!open.empty()) {
      const auto [node, indent] = open.back();
      open.pop_back();
      print_run(node, indent);
    }
  }
  return text.empty() ? "nothing is cached\n" : text;
}

std::string MemoryText(const pb::MemoryProfile& m) {
  std::string text;
  const auto line = [&](const std::string& what, uint64_t bytes, const std::string& note = {}) {
    text += fmt::format("{:<28}{:>14}{}\n", what, Bytes(bytes), note.empty() ? "" : "  " + note);
  };
  line("limit", m.limit(), m.limit_source());
  line("others at the start", m.others());
  line("available", m.available(), m.available_source());
  line("budget", m.budget());
  line("weights", m.weights());
  line("activations of a full step", m.activation_peak());
  for (const pb::MemoryPart& part : m.activation_parts()) line("  " + part.what(), part.bytes());
  line("reserve", m.reserve());
  if (m.draft_model() > 0) line("draft model", m.draft_model(), "weights, cache and activations");
  line("kv pool", m.kv_pool(),
       fmt::format("{} blocks of {} tokens by {}, {} bytes a token", m.num_blocks(), m.block_size(),
                   m.rule(), m.bytes_per_token()));
  for (int i = 0; i < m.pools_size(); ++i) {
    const pb::PoolMemory& p = m.pools(i);
    line(fmt::format("pool {} now", i), p.bytes(),
         fmt::format("{} blocks of {}", p.num_blocks(), Bytes(p.block_bytes())));
    if (p.host_blocks() > 0) {
      line("  host tier", p.host_bytes(), fmt::format("{} blocks", p.host_blocks()));
    }
    for (const pb::CacheGroupInfo& g : p.groups()) {
      text += fmt::format("  group {}: {}, {} layers{}\n", g.group(), g.kind(), g.num_layers(),
                          g.window() > 0 ? fmt::format(", window {}", g.window()) : "");
    }
  }
  line("resident now", m.resident());
  return text;
}

std::string PinsText(const pb::ListPinsResponse& pins) {
  std::string text = fmt::format("{:>6} {:>8} {:>10} {}\n", "pin", "tokens", "ttl", "salt");
  for (const pb::Pin& pin : pins.pins()) {
    text += fmt::format("{:>6} {:>8} {:>10} {}\n", pin.pin_id(), pin.num_tokens(),
                        pin.has_ttl_ms() ? Duration(static_cast<double>(pin.ttl_ms())) : "-",
                        Quoted(pin.cache_salt()));
  }
  return text + fmt::format("{} blocks pinned\n", pins.pinned_blocks());
}

std::string ConfigText(const pb::Config& config) {
  std::string text;
  for (int i = 0; i < config.num_blocks_size(); ++i) {
    text += fmt::format("pool {}: {} blocks{}\n", i, config.num_blocks(i),
                        static_cast<uint32_t>(i) == config.main_pool() ? " (num_blocks)" : "");
  }
  const auto line = [&](const char* name, const auto& value) {
    text += fmt::format("{}={}\n", name, value);
  };
  line("max_num_seqs", config.max_num_seqs());
  line("max_num_batched_tokens", config.max_num_batched_tokens());
  line("max_queued_requests", config.max_queued_requests());
  line("watermark", config.watermark());
  line("scheduling_policy", config.scheduling_policy());
  line("long_prefill_token_threshold", config.long_prefill_token_threshold());
  line("target_itl_ms", config.target_itl_ms());
  line("num_speculative_tokens", config.num_speculative_tokens());
  return text;
}

std::string TransferText(const pb::CacheTransfer& t) {
  return fmt::format("{} prefix blocks, {} tokens, {}; {} were there already, {} dropped\n",
                     t.entries(), t.tokens(), Bytes(t.bytes()), t.known(), t.dropped());
}

}  // namespace quire
