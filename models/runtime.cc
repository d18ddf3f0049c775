#include "models/runtime.h"

#include <algorithm>

#include "base/cpu_topology.h"
#include "base/device_memory.h"
#include "base/thread_pool.h"
#include "kernels/attention_choice.h"
#include "kernels/attention_library.h"
#include "kernels/cpu_isa.h"
#include "models/checkpoint.h"
#include "models/decoder.h"
#include "models/draft_proposer.h"
#include "models/executor.h"
#include "models/pool_sizes.h"
#include "models/rope_config.h"
#include "models/weights/fingerprint.h"
#include "models/weights/main_format.h"
#include "paged_cache/pool_toucher.h"

namespace quire {
namespace {

// auto: as precise as the products that made the keys.
absl::StatusOr<DType> ParseKvDtype(const std::string& name, kernels::ComputeType compute) {
  if (name == "auto" && compute != kernels::ComputeType::kF32) return DType::kBF16;
  if (name == "auto" || name == "float32") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  if (name == "int8") return DType::kI8;
  return InvalidArgument("kv_cache_dtype={} is not one of auto, float32, bfloat16, float16, int8",
                         name);
}

// Of the layers' weights.
DType MainType(const ModelWeights& weights) {
  for (const LayerWeights& layer : weights.layers) {
    for (const std::optional<TensorView>* w : {&layer.gate, &layer.up, &layer.q}) {
      if (*w) return (*w)->dtype;
    }
  }
  return DType::kF32;
}

std::string KvDtypeName(DType t) {
  return t == DType::kF32    ? "float32"
         : t == DType::kBF16 ? "bfloat16"
         : t == DType::kI8   ? "int8"
                             : "float16";
}

class Runtime : public ModelRuntime {
 public:
  absl::Status Init(const RuntimeOptions& options);

  const ModelConfig& config() const override { return checkpoint_.config; }
  const MemoryProfile& memory() const override { return profile_; }
  int32_t max_model_len() const override { return max_model_len_; }
  const std::string& attention_name() const override { return attention_name_; }
  int32_t num_threads() const override { return pool_->num_threads(); }
  std::string compute() const override { return std::string(NameOf(model_->compute())); }
  std::string kv_cache_dtype() const override { return KvDtypeName(kv_dtype_); }
  std::string weight_format() const override { return weight_format_; }
  std::string RopeRegimeOf(int32_t prompt_tokens) const override {
    return RopeRegime(checkpoint_.config, prompt_tokens);
  }
  const std::vector<std::string>& notes() const override { return checkpoint_.notes; }
  const GgufFile* gguf() const override { return checkpoint_.gguf; }
  absl::Status SetNumBlocks(Scheduler& scheduler, int32_t num_blocks) override;
  absl::StatusOr<CacheTransfer> SaveCache(const std::string& directory) override;
  absl::StatusOr<CacheTransfer> LoadCache(const std::string& directory) override;
  const PageFileStore* cache_files() const override { return files_.get(); }
  void WaitForPrefault() override {
    if (toucher_ != nullptr) toucher_->Wait();
  }
  BlockManager& block_manager() override { return *blocks_; }
  Executor& executor() override { return *executor_; }
  DraftModelProposer* draft_model() override { return draft_.get(); }
  void set_profile(kernels::OpProfile* profile) override {
    model_->set_profile(profile);
    executor_->set_profile(profile);
    pool_->set_observer(profile);
  }

 private:
  absl::Status BuildCache();
  void StartPrefault(std::span<const int32_t> num_pages);
  absl::StatusOr<std::unique_ptr<PageFileStore>> OpenFiles(const std::string& directory,
                                                           int64_t max_bytes);
  std::string ConfigText() const;
  PoolMix Mix() const {
    return {.max_model_len = max_model_len_,
            .max_num_seqs = options_.max_num_seqs,
            .max_step_tokens = options_.max_num_batched_tokens};
  }
  absl::Status Profile(const RuntimeOptions& options);
  absl::Status DryRun(const RuntimeOptions& options);
  absl::Status LoadDraftModel();

