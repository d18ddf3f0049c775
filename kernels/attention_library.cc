// A backend is three plain functions without a context, so each library has a slot, and each slot
// its own instances of them.
#include "kernels/attention_library.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/attention_common.h"
#include "kernels/kernel_plugin.h"

namespace quire::kernels {
namespace {

constexpr size_t kMaxLibraries = 8;

struct Slot {
  dev_t device = 0;  // of the file
  ino_t inode = 0;
  const QuireAttentionKernel* kernel = nullptr;
  AttentionBackend backend;
};
std::array<Slot, kMaxLibraries>& Slots() {
  static std::array<Slot, kMaxLibraries> slots;
  return slots;
}

int32_t KvTypeOf(DType type) {
  return type == DType::kF16    ? QUIRE_KV_F16
         : type == DType::kBF16 ? QUIRE_KV_BF16
         : type == DType::kI8   ? QUIRE_KV_I8
                                : QUIRE_KV_F32;
}

QuireAttentionShape ToC(const AttentionShape& s) {
  return {.size = sizeof(QuireAttentionShape),
          .num_heads = s.num_heads,
          .num_kv_heads = s.num_kv_heads,
          .head_dim = s.head_dim,
          .head_dim_v = s.head_dim_v,
          .window = s.window,
          .chunk = s.chunk,
          .bidirectional = s.bidirectional ? 1 : 0,
          .kv_type = KvTypeOf(s.kv_dtype),
          .softmax_scale = s.softmax_scale,
          .logit_softcap = s.logit_softcap};
}

QuireAttentionBatch ToC(const AttentionMetadata& m) {
  return {.size = sizeof(QuireAttentionBatch),
          .num_seqs = m.num_seqs,
          .num_tokens = m.num_tokens,
          .page_size = m.page_size,
          .max_pages_per_seq = m.max_pages_per_seq,
          .cu_seqlens_q = m.cu_seqlens_q.data(),
          .seqlens_k = m.seqlens_k.data(),
          .read_table = m.read_table.data()};
}

// What QuireKernelHost::context points to.
struct Host {
  const AttentionMetadata* m;
  const AttentionShape* s;
  const AttentionArgs* a;
  ThreadPool* pool;
};

void ParallelForHost(void* context, int64_t n, void (*task)(void*, int64_t, int32_t), void* data) {
  static_cast<Host*>(context)->pool->ParallelFor(
      n, [&](int64_t i, int32_t worker) { task(data, i, worker); });
}

void ReadKeysHost(void* context, int32_t seq, int32_t kv_head, int32_t first, int32_t count,
                  float* k, float* v) {
  const Host& host = *static_cast<Host*>(context);
  ReadKv(*host.m, *host.s, *host.a, seq, kv_head, first, count, k, v);
}

template <size_t kSlot>
absl::Status Supports(const AttentionShape& s, int32_t page_size) {
  const Slot& slot = Slots()[kSlot];
  RETURN_IF_ERROR(CheckAttentionShape(s, page_size));
  const QuireAttentionShape shape = ToC(s);
  const char* const missing = slot.kernel->supports(&shape, page_size);
  if (missing == nullptr) return absl::OkStatus();
  return Error(absl::StatusCode::kUnimplemented, "{} ({} kv heads of {} heads, head_dim {}/{}, {})",
               missing, s.num_kv_heads, s.num_heads, s.head_dim, s.head_dim_v, NameOf(s.kv_dtype));
}

template <size_t kSlot>
void Plan(const AttentionMetadata& m, const AttentionShape& s, int32_t num_threads,
          AttentionPlan& plan) {
  plan.items.clear();
  plan.merges.clear();
  plan.num_threads = num_threads;
  const QuireAttentionShape shape = ToC(s);
  const QuireAttentionBatch batch = ToC(m);
  plan.workspace_bytes = Slots()[kSlot].kernel->workspace_bytes(&batch, &shape, num_threads);
}

template <size_t kSlot>
void Run(const AttentionPlan& plan, const AttentionMetadata& m, const AttentionShape& s,
         const AttentionArgs& a, std::byte* workspace, ThreadPool& pool) {
  CHECK(pool.num_threads() <= plan.num_threads, "{} threads, planned for {}", pool.num_threads(),
        plan.num_threads);
  CHECK(a.weights == nullptr, "weights are for eager only");
  const QuireAttentionShape shape = ToC(s);
  const QuireAttentionBatch batch = ToC(m);
  const QuireAttentionArgs args{.size = sizeof(QuireAttentionArgs),
                                .q = a.q,
                                .k_base = a.k_base,
                                .v_base = a.v_base,
                                .page_stride = a.page_stride,
                                .sinks = a.sinks,
                                .alibi_slopes = a.alibi_slopes,
                                .out = a.out,
                                .lse = a.lse};
  Host context{.m = &m, .s = &s, .a = &a, .pool = &pool};
  const QuireKernelHost host{.size = sizeof(QuireKernelHost),
                             .context = &context,
                             .num_threads = pool.num_threads(),
                             .parallel_for = ParallelForHost,
                             .read_keys = ReadKeysHost};
  Slots()[kSlot].kernel->run(&batch, &shape, &args, workspace, &host);
}

template <size_t... kSlot>
AttentionBackend BackendOf(size_t slot, std::index_sequence<kSlot...>) {
  constexpr std::array kSupports = {&Supports<kSlot>...};
  constexpr std::array kPlan = {&Plan<kSlot>...};
  constexpr std::array kRun = {&Run<kSlot>...};
  const QuireAttentionKernel& kernel = *Slots()[slot].kernel;
  return {.name = kernel.name,
          .summary = kernel.summary,
          .batch_invariant = kernel.batch_invariant != 0,
          .supports = kSupports[slot],
          .plan = kPlan[slot],
          .run = kRun[slot]};
}

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

// Of everything that can be told without calling it.
absl::Status Check(const std::string& path, const QuireAttentionKernel* kernel) {
  const auto bad = [&path](const std::string& why) {
    return InvalidArgument("attention_library={} {}", path, why);
  };
  if (kernel == nullptr) return bad(QUIRE_KERNEL_ENTRY_POINT "() returns null; return a kernel");
  if (kernel->version != QUIRE_KERNEL_VERSION) {
    return bad(
        fmt::format("has version {}, this build takes {}; compile it against this build's "
                    "kernel_plugin.h",
                    kernel->version, QUIRE_KERNEL_VERSION));
  }
  if (kernel->size < sizeof(QuireAttentionKernel)) {
    return bad(
        fmt::format("has a kernel of size={}, version {} has {}; set size to "
                    "sizeof(QuireAttentionKernel)",
                    kernel->size, QUIRE_KERNEL_VERSION, sizeof(QuireAttentionKernel)));
  }
  std::string nulls;
  for (const auto& [field, is_null] :
       {std::pair<const char*, bool>{"name", kernel->name == nullptr},
        {"summary", kernel->summary == nullptr},
        {"supports", kernel->supports == nullptr},
        {"workspace_bytes", kernel->workspace_bytes == nullptr},
        {"run", kernel->run == nullptr}}) {
    if (is_null) nulls += fmt::format("{}{}", nulls.empty() ? "" : ", ", field);
  }
  if (!nulls.empty()) return bad(fmt::format("leaves {} null; set all fields", nulls));
  if (!IsName(kernel->name)) {
    return bad(fmt::format("has the name \"{}\", which must be 1 to 64 letters, digits, _ or -",
                           kernel->name));
  }
  for (const AttentionBackend* b : AttentionBackends()) {
    if (b->name != kernel->name) continue;
    return bad(fmt::format("has the name {}, which another kernel has; rename it", kernel->name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<const AttentionBackend*> LoadAttentionLibrary(const std::string& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) {
    return InvalidArgument("attention_library={} is not a file", path);
  }
  size_t free = 0;
  for (; free < kMaxLibraries && Slots()[free].kernel != nullptr; ++free) {
    const Slot& slot = Slots()[free];
    if (slot.device == file.st_dev && slot.inode == file.st_ino) return &slot.backend;
  }
  if (free == kMaxLibraries) {
    return InvalidArgument("attention_library={} is one more than {} libraries", path,
                           kMaxLibraries);
  }
  // dlopen looks for a name without a slash elsewhere.
  const std::string name = path.find('/') == std::string::npos ? "./" + path : path;
  void* const library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return InvalidArgument("attention_library={} can't be loaded: {}", path, ::dlerror());
  }
  using Entry = const QuireAttentionKernel* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(library, QUIRE_KERNEL_ENTRY_POINT));
  absl::Status checked =
      entry == nullptr ? InvalidArgument(
                             "attention_library={} has no symbol {}; export it as kernel_plugin.h "
                             "declares it (extern \"C\" in C++)",
                             path, QUIRE_KERNEL_ENTRY_POINT)
                       : absl::OkStatus();
  const QuireAttentionKernel* const kernel = entry == nullptr ? nullptr : entry();
  if (checked.ok()) checked = Check(path, kernel);
  if (!checked.ok()) {
    ::dlclose(library);
    return checked;
  }
  Slot& slot = Slots()[free];
  slot.device = file.st_dev;
  slot.inode = file.st_ino;
  slot.kernel = kernel;
  slot.backend = BackendOf(free, std::make_index_sequence<kMaxLibraries>());
  AddAttention(slot.backend);
  return &slot.backend;
}

}  // namespace quire::kernels
