// tests/paged_traces_test.cc -- what transformers' paged cache does with requests, against the
// manager and the policies that serve.
//
// tests/reference/paged/cache.json: operations on requests (prefix match, allocate, complete, fork,
// free), with tables and counts after each, and the slots that a step reads and writes. Kept of the
// recording: all of the traces of full groups but the order of free blocks; of traces with windows,
// where nothing is ever shared there, the index lists. index.json: more of those. masks.json: who
// sees whom in packed batches.
//
// Held to them: what a prefix finds, which allocations fit, how many blocks are free, who shares
// what with whom (up to the numbering), how many contents are known, and the place of every token
// that is read or written. Where we differ on purpose, the test names each event and why (see
// kDiffers); block_manager_golden_test tells more about evictions and forks.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/json.h"
#include "paged_cache/block_manager.h"

namespace quire {
namespace {

Json Reference(const std::string& name) {
  std::ifstream file(QUIRE_TEST_REFERENCE "/paged/" + name);
  std::stringstream text;
  text << file.rdbuf();
  absl::StatusOr<Json> json = Json::Parse(text.str());
  EXPECT_TRUE(json.ok()) << name << ": " << json.status();
  return json.ok() ? *std::move(json) : Json();
}
std::vector<int64_t> Ints(const Json& array) {
  std::vector<int64_t> v;
  for (size_t i = 0; i < array.size(); ++i) v.push_back(array.at(i).as_int().value());
  return v;
}
int32_t Int(const Json& value) { return static_cast<int32_t>(value.as_int().value()); }

// ---- requests ----

struct Req {
  SequenceTables tables;
  std::vector<PrefixHash> chain;
};

class Replay {
 public:
  Replay(int32_t num_blocks, int32_t block_size) : size_(block_size) {
    layout_.block_size = block_size;
    layout_.groups = {{.group = {CacheKind::kFull, block_size, 0}, .num_layers = 1}};
    layout_.pools = {{64}};
    pools_.emplace_back(num_blocks, block_size);
    manager_.emplace(layout_, pools_);
    root_ = manager_->InternRoot("");
  }

  int64_t hits = 0, refused = 0, merged = 0, forked = 0, shared = 0;
  int64_t evictions() const {
    return pools_[0].stats().dropped[static_cast<int>(DropReason::kEvicted)];
  }

  // Why the trace can't be followed from here on; "" if it can.
  std::string Apply(const Json& e) {
    const std::string op(*e["op"].as_string());
    const std::string name(e["request"].as_string().value_or(""));
    if (op == "prefix_match") return Match(e, name);
    if (op == "allocate") {
      Req& r = At(name);
      const int32_t have = r.tables.groups[0].num_pages();
      const bool grown =
          manager_->Grow(r.tables, have * size_, (have + Int(e["n"])) * size_, copies_);
      EXPECT_EQ(grown, *e["will_succeed"].as_bool());
      refused += !grown;
      if (r.tables.groups[0].num_pages() == 0) requests_.erase(name);
    } else if (op == "indices") {
      Indices(e, At(name));
    } else if (op == "complete") {
      Req& r = requests_.at(name);
      std::vector<TokenId> tokens;
      for (const int64_t t : Ints(e["tokens"])) tokens.push_back(static_cast<TokenId>(t));
      const int64_t before = manager_->stats().dedupe_hits;
      manager_->Commit(r.tables, tokens, (r.tables.num_sealed + Int(e["n"])) * size_, r.chain);
      merged += manager_->stats().dedupe_hits - before;
    } else if (op == "fork") {
      Fork(e, name);
    } else if (op == "free") {
      requests_.erase(name);
    } else {
      ADD_FAILURE() << "operation " << op;
    }
    return "";
  }

