// models/runtime.h -- everything between a checkpoint's path and an Executor that runs it.
//
// server/main builds one ModelRuntime, then a Scheduler over its block manager and an Engine over
// both. Load runs before any other thread of the daemon exists; afterwards the engine thread alone
// uses block_manager() and executor().
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/device_memory.h"
#include "base/dtype.h"
#include "base/status.h"
#include "models/config.h"
#include "models/memory_profile.h"
#include "paged_cache/block_manager.h"
#include "paged_cache/page_file_store.h"
#include "scheduler/executor.h"
#include "scheduler/scheduler.h"

namespace quire {

class DraftModelProposer;  // models/draft_proposer.h
class GgufFile;            // models/weights/gguf.h
namespace kernels {
class OpProfile;  // kernels/profile/op_profile.h
}

struct RuntimeOptions {
  std::string model;                // a .gguf file, or a directory with config.json and safetensors
  std::string attention = "flash";  // as kernels/attention_choice.h says
  std::string attention_library;    // a shared object with one more kernel; "" = none
  std::string compute = "auto";     // of linear layers: auto, float32, bf16, int8
  std::string quantization = "none";  // of weights stored in 16 or 32 bits: none, int8, int4
  std::string cpu_isa = "auto";
  int32_t num_threads = 0;              // kernel threads, the engine's included; 0 = physical cores
  std::string kv_cache_dtype = "auto";  // auto, float32, bfloat16, float16, int8
  int32_t block_size = 16;
  int32_t max_model_len = 0;  // 0 = the model's own, capped by the pool
  int32_t max_num_seqs = 64;
  int32_t max_logit_rows = 0;  // of a step; 0 = max_num_seqs. See SchedulerOptions.
  int32_t max_num_batched_tokens = 512;
  // The cache beyond what the pools hold.
  int64_t host_cache_memory_bytes = 0;  // host tier, for pages evicted or swapped out; 0 = none
  std::string cache_directory;          // where SaveCache and LoadCache work; "" = nowhere
  int64_t cache_directory_bytes = 0;    // of it, most that the file tier takes; 0 = no file tier
  int32_t prefault_mib = 0;             // of the pools, made ready ahead of use; 0 = none
  double max_pinned_share = 0.5;        // of each pool, most that pins may hold
  std::string prefix_hash_algorithm = "xxh3";  // xxh3, sha256_cbor
  int32_t max_num_blocks = 0;  // that num_blocks may grow to one day; 0 = what the limit allows
  std::string draft_model;     // as `model`: a second one that guesses; "" = none
  int32_t draft_num_blocks = 1024;  // of its cache
  MemoryOptions memory;
  const DeviceMemory* device_memory = nullptr;  // where the pools go; null: the host's. Not kept
};

class ModelRuntime {
 public:
  // ERRORS: file, field, value, limit, remedy; kNotFound, kInvalidArgument, kUnimplemented (an
  // architecture or type we do not have), kResourceExhausted (does not fit, with the breakdown).
  static absl::StatusOr<std::unique_ptr<ModelRuntime>> Load(const RuntimeOptions& options);
  virtual ~ModelRuntime() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const MemoryProfile& memory() const = 0;
  virtual int32_t max_model_len() const = 0;
  virtual const std::string& attention_name() const = 0;
  virtual std::string compute() const = 0;  // what came of `auto`
  virtual int32_t num_threads() const = 0;
  virtual std::string kv_cache_dtype() const = 0;
  virtual std::string weight_format() const = 0;  // "Q4_1 (GGUF)" ...: for people
  // What of a prompt's length enters the prefix root (length-dependent rope); "" for most models.
  virtual std::string RopeRegimeOf(int32_t prompt_tokens) const = 0;
  // For the start-up log: weight files that were ignored, and the like.
  virtual const std::vector<std::string>& notes() const = 0;
  // Metadata for the tokenizer; null for a safetensors directory.
  virtual const GgufFile* gguf() const = 0;

  // Blocks until what prefault_mib asks for is ready: for measurements, before any step.
  virtual void WaitForPrefault() = 0;

  virtual BlockManager& block_manager() = 0;
  virtual Executor& executor() = 0;
  // Who guesses by the draft model; null without one. Engine thread, memory_bytes() and config()
  // any.
  virtual DraftModelProposer* draft_model() = 0;
  // From the next step on its operations are counted there; null: no longer. Not the draft model's.
  // Before the engine starts, or its thread between steps. REQUIRES: a profile of num_threads().
  virtual void set_profile(kernels::OpProfile* profile) = 0;

  // All below: engine thread, between steps (Engine::PostAdminCall).
  // From now on the main pool has num_blocks usable blocks, the others what the model's ratio gives
  // them. ERRORS: kInvalidArgument (less than what is admitted or pinned needs, more than
  // max_num_blocks), kResourceExhausted (more than the memory budget has room for).
  virtual absl::Status SetNumBlocks(Scheduler& scheduler, int32_t num_blocks) = 0;
  // Writes the prefix cache to files in a directory, which is made if need be; reads one, as far as
  // there are blank pages. Takes as long as the disk does.
  // ERRORS: as PageFileStore::Open, naming the directory.
  virtual absl::StatusOr<CacheTransfer> SaveCache(const std::string& directory) = 0;
  virtual absl::StatusOr<CacheTransfer> LoadCache(const std::string& directory) = 0;
  // The file tier; null if there is none.
  virtual const PageFileStore* cache_files() const = 0;
};

}  // namespace quire