  LoadedCheckpoint checkpoint_;
  std::string attention_name_;
  std::string weight_format_;
  kernels::Quantization quantization_ = kernels::Quantization::kNone;
  DType kv_dtype_ = DType::kF32;
  DType attention_dot_ = DType::kF32;
  int32_t max_model_len_ = 0;
  MemoryProfile profile_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Decoder> model_;
  RuntimeOptions options_;
  std::vector<PagePool> page_pools_;
  std::vector<PagePool> host_pools_;
  std::unique_ptr<PageFileStore> files_;  // the file tier, or null
  std::unique_ptr<PageStorage> storage_;
  std::unique_ptr<PoolToucher> toucher_;  // null: none; it works on storage_
  std::unique_ptr<BlockManager> blocks_;
  std::string page_fingerprint_;  // of all that decides a page's bytes; set with cache_directory
  std::unique_ptr<ModelExecutor> executor_;
  std::unique_ptr<DraftModelProposer> draft_;  // null: none
};

absl::Status Runtime::Init(const RuntimeOptions& options) {
  options_ = options;
  options_.device_memory = nullptr;  // may not live as long
  const std::unique_ptr<DeviceMemory> host = HostMemory();
  const DeviceMemory& device = options.device_memory != nullptr ? *options.device_memory : *host;
  ASSIGN_OR_RETURN(const MemoryInfo before, device.Read());
  RETURN_IF_ERROR(kernels::SelectIsa(options.cpu_isa));
  if (!options.attention_library.empty()) {
    RETURN_IF_ERROR(kernels::LoadAttentionLibrary(options.attention_library).status());
  }
  ASSIGN_OR_RETURN(const kernels::AttentionChoice attention,
                   kernels::ParseAttention(options.attention));
  attention_name_ = attention.ToString();
  ASSIGN_OR_RETURN(const kernels::ComputeType compute, kernels::FindCompute(options.compute));
  ASSIGN_OR_RETURN(quantization_, kernels::FindQuantization(options.quantization));
  pool_ = std::make_unique<ThreadPool>(options.num_threads > 0 ? options.num_threads
                                                               : NumPhysicalCores());

  ASSIGN_OR_RETURN(checkpoint_, OpenCheckpoint(options.model));
  const ModelConfig& config = checkpoint_.config;
  const int32_t longest = LongestSequence(config);
  if (options.max_model_len > longest) {
    return InvalidArgument("max_model_len={} exceeds the model's {} positions; lower it",
                           options.max_model_len, longest);
  }
  max_model_len_ = options.max_model_len > 0 ? options.max_model_len : longest;
  weight_format_ = MainFormat(*checkpoint_.weights);
  ASSIGN_OR_RETURN(const ModelWeights weights, BindWeights(config, *checkpoint_.weights));
  const DType stored = MainType(weights);
  const DType main = kernels::QuantizedType(quantization_, stored, config.hidden_dim);
  if (kernels::QuantizedType(quantization_, stored, kernels::kPanel) != stored) {
    weight_format_ += fmt::format(", loaded as {}", NameOf(quantization_));
  }
  const kernels::ComputeType in_layers = ResolveCompute(compute, main);
  ASSIGN_OR_RETURN(kv_dtype_, ParseKvDtype(options.kv_cache_dtype, in_layers));
  // Products of rounded keys need no more than products with weights do. Without tiles float32 is
  // no slower.
  const bool rounded = in_layers != kernels::ComputeType::kF32 && kv_dtype_ == DType::kBF16;
  attention_dot_ =
      rounded && kernels::ActiveIsa() == kernels::CpuIsa::kAmx ? DType::kBF16 : DType::kF32;
  ASSIGN_OR_RETURN(model_, Decoder::Create(config, weights,
                                           {.attention = attention.full,
                                            .sliding_attention = attention.sliding,
                                            .compute = compute,
                                            .quantization = quantization_,
                                            .kv_dtype = kv_dtype_,
                                            .attention_dot = attention_dot_,
                                            .block_size = options.block_size},
                                           *pool_));
  checkpoint_.weights->DropPages();

  RETURN_IF_ERROR(DryRun(options));
  ASSIGN_OR_RETURN(const MemoryInfo after, device.Read());
  ApplyMemory(before, after, static_cast<int64_t>(model_->weight_bytes()),
              options.memory.memory_utilization, profile_);
  if (!options.draft_model.empty()) RETURN_IF_ERROR(LoadDraftModel());
  RETURN_IF_ERROR(Profile(options));
  RETURN_IF_ERROR(BuildCache());
  executor_ = std::make_unique<ModelExecutor>(*model_, *blocks_, *storage_, *pool_,
                                              static_cast<size_t>(profile_.activation_peak));
  executor_->set_toucher(toucher_.get());
  return absl::OkStatus();
}

// After the memory was read, so that all of it counts as the draft model's.
absl::Status Runtime::LoadDraftModel() {
  absl::StatusOr<std::unique_ptr<DraftModelProposer>> loaded =
      DraftModelProposer::Load({.model = options_.draft_model,
                                .attention = attention_name_,
                                .compute = model_->compute(),
                                .quantization = quantization_,
                                .kv_dtype = kv_dtype_,
                                .attention_dot = attention_dot_,
                                .block_size = options_.block_size,
                                .num_blocks = options_.draft_num_blocks,
                                .max_num_seqs = options_.max_num_seqs,
                                .max_step_tokens = options_.max_num_batched_tokens,
                                .max_draft_tokens = kMaxSpeculativeTokens,
                                .max_bytes = profile_.budget - profile_.weights},
                               checkpoint_.config, *pool_);
  if (!loaded.ok()) {
    return Error(loaded.status().code(), "draft_model={} can't be used: {}", options_.draft_model,
                 Message(loaded.status()));
  }
  draft_ = *std::move(loaded);
  profile_.draft_model = draft_->memory_bytes();
  return absl::OkStatus();
}

absl::Status Runtime::BuildCache() {
  const CacheLayout& layout = model_->cache_layout();
  BlockManagerOptions cache{.max_step_tokens = options_.max_num_batched_tokens,
                            .max_pinned_share = options_.max_pinned_share};
  if (options_.prefix_hash_algorithm == "sha256_cbor") {
    cache.hash_algorithm = PrefixHashAlgorithm::kSha256Cbor;
  } else if (options_.prefix_hash_algorithm != "xxh3") {
    return InvalidArgument("prefix_hash_algorithm={} must be xxh3 or sha256_cbor",
                           options_.prefix_hash_algorithm);
  }
  if (!(cache.max_pinned_share >= 0 && cache.max_pinned_share <= 1)) {
    return InvalidArgument("max_pinned_share={} must be in [0, 1]", cache.max_pinned_share);
  }
  std::vector<int32_t> num_pages;
  for (const PoolProfile& pool : profile_.pools) {
    page_pools_.emplace_back(pool.num_blocks, layout.block_size);
    num_pages.push_back(pool.num_blocks);
  }
  const PoolMix mix = Mix();
  const std::vector<int32_t> most = PoolPages(layout, mix, profile_.max_num_blocks);
  // The host tier has the pools' ratio, too.
  std::vector<int32_t> num_host;
  if (profile_.host_cache > 0) {
    const int32_t main = MainBlocksIn(layout, mix, profile_.host_cache);
    if (main < 1) {
      return InvalidArgument(
          "host_cache_memory_bytes={} is less than one block of each pool; give {} or more, or 0",
          profile_.host_cache, BytesOfPools(layout, PoolPages(layout, mix, 1)));
    }
    num_host = PoolPages(layout, mix, main);
    for (const int32_t n : num_host) host_pools_.emplace_back(n, layout.block_size);
  }
  ASSIGN_OR_RETURN(storage_, PageStorage::Create(layout, num_pages, most, num_host));
  StartPrefault(num_pages);
  blocks_ = std::make_unique<BlockManager>(layout, page_pools_, cache, host_pools_);
  if (options_.cache_directory.empty()) return absl::OkStatus();
  page_fingerprint_ = fmt::format(
      "{} {} {} {} {} kv {} block {}", WeightsFingerprint(*checkpoint_.weights), ConfigText(),
      attention_name_, NameOf(quantization_), compute(), KvDtypeName(kv_dtype_), layout.block_size);
  if (options_.cache_directory_bytes == 0) return absl::OkStatus();
  if (host_pools_.empty()) {
    return InvalidArgument(
        "cache_directory_bytes={} needs a host tier to fill it from; set "
        "host_cache_memory_bytes, or cache_directory_bytes=0 to use the directory for saves only",
        options_.cache_directory_bytes);
  }
  ASSIGN_OR_RETURN(files_,
                   OpenFiles(options_.cache_directory + "/tier", options_.cache_directory_bytes));
  blocks_->AttachFiles(*files_, *storage_);
  return absl::OkStatus();
}

// Reserve and activations are still to be taken of what is available; so is what others may want.
void Runtime::StartPrefault(std::span<const int32_t> num_pages) {
  constexpr int64_t kShareOfOthers = 16;  // of the limit, one part in so many
  if (profile_.prefault == 0 || !profile_.can_prefault) return;
  toucher_ = std::make_unique<PoolToucher>(
      *storage_, num_pages,
      PoolToucherOptions{.ahead_bytes = profile_.prefault,
                         .keep_free_bytes = profile_.activation_peak + profile_.reserve +
                                            profile_.limit / kShareOfOthers,
                         .beside_steps = std::ssize(AllowedCpus()) > pool_->num_threads(),
                         .delay = std::chrono::seconds(1)});
}

absl::StatusOr<std::unique_ptr<PageFileStore>> Runtime::OpenFiles(const std::string& directory,
                                                                  int64_t max_bytes) {
  constexpr uint64_t kQueueBytes = uint64_t{64} << 20;
  const CacheLayout& layout = model_->cache_layout();
  uint64_t entry = 0;
  for (const GroupLayout& group : layout.groups) {
    entry += layout.pools[static_cast<size_t>(group.pool)].page_bytes;
  }
  // A folder for each model and layout: a store drops what is not of its own.
  const PageFileLayout files = MakePageFileLayout(layout, page_fingerprint_);
  std::string all = files.fingerprint;
  for (const uint64_t bytes : files.group_bytes) all += fmt::format(" {}", bytes);
  return PageFileStore::Open(
      {.directory = fmt::format("{}/{}", directory, Sha256(all).ToHex().substr(0, 16)),
       .layout = files,
       .max_bytes = static_cast<uint64_t>(max_bytes),
       .queue_bytes = std::max(kQueueBytes, 4 * entry)});
}

absl::Status Runtime::SetNumBlocks(Scheduler& scheduler, int32_t num_blocks) {
  const CacheLayout& layout = model_->cache_layout();
  if (num_blocks < 1 || num_blocks > profile_.max_num_blocks) {
    return InvalidArgument(
        "num_blocks={} must be in [1, {}] (max_num_blocks); restart with another max_num_blocks",
        num_blocks, profile_.max_num_blocks);
  }
  const std::vector<int32_t> pages = PoolPages(layout, Mix(), num_blocks);
  const int64_t bytes = BytesOfPools(layout, pages);
  const int64_t room = profile_.available - profile_.weights - profile_.activation_peak -
                       profile_.reserve - profile_.host_cache - profile_.draft_model;
  if (bytes > profile_.kv_pool && bytes > room) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "num_blocks={} takes {} MiB, {} MiB are there for the kv pool; give {} or less",
                 num_blocks, bytes >> 20, std::max<int64_t>(room, 0) >> 20,
                 MainBlocksIn(layout, Mix(), room));
  }
  // All or none: pools that shrink are asked first.
  const PageNeed least = scheduler.LargestAdmittedNeed();
  for (size_t i = 0; i < pages.size(); ++i) {
    const int32_t needed = std::max(1, least[i]) + blocks_->pinned_pages(i);
    if (pages[i] < needed) {
      return InvalidArgument(
          "num_blocks={} leaves {} blocks in pool {}, what is admitted or pinned needs {}; retry "
          "when it has ended or is unpinned",
          num_blocks, pages[i], i, needed);
    }
  }
  for (size_t i = 0; i < pages.size(); ++i) {
    std::vector<PageId> retired;
    RETURN_IF_ERROR(scheduler.ResizePool(i, pages[i], retired));
    storage_->Copy(blocks_->TakeOps(), blocks_->fills());  // saves what was evicted
    if (toucher_ != nullptr) toucher_->SetUsable(static_cast<int32_t>(i), pages[i]);
    storage_->Discard(static_cast<int32_t>(i), retired);
    profile_.pools[i].num_blocks = pages[i];
  }
  profile_.num_blocks = num_blocks;
  profile_.kv_pool = bytes;
  profile_.rule = fmt::format("num_blocks={}", num_blocks);
  return absl::OkStatus();
}

