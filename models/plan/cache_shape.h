// models/plan/cache_shape.h -- what each layer of a model caches, in numbers, for every kind of
// cache (contract C7): the input of `quire plan`.
//
// The readers of shape_readers.h fill it from a config.json or from GGUF metadata; no weight is
// read. Everything here is a pure function of these numbers. Sizes saturate at kTooLarge instead of
// wrapping: CheckShape refuses what saturated.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

// Larger than any memory; products and sums stop here.
inline constexpr int64_t kTooLarge = int64_t{1} << 60;

// Factors and terms are >= 0.
int64_t SaturatingProduct(std::initializer_list<int64_t> factors);
int64_t SaturatingSum(std::initializer_list<int64_t> terms);

enum class PartKind : uint8_t {
  kFull,        // keys and values of every token
  kSliding,     // of the last `window` tokens, the query's own included: W - 1 past ones are kept
  kChunked,     // of the current chunk of `window` tokens
  kLatent,      // one latent and one rotated key part per token (MLA)
  kCompressed,  // one entry per `tokens_per_entry` tokens, and buffers for the rest
  kIndexer,     // keys that only choose what is attended
  kState,       // a recurrent matrix and some columns of a convolution: independent of length
  kCross,       // keys and values of the encoder's tokens, written once
};
std::string_view NameOf(PartKind kind);

// One array of a layer's cache. A layer may have several (a state beside keys and values; a window,
// compressed entries and indexer keys).
struct CachePart {
  PartKind kind = PartKind::kFull;
  // kFull, kSliding, kChunked, kCompressed, kIndexer, kCross, elements per entry and head:
  int64_t kv_heads = 1;
  int64_t key_dim = 0;
  int64_t value_dim = 0;  // 0: V is K, or there are only keys
  // kLatent:
  int64_t latent_dim = 0;
  int64_t rope_dim = 0;

  int64_t window = 0;            // kSliding, kChunked: tokens
  int64_t tokens_per_entry = 1;  // kCompressed, and a compressed indexer's
  // kState: elements of the recurrent matrix (float32) and of the convolution, of whose `kernel`
  // columns the newest is not kept.
  int64_t recurrent_elements = 0;
  int64_t conv_channels = 0;
  int64_t conv_kernel = 0;
  // kCompressed: per token that no entry covers yet, and what the last closed entry leaves for the
  // next one. Elements, float32.
  int64_t buffer_elements = 0;
  int64_t overlap_elements = 0;

  // What the layer would cache per token without its compression, as heads or entries; 0: the same.
  int64_t plain_elements = 0;
  // The window beside compressed entries, which published sizes leave out.
  bool beside_compressed = false;

  bool operator==(const CachePart&) const = default;
};

struct LayerShape {
  std::vector<CachePart> parts;  // empty: nothing cached
  int32_t shared_from = -1;      // >= 0: reads that layer's cache and owns none
};

// Widths that size activations.
struct ActivationShape {
  int64_t hidden_dim = 0;
  int64_t q_dim = 0;   // largest num_heads * head_dim
  int64_t kv_dim = 0;  // largest num_kv_heads * head_dim
  int64_t mlp_dim = 0;
  int64_t vocab_size = 0;
  std::vector<int64_t> rotary_dims;  // one for each rope
};

struct ModelShape {
  std::string name;          // for people
  std::string architecture;  // as the checkpoint says
  int64_t parameters = 0;
  int64_t weight_bytes = 0;  // > 0: known from the file (GGUF)
  std::string weight_type;   // "bfloat16", "Q4_1" ...; empty: not said
  int64_t max_position = 0;  // 0: not said
  int64_t num_heads = 0;
  ActivationShape activations;
  std::vector<LayerShape> layers;
  std::vector<std::string> notes;  // what was left out, and the like
};

// Elements of one entry: of one token, or of tokens_per_entry tokens. 0 for kState.
int64_t ElementsPerEntry(const CachePart& part);
// Keys, values, latents: each has a scale of its own where a format has scales.
int64_t VectorsPerEntry(const CachePart& part);
// Entries held once a sequence has `tokens` tokens; 0 for kState. Windows are capped unless told.
int64_t EntriesAt(const CachePart& part, int64_t tokens, bool capped = true);

// Layers with equal parts, counted. Order of first occurrence.
struct PartGroup {
  CachePart part;
  int64_t num_layers = 0;
};
std::vector<PartGroup> GroupParts(const ModelShape& shape);

// ERRORS: kInvalidArgument naming the model and what is too large.
absl::Status CheckShape(const ModelShape& shape);

}  // namespace quire
