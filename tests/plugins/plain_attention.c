/* An attention kernel as a user would write one: kernel_plugin.h and nothing else. One row at a
 * time, in double, through the host's read_keys. Compiled several times: DEFECT_... makes what the
 * loader must refuse. */
#include <math.h>
#include <string.h>

#include "kernels/kernel_plugin.h"

#ifndef PLUGIN_NAME
#define PLUGIN_NAME "plain"
#endif

static const char* Supports(const QuireAttentionShape* shape, int32_t page_size) {
  (void)page_size;
  if (shape->head_dim > 256) return "head_dim must be 256 or less";
  if (shape->bidirectional != 0) return "bidirectional must be false";
  return NULL;
}

/* Doubles first: scores of a row, then sums; floats: keys and values of one kv head. */
typedef struct Scratch {
  size_t sums, keys, values, total;
} Scratch;

static Scratch ScratchOf(const QuireAttentionBatch* batch, const QuireAttentionShape* shape) {
  int32_t most = 0, i;
  Scratch s;
  for (i = 0; i < batch->num_seqs; ++i) {
    if (batch->seqlens_k[i] > most) most = batch->seqlens_k[i];
  }
  s.sums = (size_t)most * sizeof(double);
  s.keys = s.sums + (size_t)shape->head_dim_v * sizeof(double);
  s.values = s.keys + (size_t)most * (size_t)shape->head_dim * sizeof(float);
  s.total = s.values + (size_t)most * (size_t)shape->head_dim_v * sizeof(float);
  s.total = (s.total + 63) / 64 * 64;
  return s;
}

static size_t WorkspaceBytes(const QuireAttentionBatch* batch, const QuireAttentionShape* shape,
                             int32_t num_threads) {
  return ScratchOf(batch, shape).total * (size_t)num_threads;
}

typedef struct Step {
  const QuireAttentionBatch* batch;
  const QuireAttentionShape* shape;
  const QuireAttentionArgs* args;
  const QuireKernelHost* host;
  unsigned char* workspace;
  Scratch scratch;
} Step;

static int32_t FirstVisible(const QuireAttentionShape* s, int32_t pos) {
  if (s->chunk > 0) return pos / s->chunk * s->chunk;
  if (s->window > 0 && pos + 1 > s->window) return pos + 1 - s->window;
  return 0;
}

static void Row(const Step* t, int32_t row, int32_t head, int32_t pos, int32_t first, int32_t len,
                unsigned char* memory) {
  const QuireAttentionShape* s = t->shape;
  double* scores = (double*)memory;
  double* sums = (double*)(memory + t->scratch.sums);
  const float* keys = (const float*)(memory + t->scratch.keys);
  const float* values = (const float*)(memory + t->scratch.values);
  const float* q = t->args->q + ((int64_t)row * s->num_heads + head) * s->head_dim;
  float* out = t->args->out + ((int64_t)row * s->num_heads + head) * s->head_dim_v;
  const int32_t begin = FirstVisible(s, pos);
  const int32_t end = pos + 1 < len ? pos + 1 : len;
  double max = -INFINITY, sum = 0, all;
  int32_t j, d;
  for (j = begin; j < end; ++j) {
    double dot = 0;
    for (d = 0; d < s->head_dim; ++d) {
      dot += (double)q[d] * keys[(int64_t)(j - first) * s->head_dim + d];
    }
    dot *= s->softmax_scale;
    if (s->logit_softcap > 0) dot = s->logit_softcap * tanh(dot / s->logit_softcap);
    if (t->args->alibi_slopes != NULL) dot += (double)t->args->alibi_slopes[head] * (j - pos);
    scores[j - begin] = dot;
    if (dot > max) max = dot;
  }
  for (d = 0; d < s->head_dim_v; ++d) sums[d] = 0;
  for (j = begin; j < end; ++j) {
    const double p = exp(scores[j - begin] - max);
    sum += p;
    for (d = 0; d < s->head_dim_v; ++d) {
      sums[d] += p * values[(int64_t)(j - first) * s->head_dim_v + d];
    }
  }
  all = sum;
  if (t->args->sinks != NULL && sum > 0) all += exp((double)t->args->sinks[head] - max);
  for (d = 0; d < s->head_dim_v; ++d) out[d] = sum > 0 ? (float)(sums[d] / all) : 0.0f;
  if (t->args->lse != NULL) {
    t->args->lse[(int64_t)row * s->num_heads + head] =
        sum > 0 ? (float)(log(sum) + max) : -INFINITY;
  }
}

/* One sequence and kv head. */
static void Task(void* data, int64_t task, int32_t worker) {
  const Step* t = (const Step*)data;
  const QuireAttentionShape* s = t->shape;
  const int32_t seq = (int32_t)(task / s->num_kv_heads);
  const int32_t kv_head = (int32_t)(task % s->num_kv_heads);
  const int32_t group = s->num_heads / s->num_kv_heads;
  const int32_t row0 = t->batch->cu_seqlens_q[seq];
  const int32_t rows = t->batch->cu_seqlens_q[seq + 1] - row0;
  const int32_t len = t->batch->seqlens_k[seq];
  unsigned char* memory = t->workspace + (size_t)worker * t->scratch.total;
  const int32_t pos0 = len - rows;
  const int32_t first = FirstVisible(s, pos0 > 0 ? pos0 : 0);
  int32_t r, g;
  if (rows == 0) return;
  if (first < len) {
    t->host->read_keys(t->host->context, seq, kv_head, first, len - first,
                       (float*)(memory + t->scratch.keys), (float*)(memory + t->scratch.values));
  }
  for (r = 0; r < rows; ++r) {
    for (g = 0; g < group; ++g) {
      Row(t, row0 + r, kv_head * group + g, pos0 + r, first, len, memory);
    }
  }
}

static void Run(const QuireAttentionBatch* batch, const QuireAttentionShape* shape,
                const QuireAttentionArgs* args, void* workspace, const QuireKernelHost* host) {
  Step step;
  step.batch = batch;
  step.shape = shape;
  step.args = args;
  step.host = host;
  step.workspace = (unsigned char*)workspace;
  step.scratch = ScratchOf(batch, shape);
  host->parallel_for(host->context, (int64_t)batch->num_seqs * shape->num_kv_heads, Task, &step);
}

static const QuireAttentionKernel kKernel = {
#ifdef DEFECT_SIZE
    8,
#else
    sizeof(QuireAttentionKernel),
#endif
#ifdef DEFECT_VERSION
    QUIRE_KERNEL_VERSION + 1,
#else
    QUIRE_KERNEL_VERSION,
#endif
    PLUGIN_NAME,
    "one row at a time in double",
    1,
    Supports,
    WorkspaceBytes,
    Run,
};

#ifdef DEFECT_SYMBOL
const QuireAttentionKernel* some_other_name(void);
const QuireAttentionKernel* some_other_name(void) { return &kKernel; }
#else
const QuireAttentionKernel* quire_attention_kernel(void) {
  static QuireAttentionKernel kernel;
  kernel = kKernel;
#ifdef DEFECT_NULL
  kernel.workspace_bytes = NULL;
  kernel.run = NULL;
#endif
#ifdef DEFECT_NOTHING
  if (kernel.name != NULL) return NULL;
#endif
  return &kernel;
}
#endif