absl::StatusOr<CacheTransfer> Runtime::SaveCache(const std::string& directory) {
  if (options_.cache_directory.empty()) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 "cache_directory is not set; start with one to save caches in it");
  }
  constexpr int64_t kNoLimit = int64_t{1} << 60;
  ASSIGN_OR_RETURN(const std::unique_ptr<PageFileStore> files, OpenFiles(directory, kNoLimit));
  return blocks_->Save(*files, *storage_);
}

absl::StatusOr<CacheTransfer> Runtime::LoadCache(const std::string& directory) {
  if (options_.cache_directory.empty()) {
    return Error(absl::StatusCode::kFailedPrecondition,
                 "cache_directory is not set; start with the one that the cache was saved in");
  }
  constexpr int64_t kNoLimit = int64_t{1} << 60;
  ASSIGN_OR_RETURN(const std::unique_ptr<PageFileStore> files, OpenFiles(directory, kNoLimit));
  CacheTransfer done = blocks_->Load(*files, *storage_);
  for (const uint64_t faults : files->stats().faults) done.dropped += static_cast<int64_t>(faults);
  return done;
}

// Of the model as it is computed: the same weights under another rope are another model.
std::string Runtime::ConfigText() const {
  const ModelConfig& c = checkpoint_.config;
  std::string text =
      fmt::format("{} {} {} {}", c.architecture, c.hidden_dim, c.vocab_size, c.norm_eps);
  for (const LayerConfig& l : c.layers) {
    text += fmt::format(" {}.{}.{}.{}.{}.{}", static_cast<int>(l.attention), l.window, l.rope,
                        l.softmax_scale, l.num_heads, l.mlp_dim);
  }
  for (const RopeConfig& r : c.ropes) {
    text += fmt::format(" rope {} {} {} {} {}", static_cast<int>(r.type), r.theta, r.rotary_dim,
                        r.factor, r.original_max_position);
    for (const float f : r.short_factor) text += fmt::format(" {}", f);
    for (const float f : r.long_factor) text += fmt::format(" {}", f);
  }
  return Sha256(text).ToHex();
}