  void Check(const Json& e) {
    const Json state = e["state"];
    EXPECT_EQ(pools_[0].num_available(), Int(state["free"]));
    if (evictions() == 0) {
      EXPECT_EQ(manager_->num_prefix_nodes() - manager_->num_roots(),
                static_cast<size_t>(Int(state["hashed"])));
    }
    std::map<int64_t, PageId> ours;
    std::map<PageId, int64_t> theirs;
    std::vector<const SequenceTables*> live;
    for (const auto& [name, r] : requests_) {
      live.push_back(&r.tables);
      const std::vector<int64_t> table = Ints(e["tables"][name]);
      const std::span<const PageId> ids = r.tables.groups[0].ids();
      ASSERT_EQ(ids.size(), table.size()) << name;
      for (size_t i = 0; i < ids.size(); ++i) {
        shared += ours.contains(table[i]);
        EXPECT_EQ(ours.emplace(table[i], ids[i]).first->second, ids[i]) << name << " block " << i;
        EXPECT_EQ(theirs.emplace(ids[i], table[i]).first->second, table[i]) << name << " " << i;
        const Json refs = state["refs"][std::to_string(table[i])];
        if (!refs.is_null()) {
          EXPECT_EQ(pools_[0].refs(ids[i]), Int(refs));
        }
      }
    }
    EXPECT_EQ(e["tables"].keys().size(), requests_.size());
    const absl::Status audit = manager_->Audit(live);
    EXPECT_TRUE(audit.ok()) << audit;
  }

 private:
  Req& At(const std::string& name) {
    const auto it = requests_.find(name);
    if (it != requests_.end()) return it->second;
    return requests_.emplace(name, Req{manager_->NewTables(root_), {}}).first->second;
  }

  std::string Match(const Json& e, const std::string& name) {
    std::vector<TokenId> tokens;
    for (const int64_t t : Ints(e["tokens"])) tokens.push_back(static_cast<TokenId>(t));
    Req r;
    ExtendChain(tokens, size_, r.chain);
    tokens.push_back(
        0);  // theirs may match a whole prompt; who computes its last token is elsewhere
    PrefixHit hit = manager_->MatchPrefix(root_, tokens, r.chain);
    r.chain.resize(static_cast<size_t>(hit.num_tokens / size_));
    if (hit.num_tokens != Int(e["result"]) && evictions() > 0) {
      return fmt::format("finds {} tokens, there {}: other blocks were evicted before",
                         hit.num_tokens, Int(e["result"]));
    }
    EXPECT_EQ(hit.num_tokens, Int(e["result"]));
    hits += hit.num_tokens > 0;
    if (hit.num_tokens > 0) {
      r.tables = std::move(hit.tables);
      requests_.insert_or_assign(name, std::move(r));
    }
    return "";
  }

  void Indices(const Json& e, const Req& r) {
    const int32_t past = Int(e["past"]);
    const int32_t query = Int(e["query"]);
    const std::vector<int64_t> table = Ints(e["tables"][std::string(*e["request"].as_string())]);
    const std::vector<int64_t> read = Ints(e["read"].at(0));
    const std::vector<int64_t> write = Ints(e["write"].at(0));
    std::vector<PageId> row(table.size());
    manager_->FillReadRow(r.tables, 0, row);
    ASSERT_EQ(read.size(), static_cast<size_t>(past + query));
    ASSERT_EQ(write.size(), static_cast<size_t>(query));
    const auto renamed = [&](int64_t slot) {
      const auto at = std::find(table.begin(), table.end(), slot / size_);
      return row[static_cast<size_t>(at - table.begin())] * int64_t{size_} + slot % size_;
    };
    for (int32_t pos = 0; pos < past + query; ++pos) {
      EXPECT_EQ(row[static_cast<size_t>(pos / size_)] * int64_t{size_} + pos % size_,
                renamed(read[static_cast<size_t>(pos)]));
    }
    for (int32_t i = 0; i < query; ++i) {
      EXPECT_EQ(write[static_cast<size_t>(i)], read[static_cast<size_t>(past + i)]);
    }
  }

