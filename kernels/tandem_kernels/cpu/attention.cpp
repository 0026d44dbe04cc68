// Paged attention over a batch of decode rows and prefill chunks.
#include "attention_rows.h"

#include "thread_pool.h"

namespace tandem {
namespace {

template <class W, class T>
void attend(const AttentionShape& shape, const AttentionTensors<T>& tensors) {
  AttentionPlan plan(shape, num_threads());
  plan.keep_partials(AttentionRows<W, T>::partial_size(shape));
  parallel_parts(plan.num_parts(), [&](int part) {
    AttentionRows<W, T> rows(shape, tensors, thread_scratch());
    const std::vector<JobShare> shares = plan.shares(part);
    for (std::size_t i = 0; i < shares.size(); ++i) {
      rows.compute(shares[i], i + 1 < shares.size() ? &shares[i + 1] : nullptr);
    }
  });
  if (!plan.has_partials()) return;
  AttentionRows<W, T> rows(shape, tensors, thread_scratch());
  for (const AttentionJob& job : plan.jobs()) {
    if (job.partials != nullptr) rows.merge_partials(job);
  }
}

#if defined(TANDEM_PAIR_WORDS)
using Bfloat16Words = PairWords;
#else
using Bfloat16Words = FloatWords;
#endif

}  // namespace
}  // namespace tandem

extern "C" {

// Caches are [num_blocks, kv_heads, block_size, d], each block contiguous; q has contiguous heads,
// its tokens `q_stride` elements apart; out is contiguous [T, heads, d]. scale > 0.
void tandem_paged_attention_float32(const tandem::AttentionShape* shape, const float* q,
                                    std::int64_t q_stride, const float* k_cache,
                                    const float* v_cache, float* out, float scale) {
  tandem::attend<tandem::FloatWords, float>(*shape, {q, q_stride, k_cache, v_cache, out, scale});
}

void tandem_paged_attention_bfloat16(const tandem::AttentionShape* shape, const tandem::Bfloat16* q,
                                     std::int64_t q_stride, const tandem::Bfloat16* k_cache,
                                     const tandem::Bfloat16* v_cache, tandem::Bfloat16* out,
                                     float scale) {
  tandem::attend<tandem::Bfloat16Words, tandem::Bfloat16>(
      *shape, {q, q_stride, k_cache, v_cache, out, scale});
}
}
