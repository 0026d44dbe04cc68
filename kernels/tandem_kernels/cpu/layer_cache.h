// One layer of the paged KV cache, as kernels see it (interface.py's LayerCache).
//
//   block b, head h   k + b * block_stride + h * head_stride     [block_size][head_dim] values
//                     k_scales + b * scale_block_stride + h * scale_head_stride   [block_size]
//
// v has the same strides as k. Values of a token and head are contiguous, and so are a block's tokens.
#pragma once

#include <cstdint>

#include "simd.h"

namespace tandem {

// Rows of this many elements fit the stack of a thread; no model's heads are larger.
constexpr std::int64_t kMaxHeadDim = 1024;

enum class CacheType : std::int32_t { kFloat32 = 0, kBFloat16 = 1, kInt8 = 2, kFloat8E4M3 = 3 };

}  // namespace tandem

extern "C" {

// Filled by Python (layer_cache.py), field by field.
struct TandemLayerCache {
  void* k;
  void* v;
  tandem::Bfloat16* k_scales;  // null unless the type has scales
  tandem::Bfloat16* v_scales;
  std::int64_t block_stride;        // bytes
  std::int64_t head_stride;         // bytes
  std::int64_t scale_block_stride;  // elements
  std::int64_t scale_head_stride;   // elements
  std::int64_t block_size;          // tokens
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  tandem::CacheType type;
};

// One batch, the same for all layers of a step (interface.py's AttentionMeta).
struct TandemBatch {
  const std::int32_t* query_starts;  // [num_sequences + 1]
  const std::int32_t* context_lens;  // [num_sequences]
  const std::int32_t* block_tables;  // [num_sequences][table_width]
  const std::int64_t* slot_mapping;  // [T]
  const std::int64_t* positions;     // [T]
  std::int64_t num_sequences;
  std::int64_t table_width;
};

// How one layer attends.
struct TandemAttention {
  std::int64_t num_heads;
  std::int64_t window;  // 0: none
  float scale;
  float softcap;  // 0: none
};

// q [T][q_stride] with contiguous heads, of `element` (linear_tile.h's ElementType: 0 float32,
// 1 bfloat16); out contiguous [T][heads * head_dim] of the same. Parallel inside; inline where the
// caller already runs on the pool.
void tandem_paged_attention(const TandemBatch* batch, const TandemAttention* attention,
                            const TandemLayerCache* cache, std::int32_t element, const void* q,
                            std::int64_t q_stride, void* out);

// Rotates the first `rotary_dim` elements of every head of q and k (q in place, k on its way), then
// writes k and v to their slots, quantised if the cache is. rotary_dim 0: only writes.
// cos_sin float32 [positions][rotary_dim]. Strides count elements from one token to the next.
void tandem_rope_write_kv(const TandemBatch* batch, const TandemLayerCache* cache,
                          std::int32_t element, void* q, std::int64_t q_stride,
                          std::int64_t num_heads, const void* k, std::int64_t k_stride,
                          const void* v, std::int64_t v_stride, const float* cos_sin,
                          std::int64_t rotary_dim, std::int64_t num_tokens);
}