  // As in block_manager_golden_test: there, a fork copies incomplete blocks at once, here the first
  // write does. So each child writes at once.
  void Fork(const Json& e, const std::string& name) {
    const Json children = e["children"];
    const auto src = Ints(e["copy_src"]);
    const size_t before = copies_.size();
    for (size_t i = 0; i < children.size(); ++i) {
      const Req& parent = requests_.at(name);
      Req child{manager_->Fork(parent.tables), parent.chain};
      ASSERT_TRUE(manager_->Grow(child.tables, child.tables.num_sealed * size_,
                                 child.tables.groups[0].num_pages() * size_, copies_));
      requests_.emplace(*children.at(i).as_string(), std::move(child));
    }
    // Pages that hold no token before the first write are replaced without a copy.
    EXPECT_LE(copies_.size() - before, src.size());
    forked += static_cast<int64_t>(children.size());
  }

  int32_t size_;
  CacheLayout layout_;
  std::vector<PagePool> pools_;
  std::optional<BlockManager> manager_;
  RootId root_ = 0;
  std::map<std::string, Req> requests_;
  std::vector<PageCopy> copies_;
};

// Where and why a trace can't be followed any further.
const std::map<std::string, std::pair<size_t, std::string>> kDiffers = {
    // There, the block freed last goes first; here the one that nobody has used for longest.
    {"prefix_reuse_and_eviction",
     {19, "finds 12 tokens, there 8: other blocks were evicted before"}},
};

TEST(PagedTraces, RequestsOnFullGroups) {
  const Json traces = Reference("cache.json");
  int64_t events = 0, hits = 0, refused = 0, merged = 0, forked = 0, shared = 0, evictions = 0;
  std::map<std::string, std::pair<size_t, std::string>> left;
  for (const std::string& name : traces.keys()) {
    const Json trace = traces[name];
    if (!trace["sliding_window"].is_null()) continue;
    Replay replay(Int(trace["num_blocks"]), Int(trace["block_size"]));
    for (size_t i = 0; i < trace["events"].size() && !HasFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << name << " event " << i);
      const Json event = trace["events"].at(i);
      const std::string why = replay.Apply(event);
      if (!why.empty()) {
        left[name] = {i, why};
        break;
      }
      replay.Check(event);
      ++events;
    }
    hits += replay.hits;
    refused += replay.refused;
    merged += replay.merged;
    forked += replay.forked;
    shared += replay.shared;
    evictions += replay.evictions();
  }
  EXPECT_EQ(left, kDiffers);
  EXPECT_EQ(events, 372);  // of 377
  EXPECT_GT(hits, 30);
  EXPECT_GT(refused, 5);
  EXPECT_GT(merged, 10);
  EXPECT_GT(forked, 30);
  EXPECT_GT(shared, 1000);
  EXPECT_GT(evictions, 0);
}

// ---- where tokens lie ----

// One step of a fresh sequence, in groups as given.
class Step {
 public:
  Step(int32_t block_size, const std::vector<CacheGroup>& groups, int32_t past, int32_t query) {
    layout_.block_size = block_size;
    for (const CacheGroup& g : groups) layout_.groups.push_back({.group = g, .num_layers = 1});
    layout_.pools = {{64}};
    const int32_t pages = (past + query + block_size) / block_size + 1;
    pools_.emplace_back(pages * static_cast<int32_t>(groups.size()), block_size);
    manager_.emplace(layout_, pools_);
    tables_.emplace(manager_->NewTables(manager_->InternRoot("")));
    tokens_.resize(static_cast<size_t>(past + query), 1);
    Compute(0, past);
    EXPECT_TRUE(manager_->Grow(*tables_, past, past + query, copies_));
    for (size_t g = 0; g < groups.size(); ++g) {
      rows_.emplace_back(static_cast<size_t>(pages), kNullPage);
      manager_->FillReadRow(*tables_, static_cast<int32_t>(g), rows_.back());
      slots_.emplace_back(static_cast<size_t>(query));
      manager_->FillWriteSlots(*tables_, static_cast<int32_t>(g), past, slots_.back());
    }
    manager_->Commit(*tables_, tokens_, past + query, chain_);
  }
  // Our slot of a position that the step reads, or -1: given back.
  int64_t read(size_t g, int32_t pos) const {
    const PageId page = rows_[g][static_cast<size_t>(pos / layout_.block_size)];
    return page == kNullPage ? -1 : int64_t{page} * layout_.block_size + pos % layout_.block_size;
  }
  int64_t write(size_t g, int32_t i) const { return slots_[g][static_cast<size_t>(i)]; }
  bool kept_after(size_t g, int32_t pos) const {
    return tables_->groups[g][pos / layout_.block_size] != kNullPage;
  }

