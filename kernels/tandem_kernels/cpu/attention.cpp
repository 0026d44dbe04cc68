// Paged attention over a batch of decode rows and prefill chunks.
#include "attention_types.h"

extern "C" {

void tandem_paged_attention(const TandemBatch* batch, const TandemAttention* attention,
                            const TandemLayerCache* cache, std::int32_t element, const void* q,
                            std::int64_t q_stride, void* out) {
  using namespace tandem;
  const AttentionCall call{*batch, *attention, *cache, static_cast<ElementType>(element),
                           q,      q_stride,   out};
  switch (cache->type) {
    case CacheType::kFloat32: return attend_float32(call);
    case CacheType::kBFloat16: return attend_bfloat16(call);
    case CacheType::kInt8: return attend_int8(call);
    case CacheType::kFloat8E4M3: return attend_float8(call);
  }
}
}
