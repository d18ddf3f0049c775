// What operators see of the cache while a real model is served: every view at one moment, checked
// against the others. HARD-CASES B01 and A04 by RPC. What they do to the cache is in
// server_admin_actions_test.cc.
#include "server/admin/admin_convert.h"
#include "server/cli/admin_text.h"
#include "tests/support/model_rig.h"

namespace quire::server_test {
namespace {

using grpc::StatusCode;
using PoolPage = std::pair<uint32_t, uint32_t>;  // pool, block

RuntimeOptions Small(int32_t num_blocks) {
  RuntimeOptions o;
  o.block_size = 8;
  o.max_num_seqs = 8;
  o.max_num_batched_tokens = 64;
  o.max_model_len = 256;
  o.memory.num_blocks = num_blocks;
  return o;
}

void ExpectBooksAgree(const Moment& m) {
  const pb::BlockStats& s = m.stats;
  // States add up, per pool and in sum, and are what the blocks say one by one.
  std::map<std::pair<uint32_t, int>, uint32_t> by_state;
  std::map<uint32_t, uint64_t> refs;
  std::map<uint32_t, uint32_t> shared;
  for (const pb::BlockInfo& b : m.blocks.blocks()) {
    ++by_state[{b.pool(), b.state()}];
    refs[b.pool()] += b.refs();
    shared[b.pool()] += b.refs() > 1;
    EXPECT_EQ(b.refs() > 0, b.state() == pb::BLOCK_STATE_USED);
    EXPECT_TRUE(b.state() != pb::BLOCK_STATE_CACHED || b.sealed());
    EXPECT_TRUE(b.state() != pb::BLOCK_STATE_EMPTY || !b.sealed());
  }
  uint64_t total = 0;
  uint64_t logical = 0;
  for (int p = 0; p < s.pools_size(); ++p) {
    const auto pool = static_cast<uint32_t>(p);
    const pb::PoolStats& stats = s.pools(p);
    EXPECT_EQ(stats.used_blocks() + stats.cached_blocks() + stats.empty_blocks(),
              stats.total_blocks() + stats.retiring_blocks());
    EXPECT_EQ((by_state[{pool, pb::BLOCK_STATE_USED}]), stats.used_blocks());
    EXPECT_EQ((by_state[{pool, pb::BLOCK_STATE_CACHED}]), stats.cached_blocks());
    EXPECT_EQ((by_state[{pool, pb::BLOCK_STATE_EMPTY}]), stats.empty_blocks());
    EXPECT_EQ(refs[pool], stats.logical_blocks());
    EXPECT_EQ(shared[pool], stats.shared_blocks());
    total += stats.total_blocks();
    logical += stats.logical_blocks();
  }
  EXPECT_EQ(s.total_blocks(), total);
  EXPECT_EQ(s.logical_blocks(), logical);
  EXPECT_EQ(s.used_blocks() + s.cached_blocks() + s.empty_blocks(),
            s.total_blocks() + s.retiring_blocks());
  if (s.used_blocks() > 0) {
    EXPECT_DOUBLE_EQ(s.sharing_ratio(), static_cast<double>(logical) / s.used_blocks());
  }

  // B01: references are the entries of the tables, block by block, and the holders are theirs.
  std::map<PoolPage, uint32_t> entries;
  std::map<PoolPage, std::set<std::string>> holders;
  uint32_t swapped = 0;
  for (const pb::RequestInfo& r : m.requests.requests()) {
    for (const pb::BranchInfo& b : r.branches()) {
      EXPECT_LE(b.computed_tokens(), b.total_tokens());
      for (const pb::TableInfo& t : b.tables()) {
        for (const uint32_t block : t.blocks()) {
          if (block == 0) continue;
          ++entries[{t.pool(), block}];
          holders[{t.pool(), block}].insert(r.request_id());
        }
      }
      for (const pb::TableInfo& t : b.swapped_tables()) {
        swapped += static_cast<uint32_t>(t.blocks_size() -
                                         std::count(t.blocks().begin(), t.blocks().end(), 0u));
      }
    }
  }
  EXPECT_EQ(s.swapped_blocks(), swapped);
  for (const pb::BlockInfo& b : m.blocks.blocks()) {
    const PoolPage key{b.pool(), b.block()};
    EXPECT_EQ(b.refs(), entries[key]) << b.ShortDebugString();  // no pins here
    EXPECT_FALSE(b.pinned());
    EXPECT_EQ(std::set<std::string>(b.request_ids().begin(), b.request_ids().end()), holders[key]);
    entries.erase(key);
  }
  for (const auto& [key, count] : entries) EXPECT_EQ(count, 0u) << "block " << key.second;

  // The tree's contents are the sealed blocks, each once, with equal hashes and depths.
  std::map<int32_t, const pb::PrefixNode*> nodes;
  std::map<int32_t, uint32_t> children;
  std::map<std::pair<uint32_t, uint32_t>, const pb::PrefixNode*> of_block;  // (group, block)
  uint32_t host = 0;
  for (const pb::PrefixNode& n : m.tree.nodes()) {
    nodes[n.node()] = &n;
    EXPECT_EQ(n.hash().size(), 32u);
    EXPECT_EQ(n.token_ids_size(), 0) << "prompts are not shown unless asked for";
    if (n.parent() >= 0) {
      ASSERT_EQ(nodes.count(n.parent()), 1u) << "parents come first";
      EXPECT_EQ(n.depth_tokens(), nodes[n.parent()]->depth_tokens() + s.block_size());
      EXPECT_EQ(n.root(), nodes[n.parent()]->root());
      ++children[n.parent()];
    } else {
      EXPECT_EQ(n.depth_tokens(), s.block_size());
    }
    for (const pb::PrefixContent& c : n.contents()) {
      host += c.has_host_slot();
      EXPECT_TRUE(!c.has_block() || of_block.emplace(std::pair(c.group(), c.block()), &n).second);
    }
  }
  EXPECT_EQ(host, s.host_cached_blocks());
  for (const auto& [id, n] : nodes) EXPECT_EQ(n->children(), children[id]);
  size_t sealed = 0;
  for (const pb::BlockInfo& b : m.blocks.blocks()) {
    if (!b.sealed()) continue;
    ++sealed;
    const auto found = of_block.find({b.group(), b.block()});
    ASSERT_NE(found, of_block.end()) << b.ShortDebugString();
    const pb::PrefixNode& n = *found->second;
    EXPECT_EQ(b.hash(), n.hash());
    EXPECT_EQ(b.end_token(), n.depth_tokens());
    EXPECT_EQ(b.root(), n.root());
    EXPECT_TRUE(n.parent() < 0 || b.parent_hash() == nodes[n.parent()]->hash());
  }
  EXPECT_EQ(sealed, of_block.size());
  std::set<int64_t> roots;
  for (const pb::PrefixRoot& r : m.tree.roots()) EXPECT_TRUE(roots.insert(r.root()).second);
  for (const auto& [id, n] : nodes) EXPECT_EQ(roots.count(n->root()), 1u);
}

class AdminViews : public ::testing::TestWithParam<const char*> {};

// Forks, a prefix that several share, salts, and one that bypasses the cache, all at once.
TEST_P(AdminViews, AllViewsOfAMomentAgree) {
  ModelRig rig(GetParam(), Small(800));
  rig.executor().pause_ms = 15;
  const std::vector<TokenId> prefix = TestTokens(80, 1);
  std::vector<std::unique_ptr<Call>> calls;
  for (uint32_t i = 0; i < 4; ++i) {
    std::vector<TokenId> prompt = prefix;
    const std::vector<TokenId> own = TestTokens(9, 10 + i);
    prompt.insert(prompt.end(), own.begin(), own.end());
    pb::GenerateRequest request = ModelRig::Request(prompt, 150);
    request.set_request_id("request-" + std::to_string(i));
    if (i == 0) request.mutable_sampling()->set_n(3);
    if (i == 2) request.mutable_kv()->set_cache_salt("3:abc\n");
    if (i == 3) request.mutable_kv()->set_bypass_prefix_cache(true);
    calls.push_back(std::make_unique<Call>(rig.stub(), request));
  }
  for (auto& call : calls) {
    ASSERT_TRUE(call->Read());  // accepted
    ASSERT_TRUE(call->Read());  // its prompt is computed
  }
  bool shared = false;
  int moments = 0;
  std::string last;
  for (; moments < 12; ++moments) {
    const Moment m = rig.Look();
    ExpectBooksAgree(m);
    if (::testing::Test::HasFailure()) break;
    shared |= m.stats.shared_blocks() > 0 && m.stats.sharing_ratio() > 1;
    EXPECT_EQ(m.requests.requests_size(), 4);
    std::set<std::string> salts;
    int num_private = 0;
    for (const pb::PrefixRoot& r : m.tree.roots()) {
      salts.insert(r.cache_salt());
      num_private += r.is_private();
    }
    EXPECT_EQ(salts, (std::set<std::string>{"", "3:abc\n"}));
    EXPECT_EQ(num_private, 1);
    last = RequestsText(m.requests, true) + TreeText(m.tree) + BlocksText(m.blocks) +
           StatsText(m.stats);
  }
  EXPECT_TRUE(shared);
  for (const char* part : {"request-3", "running", "salt \"3:abc\\x0a\"", "of one request only"}) {
    EXPECT_NE(last.find(part), std::string::npos) << part << " in\n" << last;
  }
  for (auto& call : calls) {
    call->context.TryCancel();
    call->Finish();
  }
  rig.executor().pause_ms = 0;
  ASSERT_TRUE(rig.Eventually([&] { return rig.Stats().live_requests() == 0; }));
  const Moment idle = rig.Look();
  ExpectBooksAgree(idle);
  EXPECT_EQ(idle.stats.used_blocks(), 0u);
  EXPECT_GT(idle.stats.cached_blocks(), 0u);
  EXPECT_EQ(idle.requests.requests_size(), 0);
}
INSTANTIATE_TEST_SUITE_P(Models, AdminViews, ::testing::Values("llama", "mistral", "gemma3"));

// The pool is too small for both: one is put back, to the host tier.
TEST(AdminTest, SwappedRequestsShowTheirSlots) {
  RuntimeOptions options = Small(40);
  options.host_cache_memory_bytes = 4 << 20;
  ServerOptions server;
  server.preemption_mode = "swap";
  ModelRig rig("llama", options, server);
  rig.executor().pause_ms = 10;
  std::vector<std::unique_ptr<Call>> calls;
  for (uint32_t i = 0; i < 2; ++i) {
    calls.push_back(
        std::make_unique<Call>(rig.stub(), ModelRig::Request(TestTokens(100, 20 + i), 140)));
  }
  ASSERT_TRUE(calls[0]->Read());
  bool seen = false;
  for (int i = 0; i < 400 && !seen; ++i) {
    const Moment m = rig.Look();
    ExpectBooksAgree(m);
    ASSERT_FALSE(::testing::Test::HasFailure());
    for (const pb::RequestInfo& r : m.requests.requests()) {
      for (const pb::BranchInfo& b : r.branches()) {
        if (b.state() != pb::BRANCH_STATE_SWAPPED) continue;
        seen = true;
        EXPECT_GT(b.swapped_tokens(), 100u);
        EXPECT_EQ(r.preemptions(), 1u);
        EXPECT_GT(m.stats.swapped_blocks(), 0u);
        EXPECT_GE(m.stats.swapped_preemptions(), 1u);
      }
    }
    if (m.stats.live_requests() == 0) break;
  }
  EXPECT_TRUE(seen);
  rig.executor().pause_ms = 0;
  for (auto& call : calls) EXPECT_TRUE(call->Finish().ok());
  EXPECT_GE(rig.Stats().swap_ins(), 1u);
}

// A04 by RPC: what a preempted request finds again is no prefix hit.
TEST(AdminTest, A04_ResumedTokensAreCountedApart) {
  ModelRig rig("llama", Small(40));
  std::vector<std::unique_ptr<Call>> calls;
  for (uint32_t i = 0; i < 8; ++i) {
    std::vector<TokenId> prompt = TestTokens(60, 40 + i);
    prompt[0] = static_cast<TokenId>(i);
    calls.push_back(std::make_unique<Call>(rig.stub(), ModelRig::Request(prompt, 100)));
  }
  for (auto& call : calls) {
    EXPECT_TRUE(call->Finish().ok());
    EXPECT_EQ(call->answer.usage.cached_tokens(), 0u);
  }
  const pb::BlockStats s = rig.Stats();
  EXPECT_GT(s.preemptions(), 3u);
  EXPECT_EQ(s.cached_tokens(), 0u);
  EXPECT_EQ(s.prompt_tokens(), 8u * 60u);
  EXPECT_GT(s.resume_hit_tokens(), 0u);
  EXPECT_GT(s.pools(0).drops().evicted() + s.pools(0).drops().orphaned(), 0u);
}

// Each eviction has a time in both histograms; each reason its own counter.
TEST(AdminTest, EvictionsAreCountedByReasonAndTime) {
  ModelRig rig("llama", Small(40));
  for (uint32_t i = 0; i < 6; ++i) rig.Generate(ModelRig::Request(TestTokens(120, 60 + i), 2));
  pb::BlockStats s = rig.Stats();
  uint64_t lifetimes = 0;
  uint64_t idle = 0;
  for (const uint64_t n : s.pools(0).lifetime_ms()) lifetimes += n;
  for (const uint64_t n : s.pools(0).idle_ms()) idle += n;
  EXPECT_GT(s.pools(0).drops().evicted(), 20u);
  EXPECT_EQ(lifetimes, s.pools(0).drops().evicted());
  EXPECT_EQ(idle, s.pools(0).drops().evicted());
  // What became findable either still is or was dropped for a reason.
  const pb::Drops& d = s.pools(0).drops();
  const uint64_t dropped = d.evicted() + d.flushed() + d.orphaned() + d.rewritten() + d.unshared() +
                           d.shrunk() + d.failed() + d.merged();
  uint64_t sealed = 0;
  for (const pb::BlockInfo& b : rig.BlockList()) sealed += b.sealed();
  EXPECT_EQ(s.pools(0).sealed(), dropped + sealed);
  EXPECT_NE(StatsText(s).find("evicted after: <"), std::string::npos);
}

TEST(AdminTest, TokensAreShownOnlyIfAskedFor) {
  ModelRig rig("llama", Small(40));
  const std::vector<TokenId> prompt = TestTokens(24, 5);
  rig.Generate(ModelRig::Request(prompt, 1));
  EXPECT_EQ(rig.Tree().SerializeAsString().size(), rig.Tree(false).SerializeAsString().size());
  for (const pb::PrefixNode& n : rig.Nodes()) EXPECT_EQ(n.token_ids_size(), 0);
  std::vector<TokenId> shown;
  for (const pb::PrefixNode& n : rig.Nodes(true)) {
    shown.insert(shown.end(), n.token_ids().begin(), n.token_ids().end());
  }
  EXPECT_EQ(shown, prompt);  // one chain: parents first is its order
}

TEST(AdminTest, LimitsCutAndSaySo) {
  ModelRig rig("llama", Small(40));
  rig.Generate(ModelRig::Request(TestTokens(100, 6), 1));
  pb::InspectBlocksRequest request;
  request.set_limit(3);
  std::set<uint32_t> seen;
  int pages = 0;
  while (true) {  // page by page
    const pb::BlockBatch part = rig.Blocks(request);
    ASSERT_LE(part.blocks_size(), 3);
    for (const pb::BlockInfo& b : part.blocks()) EXPECT_TRUE(seen.insert(b.block()).second);
    ++pages;
    if (!part.truncated()) break;
    request.set_first_block(part.blocks(part.blocks_size() - 1).block() + 1);
  }
  EXPECT_EQ(seen.size(), 40u);
  EXPECT_EQ(pages, 14);
  pb::DumpPrefixTreeRequest tree;
  tree.set_limit(5);
  pb::PrefixBatch nodes;
  ASSERT_TRUE(ReadAll(&pb::Admin::Stub::DumpPrefixTree, rig.admin(), tree, nodes).ok());
  EXPECT_EQ(nodes.nodes_size(), 5);
  EXPECT_TRUE(nodes.truncated());
  tree.set_limit(12);
  nodes.Clear();
  ASSERT_TRUE(ReadAll(&pb::Admin::Stub::DumpPrefixTree, rig.admin(), tree, nodes).ok());
  EXPECT_EQ(nodes.nodes_size(), 12);  // 100 tokens are 12 blocks of 8
  EXPECT_FALSE(nodes.truncated());
  for (const uint32_t limit : {0u, 100'001u}) {
    pb::BlockBatch none;
    request.set_limit(limit);
    const grpc::Status status =
        ReadAll(&pb::Admin::Stub::InspectBlocks, rig.admin(), request, none);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(status.error_message(), "limit=" + std::to_string(limit) + " is outside [1, 100000]");
  }
  pb::InspectBlocksRequest pool;
  pool.set_pool(1);
  pb::BlockBatch none;
  const grpc::Status status = ReadAll(&pb::Admin::Stub::InspectBlocks, rig.admin(), pool, none);
  EXPECT_EQ(status.error_message(), "pool=1 must be below 1");
}

// More than one message: nothing is lost or doubled at the borders.
TEST(AdminTest, LongAnswersComeInBatches) {
  RigOptions options;
  options.num_blocks = 60'000;
  Rig rig(options);
  const auto admin = pb::Admin::NewStub(rig.admin_channel());
  pb::InspectBlocksRequest request;
  request.set_limit(50'000);
  pb::BlockBatch all;
  int num_batches = 0;
  ASSERT_TRUE(ReadAll(&pb::Admin::Stub::InspectBlocks, *admin, request, all, &num_batches).ok());
  EXPECT_GT(num_batches, 1);
  EXPECT_TRUE(all.truncated());
  ASSERT_EQ(all.blocks_size(), 50'000);
  for (int i = 0; i < all.blocks_size(); ++i) {
    ASSERT_EQ(all.blocks(i).block(), static_cast<uint32_t>(i + 1));
  }
}

TEST(AdminTest, FiltersByStateAndRequest) {
  ModelRig rig("llama", Small(60));
  rig.Generate(ModelRig::Request(TestTokens(40, 7), 1));
  rig.executor().pause_ms = 20;
  pb::GenerateRequest running = ModelRig::Request(TestTokens(40, 8), 150);
  running.set_request_id("mine");
  Call call(rig.stub(), running);
  ASSERT_TRUE(call.Read());
  pb::InspectBlocksRequest request;
  request.add_states(pb::BLOCK_STATE_CACHED);
  EXPECT_EQ(rig.Blocks(request).blocks_size(), 5);
  request.Clear();
  request.set_request_id("mine");
  const pb::BlockBatch held = rig.Blocks(request);
  EXPECT_GE(held.blocks_size(), 5);
  for (const pb::BlockInfo& b : held.blocks()) {
    ASSERT_EQ(b.request_ids_size(), 1);
    EXPECT_EQ(b.request_ids(0), "mine");
  }
  request.set_request_id("nobody");
  EXPECT_EQ(rig.Blocks(request).blocks_size(), 0);
  call.context.TryCancel();
  call.Finish();
}

TEST(AdminTest, MemoryProfileShowsPoolsAndRule) {
  ModelRig rig("gemma3", Small(100));
  pb::MemoryProfile m;
  ASSERT_TRUE(
      Ask(&pb::Admin::Stub::GetMemoryProfile, rig.admin(), pb::GetMemoryProfileRequest(), m).ok());
  EXPECT_EQ(m.rule(), "num_blocks=100");
  uint64_t pools = 0;
  uint32_t layers = 0;
  std::set<std::string> kinds;
  for (const pb::PoolMemory& p : m.pools()) {
    EXPECT_EQ(p.bytes(), p.num_blocks() * p.block_bytes());
    pools += p.bytes();
    for (const pb::CacheGroupInfo& g : p.groups()) {
      layers += g.num_layers();
      kinds.insert(g.kind());
      EXPECT_EQ(g.window(), g.kind() == "sliding_window" ? 12u : 0u);
    }
  }
  EXPECT_EQ(pools, m.kv_pool());
  EXPECT_EQ(layers, 6u);
  EXPECT_EQ(kinds, (std::set<std::string>{"full", "sliding_window"}));
  uint64_t parts = 0;
  for (const pb::MemoryPart& part : m.activation_parts()) parts += part.bytes();
  EXPECT_EQ(parts, m.activation_peak());
  EXPECT_GT(m.resident(), 1u << 20);
  EXPECT_FALSE(m.limit_source().empty());
  EXPECT_NE(MemoryText(m).find("num_blocks=100"), std::string::npos);
}

}  // namespace
}  // namespace quire::server_test
