#include "models/runtime.h"

#include <algorithm>

#include "base/device_memory.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/cpu_isa.h"
#include "models/checkpoint.h"
#include "models/decoder.h"
#include "models/executor.h"
#include "models/pool_sizes.h"
#include "models/rope_config.h"
#include "models/weights/main_format.h"

namespace quire {
namespace {

absl::StatusOr<DType> ParseKvDtype(const std::string& name) {
  if (name == "auto" || name == "float32") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  return InvalidArgument("kv_cache_dtype={} is not one of auto, float32, bfloat16, float16", name);
}

std::string KvDtypeName(DType t) {
  return t == DType::kF32 ? "float32" : t == DType::kBF16 ? "bfloat16" : "float16";
}

class Runtime : public ModelRuntime {
 public:
  absl::Status Init(const RuntimeOptions& options);

  const ModelConfig& config() const override { return checkpoint_.config; }
  const MemoryProfile& memory() const override { return profile_; }
  int32_t max_model_len() const override { return max_model_len_; }
  const std::string& attention_name() const override { return attention_name_; }
  int32_t num_threads() const override { return pool_->num_threads(); }
  std::string kv_cache_dtype() const override { return KvDtypeName(kv_dtype_); }
  std::string weight_format() const override { return weight_format_; }
  std::string RopeRegimeOf(int32_t prompt_tokens) const override {
    return RopeRegime(checkpoint_.config, prompt_tokens);
  }
  const std::vector<std::string>& notes() const override { return checkpoint_.notes; }
  const GgufFile* gguf() const override { return checkpoint_.gguf; }
  BlockManager& block_manager() override { return *blocks_; }
  Executor& executor() override { return *executor_; }

 private:
  absl::Status Profile(const RuntimeOptions& options);
  absl::Status DryRun(const RuntimeOptions& options);

  LoadedCheckpoint checkpoint_;
  std::string attention_name_;
  std::string weight_format_;
  DType kv_dtype_ = DType::kF32;
  int32_t max_model_len_ = 0;
  MemoryProfile profile_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Decoder> model_;
  std::vector<PagePool> page_pools_;
  std::unique_ptr<BlockManager> blocks_;
  std::unique_ptr<PageStorage> storage_;
  std::unique_ptr<ModelExecutor> executor_;
};

absl::Status Runtime::Init(const RuntimeOptions& options) {
  const std::unique_ptr<DeviceMemory> host = HostMemory();
  const DeviceMemory& device = options.device_memory != nullptr ? *options.device_memory : *host;
  ASSIGN_OR_RETURN(const MemoryInfo before, device.Read());
  RETURN_IF_ERROR(kernels::SelectIsa(options.cpu_isa));
  ASSIGN_OR_RETURN(const kernels::AttentionBackend* attention,
                   kernels::FindAttention(options.attention));
  attention_name_ = std::string(attention->name);
  ASSIGN_OR_RETURN(kv_dtype_, ParseKvDtype(options.kv_cache_dtype));
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
  ASSIGN_OR_RETURN(
      model_, Decoder::Create(
                  config, weights,
                  {.attention = attention, .kv_dtype = kv_dtype_, .block_size = options.block_size},
                  *pool_));
  checkpoint_.weights->DropPages();

  RETURN_IF_ERROR(DryRun(options));
  ASSIGN_OR_RETURN(const MemoryInfo after, device.Read());
  ApplyMemory(before, after, static_cast<int64_t>(model_->weight_bytes()),
              options.memory.memory_utilization, profile_);
  RETURN_IF_ERROR(Profile(options));
  const CacheLayout& layout = model_->cache_layout();
  std::vector<int32_t> num_pages;
  for (const PoolProfile& pool : profile_.pools) {
    page_pools_.emplace_back(pool.num_blocks, layout.block_size);
    num_pages.push_back(pool.num_blocks);
  }
  ASSIGN_OR_RETURN(storage_, PageStorage::Create(layout, num_pages));
  blocks_ = std::make_unique<BlockManager>(
      layout, page_pools_, BlockManagerOptions{.max_step_tokens = options.max_num_batched_tokens});
  executor_ = std::make_unique<ModelExecutor>(*model_, *blocks_, *storage_, *pool_,
                                              static_cast<size_t>(profile_.activation_peak));
  return absl::OkStatus();
}

// The largest of some extreme steps: one long prefill beside decodes, one long prefill alone, and
// decodes alone. Attention's split of long contexts over threads makes the workspace differ.
absl::Status Runtime::DryRun(const RuntimeOptions& options) {
  BatchBuilder builder;
  Arena dry;
  PageStorage no_storage;
  const int32_t tokens = options.max_num_batched_tokens;
  const int32_t seqs = std::min(options.max_num_seqs, tokens);
  for (const auto& [num_tokens, num_seqs] :
       {std::pair{tokens, seqs}, {tokens, 1}, {seqs, seqs}, {1, 1}, {std::min(tokens, 2), 2}}) {
    dry.Reset();
    RETURN_IF_ERROR(model_
                        ->Forward(builder.BuildDry(num_tokens, num_seqs, max_model_len_,
                                                   model_->cache_layout()),
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
  const PoolMix mix{.max_model_len = max_model_len_,
                    .max_num_seqs = options.max_num_seqs,
                    .max_step_tokens = options.max_num_batched_tokens};
  p.block_size = layout.block_size;
  p.block_bytes =
      static_cast<int64_t>(layout.pools[static_cast<size_t>(MainPool(layout))].page_bytes);
  p.bytes_per_token = layout.bytes_per_token;
  p.reserve = ReserveBytes(pool_->num_threads(), model_->vocab_size());
  const int64_t room = p.budget - p.weights - p.activation_peak - p.reserve;
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
  const int32_t longest = LongestInPools(layout, mix, pages);
  const int64_t hard_room = p.available - p.weights - p.activation_peak - p.reserve;
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
