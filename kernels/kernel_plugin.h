/* kernels/kernel_plugin.h -- what an attention kernel of your own is written against: plain C, no
 * other header of Quire, no library to link.
 *
 *   #include "kernel_plugin.h"
 *   static const QuireAttentionKernel kernel = {sizeof(kernel), QUIRE_KERNEL_VERSION, "mine", ...};
 *   const QuireAttentionKernel* quire_attention_kernel(void) { return &kernel; }
 *
 *   cc -O3 -shared -fPIC -o mine.so mine.c
 *   quire serve --attention-library ./mine.so --attention mine ...
 *
 * The library is checked when it is loaded (version, size, names, pointers) and stays loaded.
 * docs/kernels.md walks through an example.
 *
 * A library that was built against another QUIRE_KERNEL_VERSION is refused. Within a version,
 * structs only grow at their end: each begins with its size, and what is beyond the size that the
 * other side knows is not there.
 *
 * Threads: all functions are called by the engine's thread, one at a time; `run` may have the
 * host's threads help it by parallel_for, and must not start any of its own.
 */
#ifndef QUIRE_KERNEL_PLUGIN_H_
#define QUIRE_KERNEL_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_KERNEL_VERSION 1u
#define QUIRE_KERNEL_ENTRY_POINT "quire_attention_kernel"

enum QuireKvType { QUIRE_KV_F32 = 0, QUIRE_KV_F16 = 1, QUIRE_KV_BF16 = 2, QUIRE_KV_I8 = 3 };

/* What the model fixed. At most one of window and chunk is set. A feature that your kernel lacks
 * must be refused by `supports`, or outputs are wrong. */
typedef struct QuireAttentionShape {
  uint32_t size;
  int32_t num_heads;
  int32_t num_kv_heads;  /* divides num_heads; head h reads kv head h * num_kv_heads / num_heads */
  int32_t head_dim;      /* of q and k */
  int32_t head_dim_v;    /* of v and out */
  int32_t window;        /* a query sees this many keys, its own included; 0 = all */
  int32_t chunk;         /* a query sees keys of its own chunk of this many positions; 0 = all */
  int32_t bidirectional; /* 1: a query also sees the keys behind it */
  int32_t kv_type;       /* enum QuireKvType: of the cache */
  float softmax_scale;
  float logit_softcap; /* 0 = off; else score = cap * tanh(score / cap) */
} QuireAttentionShape;

/* What is computed in this step. Sequence i owns the rows cu_seqlens_q[i] .. cu_seqlens_q[i+1]-1;
 * its row r is position seqlens_k[i] - rows + r and sees the keys of positions up to its own. */
typedef struct QuireAttentionBatch {
  uint32_t size;
  int32_t num_seqs;
  int32_t num_tokens;
  int32_t page_size;           /* token slots per page */
  int32_t max_pages_per_seq;   /* row length of read_table */
  const int32_t* cu_seqlens_q; /* [num_seqs + 1] */
  const int32_t* seqlens_k;    /* [num_seqs], this step's tokens included */
  const int32_t* read_table;   /* [num_seqs, max_pages_per_seq] page ids; 0: outside every window */
} QuireAttentionBatch;

/* One layer's tensors. A score is scale * q.k, then soft-capped, then ALiBi is added. A row that
 * sees no key has out 0 and lse -infinity. */
typedef struct QuireAttentionArgs {
  uint32_t size;
  const float* q;     /* [num_tokens, num_heads, head_dim] */
  const void* k_base; /* keys of page p begin at k_base + p * page_stride */
  const void* v_base;
  int64_t page_stride;       /* bytes; products with it need 64 bits */
  const float* sinks;        /* [num_heads] or null: an extra logit in the denominator */
  const float* alibi_slopes; /* [num_heads] or null: adds slope * (key position - query position) */
  float* out;                /* [num_tokens, num_heads, head_dim_v]; write every element */
  float* lse;                /* [num_tokens, num_heads] or null: log of the sum, sink left out */
} QuireAttentionArgs;

/* What the host does for a kernel. */
typedef struct QuireKernelHost {
  uint32_t size;
  void* context;       /* of the functions here */
  int32_t num_threads; /* workers are 0 .. num_threads - 1 */
  /* task(data, i, worker) for each i in [0, n), in any order, until all have returned. */
  void (*parallel_for)(void* context, int64_t n,
                       void (*task)(void* data, int64_t i, int32_t worker), void* data);
  /* Keys of positions first .. first + count - 1 of a sequence as float32, whatever the cache's
   * type and page layout: k [count, head_dim], v [count, head_dim_v]; either may be null. Any
   * worker. Only positions that some row of the sequence sees may be asked for. */
  void (*read_keys)(void* context, int32_t seq, int32_t kv_head, int32_t first, int32_t count,
                    float* k, float* v);
} QuireKernelHost;

typedef struct QuireAttentionKernel {
  uint32_t size;           /* sizeof(QuireAttentionKernel) */
  uint32_t version;        /* QUIRE_KERNEL_VERSION */
  const char* name;        /* for --attention: letters, digits, '_' and '-'; no other kernel's */
  const char* summary;     /* one line for `quire kernels` */
  int32_t batch_invariant; /* 1: a row's bits depend on its own sequence only */
  /* Null, or a static text that says what is missing. */
  const char* (*supports)(const QuireAttentionShape* shape, int32_t page_size);
  /* Bytes of 64-byte aligned memory that `run` gets; uninitialised. */
  size_t (*workspace_bytes)(const QuireAttentionBatch* batch, const QuireAttentionShape* shape,
                            int32_t num_threads);
  void (*run)(const QuireAttentionBatch* batch, const QuireAttentionShape* shape,
              const QuireAttentionArgs* args, void* workspace, const QuireKernelHost* host);
} QuireAttentionKernel;

/* The one symbol that a library must have. */
const QuireAttentionKernel* quire_attention_kernel(void);

#ifdef __cplusplus
}
#endif

#endif /* QUIRE_KERNEL_PLUGIN_H_ */
