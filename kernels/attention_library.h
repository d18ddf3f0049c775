// kernels/attention_library.h -- attention kernels from shared objects; see kernel_plugin.h.
#pragma once

#include <string>

#include "base/status.h"
#include "kernels/attention.h"

namespace quire::kernels {

// Opens the library and adds its kernel to AttentionBackends(). The same file again is the same
// kernel. Libraries stay loaded, eight at most. Not thread-safe: start-up and tests only.
// ERRORS: kInvalidArgument naming attention_library=<path> and what is wrong: no such file, not a
// shared object, the entry point, version, size, a null field, the name.
absl::StatusOr<const AttentionBackend*> LoadAttentionLibrary(const std::string& path);

}  // namespace quire::kernels
