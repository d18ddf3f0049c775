// kernels/cpu/attention_flash_passes-inl.h -- how `flash` walks a work item: passes over rows, and
// in each the splits of keys, for one kv head block by block or for some heads side by side. Part
// of attention_flash-inl.h, once per ISA.

namespace quire::kernels::QUIRE_ISA {

// A kv head's share of a pass: the task with scratch of its own.
struct FlashSection {
  FlashTask t;
  FlashPages pages;
  FlashPass pass;
};

// Rows [first, first + num_rows) of the item: what they see, and their queries.
template <typename Dot>
inline void BeginSection(FlashSection& section, int32_t first, int32_t num_rows) {
  const FlashTask& t = section.t;
  const AttentionMetadata& m = *t.m;
  const AttentionShape& s = *t.s;
  const WorkItem& item = t.item;
  const int32_t group = s.num_heads / s.num_kv_heads;
  const int32_t first_row = m.cu_seqlens_q[item.seq];
  const int32_t seqlen_q = m.cu_seqlens_q[item.seq + 1] - first_row;
  const int32_t seqlen_k = m.seqlens_k[item.seq];
  const int32_t end_k = item.first_k + item.num_k;

  FlashPass& pass = section.pass;
  pass.num_rows = num_rows;
  pass.first = first;
  pass.item_lo = end_k;
  pass.item_hi = item.first_k;
  int32_t query = first / group;
  int32_t head = first % group;
  for (int32_t r = 0; r < num_rows; ++r) {
    const int32_t i = item.first_q + query;
    pass.head[r] = item.kv_head * group + head;
    pass.lo[r] = item.first_k;
    pass.hi[r] = end_k;
    if (t.rows != nullptr) {  // sees all of what is shared
      pass.token[r] = t.rows[i].token;
      pass.pos[r] = t.rows[i].pos;
    } else if (head > 0 && r > 0) {  // as the same token's head before
      pass.token[r] = pass.token[r - 1];
      pass.pos[r] = pass.pos[r - 1];
      pass.lo[r] = pass.lo[r - 1];
      pass.hi[r] = pass.hi[r - 1];
    } else {
      pass.token[r] = first_row + i;
      pass.pos[r] = seqlen_k - seqlen_q + i;
      const int32_t lo = FirstVisible(s, pass.pos[r]);
      const int32_t hi = EndVisible(s, pass.pos[r], seqlen_k);
      pass.lo[r] = lo > item.first_k ? lo : item.first_k;
      pass.hi[r] = hi < end_k ? hi : end_k;
    }
    if (pass.lo[r] < pass.hi[r]) {
      pass.item_lo = pass.lo[r] < pass.item_lo ? pass.lo[r] : pass.item_lo;
      pass.item_hi = pass.hi[r] > pass.item_hi ? pass.hi[r] : pass.item_hi;
    }
    pass.run_max[r] = -__builtin_inff();
    pass.run_sum[r] = 0.0f;
    if (item.prefix >= 0 && item.partial < 0) {
      LoadPrefix(t, query, pass.head[r], &pass.run_max[r], &pass.run_sum[r],
                 t.scratch.run_acc + r * FlashDv16(s));
    }
    Dot::PackQuery(t, pass, r,
                   t.a->q + (int64_t{pass.token[r]} * s.num_heads + pass.head[r]) * s.head_dim);
    if (++head == group) {
      head = 0;
      ++query;
    }
  }
}

// The rows' keys in one split. False if nobody sees one.
inline bool BeginSplit(FlashSection& section, int32_t split, int32_t* lo, int32_t* hi) {
  FlashPass& pass = section.pass;
  *lo = pass.item_lo > split ? pass.item_lo : split;
  *hi = pass.item_hi < split + kKeySplit ? pass.item_hi : split + kKeySplit;
  pass.split = split;
  for (int32_t r = 0; r < pass.num_rows; ++r) {
    pass.from[r] = pass.lo[r] > split ? pass.lo[r] : split;
    pass.to[r] = pass.hi[r] < split + kKeySplit ? pass.hi[r] : split + kKeySplit;
    // An empty range stays empty and keeps the order that Scores relies on.
    if (pass.to[r] < split) pass.to[r] = split;
    pass.max[r] = -__builtin_inff();
    pass.sum[r] = 0.0f;
  }
  pass.copied = 0;
  pass.block = 0;
  pass.block_end = pass.num_rows;
  return *lo < *hi;
}

// What the block's rows have got from the split, to where it is joined.
inline void EndBlock(FlashSection& section) {
  const FlashTask& t = section.t;
  FlashPass& pass = section.pass;
  const int32_t dv16 = FlashDv16(*t.s);
  const int32_t b = pass.block;
  if (t.item.partial < 0) {
    MergeRows(pass.max + b, pass.sum + b, t.scratch.acc, pass.block_end - b, dv16, pass.run_max + b,
              pass.run_sum + b, t.scratch.run_acc + b * dv16);
    return;
  }
  const int64_t item_rows = int64_t{t.item.num_q} * (t.s->num_heads / t.s->num_kv_heads);
  const int64_t n = (pass.split - t.item.first_k / kKeySplit * kKeySplit) / kKeySplit;
  for (int32_t r = b; r < pass.block_end; ++r) {
    float* out =
        t.partials + t.item.partial + (n * item_rows + pass.first + r) * (kFlashPartialHead + dv16);
    StorePartial(pass.max[r], pass.sum[r], t.scratch.acc + (r - b) * dv16, dv16, out);
  }
}

inline void EndSection(const FlashSection& section) {
  const FlashTask& t = section.t;
  const FlashPass& pass = section.pass;
  if (t.item.partial >= 0) return;
  const int32_t dv16 = FlashDv16(*t.s);
  const int32_t group = t.s->num_heads / t.s->num_kv_heads;
  for (int32_t r = 0; r < pass.num_rows; ++r) {
    const float* acc = t.scratch.run_acc + r * dv16;
    if (t.rows != nullptr) {
      float* out = t.partials + t.rows[t.item.first_q + (pass.first + r) / group].prefix +
                   pass.head[r] * int64_t{kFlashPartialHead + dv16};
      StorePartial(pass.run_max[r], pass.run_sum[r], acc, dv16, out);
    } else {
      FinishRow(*t.s, *t.a, pass.token[r], pass.head[r], pass.run_max[r], pass.run_sum[r], acc);
    }
  }
}

// A split's keys for one head's rows, block by block.
template <typename Dot>
inline void SplitByBlocks(FlashSection& section, bool seen, int32_t lo, int32_t hi) {
  FlashPass& pass = section.pass;
  for (int32_t b = 0; b < pass.num_rows; b += Dot::kBlock) {
    pass.block = b;
    pass.block_end = pass.num_rows < b + Dot::kBlock ? pass.num_rows : b + Dot::kBlock;
    if (seen) {
      Dot::Scores(section.t, section.pages, pass, lo, hi);
      Dot::Softmax(section.t, pass);
      Dot::Values(section.t, section.pages, pass, lo, hi);
    }
    EndBlock(section);
  }
}

// A split's keys for the few rows of some heads. All keys come before all values: neighbours in
// memory are read together, and the wait for the first ones is one for all heads.
template <typename Dot>
inline void SplitByHeads(FlashSection* sections, int32_t num_sections, bool seen, int32_t lo,
                         int32_t hi) {
  for (int32_t i = 0; i < num_sections && seen; ++i) {
    Dot::Scores(sections[i].t, sections[i].pages, sections[i].pass, lo, hi);
  }
  for (int32_t i = 0; i < num_sections && seen; ++i) {
    Dot::Softmax(sections[i].t, sections[i].pass);
  }
  for (int32_t i = 0; i < num_sections && seen; ++i) {
    Dot::Values(sections[i].t, sections[i].pages, sections[i].pass, lo, hi);
  }
  for (int32_t i = 0; i < num_sections; ++i) EndBlock(sections[i]);
}

// One pass: the same rows of some kv heads against the item's keys.
template <typename Dot>
inline void FlashRowsPass(FlashSection* sections, int32_t num_sections, int32_t first,
                          int32_t num_rows) {
  const WorkItem& item = sections[0].t.item;
  for (int32_t i = 0; i < num_sections; ++i) BeginSection<Dot>(sections[i], first, num_rows);
  const int32_t end_k = item.first_k + item.num_k;
  for (int32_t split = item.first_k / kKeySplit * kKeySplit; split < end_k; split += kKeySplit) {
    int32_t lo = 0;
    int32_t hi = 0;
    bool seen = false;
    for (int32_t i = 0; i < num_sections; ++i) seen = BeginSplit(sections[i], split, &lo, &hi);
    if (num_sections == 1) {
      SplitByBlocks<Dot>(sections[0], seen, lo, hi);
    } else {
      SplitByHeads<Dot>(sections, num_sections, seen, lo, hi);
    }
  }
  for (int32_t i = 0; i < num_sections; ++i) EndSection(sections[i]);
}

template <typename Dot>
inline void FlashItemOf(const FlashTask& task) {
  const AttentionShape& s = *task.s;
  const int32_t rows = task.item.num_q * (s.num_heads / s.num_kv_heads);
  const int32_t pass_rows = rows < kFlashRows ? rows : kFlashRows;
  const int32_t dv16 = FlashDv16(s);
  FlashSection sections[kFlashSections];
  for (int32_t h = 0; h < task.item.num_kv_heads;) {
    int32_t n = 0;
    for (; n < kFlashSections && (n == 0 || (n + 1) * pass_rows <= Dot::kBlock) &&
           h < task.item.num_kv_heads;
         ++n, ++h) {
      FlashTask& t = sections[n].t;
      t = task;
      t.item.kv_head += h;
      if (t.item.partial >= 0) t.item.partial += h * t.item.partial_stride;
      const int32_t row = n * pass_rows;
      t.scratch.q += int64_t{row} * (s.dot == DType::kBF16 ? FlashDotDims(s) : s.head_dim);
      t.scratch.scores += row * kFlashLdScores;
      t.scratch.acc += row * dv16;
      t.scratch.run_acc += row * dv16;
      sections[n].pages = PagesOf(t);
    }
    for (int32_t first = 0; first < rows; first += kFlashRows) {
      FlashRowsPass<Dot>(sections, n, first, rows - first < kFlashRows ? rows - first : kFlashRows);
    }
  }
}

}  // namespace quire::kernels::QUIRE_ISA