 private:
  void Compute(int32_t from, int32_t to) {
    if (to == from) return;
    EXPECT_TRUE(manager_->Grow(*tables_, from, to, copies_));
    manager_->Commit(*tables_, tokens_, to, chain_);
  }
  CacheLayout layout_;
  std::vector<PagePool> pools_;
  std::optional<BlockManager> manager_;
  std::optional<SequenceTables> tables_;
  std::vector<TokenId> tokens_;
  std::vector<PrefixHash> chain_;
  std::vector<PageCopy> copies_;
  std::vector<std::vector<PageId>> rows_;
  std::vector<std::vector<int64_t>> slots_;
};

struct Counts {
  int64_t steps = 0, read = 0, fresh = 0, written = 0, trash = 0;
};

// There, a window is a ring of as many slots and a step's own tokens are read from where they were
// computed (the sentinel); here, pages are given back as they leave the window and a step reads its
// tokens from the cache, too. So the slots are compared as positions.
void CompareIndices(const Json& e, const Step& step, size_t group, int32_t block_size,
                    int32_t window, const std::vector<int64_t>& table, int64_t sentinel,
                    int64_t trash, const Json& read_list, const Json& write_list, Counts& counts) {
  const int32_t past = Int(e["past"]);
  const int32_t query = Int(e["query"]);
  const std::vector<int64_t> read = Ints(read_list);
  const std::vector<int64_t> write = Ints(write_list);
  const auto theirs = [&](int32_t pos) {
    const int32_t at = window > 0 ? pos % window : pos;
    return table[static_cast<size_t>(at / block_size)] * block_size + at % block_size;
  };
  const CacheGroup policy{CacheKind::kSlidingWindow, 1, window};
  const int32_t first = window > 0 ? FirstLivePage(policy, past) : 0;
  ASSERT_EQ(read.size(), static_cast<size_t>(past - first + query));
  std::map<int64_t, int64_t> page_of;  // renaming
  for (int32_t pos = first; pos < past + query; ++pos) {
    const int64_t slot = read[static_cast<size_t>(pos - first)];
    const int64_t ours = step.read(group, pos);
    ASSERT_GE(ours, 0) << "position " << pos << " is gone";
    if (slot == sentinel && window > 0) {
      ASSERT_GE(pos, past);
      ++counts.fresh;
      continue;
    }
    ASSERT_EQ(slot, theirs(pos)) << "position " << pos;
    // Equal up to the numbering of blocks.
    EXPECT_EQ(ours % block_size, pos % block_size);
    const int64_t page = ours / block_size;
    EXPECT_EQ(page_of.emplace(pos / block_size, page).first->second, page);
    ++counts.read;
  }
  ASSERT_EQ(write.size(), static_cast<size_t>(query));
  for (int32_t i = 0; i < query; ++i) {
    const int32_t pos = past + i;
    EXPECT_EQ(step.write(group, i), step.read(group, pos)) << "it is read where it is written";
    if (write[static_cast<size_t>(i)] == trash && window > 0) {
      ++counts.trash;
      EXPECT_LT(pos, FirstLivePage(policy, past + query)) << "nobody will see it";
      continue;
    }
    ++counts.written;
    EXPECT_EQ(write[static_cast<size_t>(i)], theirs(pos));
    if (window == 0 || pos >= FirstLivePage(policy, past + query)) {
      EXPECT_TRUE(step.kept_after(group, pos));
    }
  }
  ++counts.steps;
}

TEST(PagedTraces, IndexListsOfStepsInWindows) {
  const Json traces = Reference("cache.json");
  Counts counts;
  for (const std::string& name : traces.keys()) {
    const Json trace = traces[name];
    if (trace["sliding_window"].is_null()) continue;
    const int32_t block_size = Int(trace["block_size"]);
    const int32_t window = Int(trace["sliding_window"]);
    std::vector<CacheGroup> groups;
    for (size_t g = 0; g < trace["group_types"].size(); ++g) {
      const bool slides = *trace["group_types"].at(g).as_string() == "sliding_attention";
      groups.push_back(
          {slides ? CacheKind::kSlidingWindow : CacheKind::kFull, block_size, slides ? window : 0});
    }
    for (size_t i = 0; i < trace["events"].size() && !HasFatalFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << name << " event " << i);
      const Json e = trace["events"].at(i);
      const Step step(block_size, groups, Int(e["past"]), Int(e["query"]));
      for (size_t g = 0; g < groups.size(); ++g) {
        CompareIndices(e, step, g, block_size, groups[g].window, Ints(e["table"].at(g)),
                       Int(trace["sentinel_index"]), Int(trace["write_trash_index"]),
                       e["read"].at(g), e["write"].at(g), counts);
      }
    }
  }
  EXPECT_EQ(counts.steps, 342);
  EXPECT_GT(counts.read, 2000);
  EXPECT_GT(counts.written, 1000);
  EXPECT_GT(counts.fresh, 500);
  EXPECT_GT(counts.trash, 50);
}

