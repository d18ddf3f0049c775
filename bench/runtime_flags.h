// bench/runtime_flags.h -- the flags of benches that load a model, as `quire serve` names them.
#pragma once

#include "bench/flags.h"
#include "models/runtime.h"

namespace quire {

// num_threads is the bench's own.
inline void AddRuntimeFlags(Flags& flags, RuntimeOptions& options) {
  flags.Add("compute", &options.compute, "auto, float32, bf16, int8");
  flags.Add("kv-cache-dtype", &options.kv_cache_dtype, "auto, float32, bfloat16, float16, int8");
  flags.Add("attention", &options.attention, "a kernel, or kinds of layers: full=flash,...");
  flags.Add("cpu-isa", &options.cpu_isa, "auto, portable, avx2, avx512, amx");
}

}  // namespace quire