// The largest of some extreme steps: one long prefill beside decodes, one long prefill alone, and
// decodes alone. Attention's split of long contexts over threads makes the workspace differ.
absl::Status Runtime::DryRun(const RuntimeOptions& options) {
  BatchBuilder builder;
  Arena dry;
  PageStorage no_storage;
  const int32_t tokens = options.max_num_batched_tokens;
  const int32_t seqs = std::min(options.max_num_seqs, tokens);
  // Prompt logprobs and guesses take several rows of one sequence.
  const int32_t rows = std::max(options.max_logit_rows, options.max_num_seqs);
  for (const auto& [num_tokens, num_seqs] :
       {std::pair{tokens, seqs}, {tokens, 1}, {seqs, seqs}, {1, 1}, {std::min(tokens, 2), 2}}) {
    dry.Reset();
    RETURN_IF_ERROR(model_
                        ->Forward(builder.BuildDry(num_tokens, num_seqs, max_model_len_,
                                                   model_->cache_layout(), rows),
                                  no_storage, dry)
                        .status());
  }
  ApplyActivations(dry, profile_);
  return absl::OkStatus();
}

absl::Status Runtime::Profile(const RuntimeOptions& options) {
  const CacheLayout& layout = model_->cache_layout();
  const MemoryOptions& memory = options.memory;
  MemoryProfile& p = profile_;
  const PoolMix mix = Mix();
  p.block_size = layout.block_size;
  p.block_bytes =
      static_cast<int64_t>(layout.pools[static_cast<size_t>(MainPool(layout))].page_bytes);
  p.bytes_per_token = layout.bytes_per_token;
  p.reserve = ReserveBytes(pool_->num_threads(), model_->vocab_size());
  if (options.host_cache_memory_bytes < 0 || options.cache_directory_bytes < 0) {
    return InvalidArgument(
        "host_cache_memory_bytes={} cache_directory_bytes={} must not be negative",
        options.host_cache_memory_bytes, options.cache_directory_bytes);
  }
  p.host_cache = options.host_cache_memory_bytes;
  // On a device the host tier is somebody else's memory.
  const int64_t host = options.device_memory == nullptr ? p.host_cache : 0;
  const int64_t others = p.activation_peak + p.reserve + host + p.draft_model;
  const int64_t room = p.budget - p.weights - others;
  int64_t wanted = room;
  p.rule = fmt::format("memory_utilization={}", memory.memory_utilization);
  if (memory.kv_cache_memory_bytes > 0) {
    wanted = memory.kv_cache_memory_bytes;
    p.rule = fmt::format("kv_cache_memory_bytes={}", memory.kv_cache_memory_bytes);
  }
  p.num_blocks = MainBlocksIn(layout, mix, wanted);
  if (memory.num_blocks > 0) {
    p.num_blocks = memory.num_blocks;
    p.rule = fmt::format("num_blocks={}", memory.num_blocks);
  }
  const std::vector<int32_t> pages = PoolPages(layout, mix, p.num_blocks);
  p.kv_pool = BytesOfPools(layout, pages);
  for (size_t i = 0; i < pages.size(); ++i) {
    p.pools.push_back({pages[i], static_cast<int64_t>(layout.pools[i].page_bytes)});
  }
  // A device's pools are not the host's memory.
  if (options.device_memory == nullptr) {
    p.prefault = std::min(int64_t{options.prefault_mib} << 20, p.kv_pool);
    p.can_prefault = PoolToucher::Supported();
  }
  const int32_t longest = LongestInPools(layout, mix, pages);
  const int64_t hard_room = p.available - p.weights - others;
  if (p.kv_pool > hard_room || (longest < 1 && memory.num_blocks == 0)) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "{}: the kv pool of {} blocks ({} MiB) does not fit, {} MiB are left for it; "
                 "lower num_blocks, max_num_batched_tokens or max_num_seqs, or raise "
                 "memory_utilization\n{}",
                 p.rule, p.num_blocks, p.kv_pool >> 20, std::max<int64_t>(hard_room, 0) >> 20,
                 p.ToString());
  }
  if (longest < 1) {
    const size_t main = static_cast<size_t>(MainPool(layout));
    return InvalidArgument("num_blocks={} holds no sequence, one token takes {}; raise it",
                           p.num_blocks, PagesOfSequence(layout, 1, 1)[main]);
  }
  p.max_num_blocks =
      std::max(p.num_blocks, options.max_num_blocks > 0 ? options.max_num_blocks
                                                        : MainBlocksIn(layout, mix, hard_room));
  // Unless asked for, no request may be longer than the pools hold.
  if (longest < max_model_len_) {
    if (options.max_model_len > 0 && memory.num_blocks == 0) {
      return Error(
          absl::StatusCode::kResourceExhausted,
          "max_model_len={} exceeds the kv pool's {} tokens ({} blocks of {}); lower it or "
          "give the pool more memory",
          options.max_model_len, longest, p.num_blocks, p.block_size);
    }
    if (options.max_model_len == 0) max_model_len_ = longest;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRuntime>> ModelRuntime::Load(const RuntimeOptions& options) {
  auto runtime = std::make_unique<Runtime>();
  RETURN_IF_ERROR(runtime->Init(options));
  return runtime;
}

}  // namespace quire