TEST(PagedTraces, IndexListsOfGivenTables) {
  const Json cases = Reference("index.json");
  Counts full, sliding;
  for (size_t i = 0; i < cases.size() && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(testing::Message() << "case " << i);
    const Json e = cases.at(i);
    const bool slides = *e["kind"].as_string() == "sliding";
    const int32_t block_size = Int(e["block_size"]);
    const int32_t window = slides ? Int(e["sliding_window"]) : 0;
    const Step step(block_size,
                    {{slides ? CacheKind::kSlidingWindow : CacheKind::kFull, block_size, window}},
                    Int(e["past"]), Int(e["query"]));
    CompareIndices(
        e, step, 0, block_size, window, Ints(e["table"]), slides ? Int(e["sentinel_index"]) : -1,
        slides ? Int(e["write_trash_index"]) : -1, e["read"], e["write"], slides ? sliding : full);
  }
  EXPECT_EQ(full.steps, 30);
  EXPECT_EQ(sliding.steps, 144);
  EXPECT_GT(sliding.trash, 100);
  EXPECT_GT(sliding.fresh, 100);
}

// Who sees whom: of each packed row, the keys of its own sequence from the first that the policy
// keeps to the query itself.
TEST(PagedTraces, MasksOfPackedBatches) {
  const Json cases = Reference("masks.json");
  ASSERT_EQ(cases.size(), 6u);
  int rows = 0, windowed = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "case " << i);
    const Json c = cases.at(i);
    const int32_t window = Int(c["sliding_window"]);  // 1 means none
    const CacheGroup group = window == 1 ? CacheGroup{CacheKind::kFull, 1, 0}
                                         : CacheGroup{CacheKind::kSlidingWindow, 1, window};
    int32_t all_keys = 0;
    for (size_t s = 0; s < c["q_k_lengths"].size(); ++s) {
      all_keys += Int(c["q_k_lengths"].at(s).at(1));
    }
    size_t row = 0;
    int32_t first_key = 0;
    for (size_t s = 0; s < c["q_k_lengths"].size(); ++s) {
      const int32_t queries = Int(c["q_k_lengths"].at(s).at(0));
      const int32_t keys = Int(c["q_k_lengths"].at(s).at(1));
      EXPECT_EQ(Int(c["cumulative_k"].at(s)), first_key);
      for (int32_t q = 0; q < queries; ++q, ++row) {
        const int32_t pos = keys - queries + q;
        std::string want(static_cast<size_t>(all_keys), '0');
        for (int32_t k = FirstLivePage(group, pos); k <= pos; ++k) {
          want[static_cast<size_t>(first_key + k)] = '1';
        }
        EXPECT_EQ(std::string(*c["rows"].at(row).as_string()), want) << "row " << row;
        ++rows;
        windowed += FirstLivePage(group, pos) > 0;
      }
      first_key += keys;
    }
    EXPECT_EQ(row, c["rows"].size());
  }
  EXPECT_GT(rows, 25);
  EXPECT_GT(windowed, 8);
}

}  // namespace
}  // namespace quire
