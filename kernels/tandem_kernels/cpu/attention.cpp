// Paged attention over a batch of decode rows and prefill chunks.
#include "attention_rows.h"

#include "layer_cache.h"
#include "linear_tile.h"
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

template <class W, class T>
void attend(const TandemBatch& batch, const TandemAttention& attention,
            const TandemLayerCache& cache, const void* q, std::int64_t q_stride, void* out) {
  AttentionShape shape{};
  shape.query_starts = batch.query_starts;
  shape.context_lens = batch.context_lens;
  shape.block_tables = batch.block_tables;
  shape.num_sequences = batch.num_sequences;
  shape.table_width = batch.table_width;
  shape.window = attention.window;
  shape.num_heads = attention.num_heads;
  shape.num_kv_heads = cache.num_kv_heads;
  shape.head_dim = cache.head_dim;
  shape.block_size = cache.block_size;
  shape.block_stride = cache.block_stride / static_cast<std::int64_t>(sizeof(T));
  shape.head_stride = cache.head_stride / static_cast<std::int64_t>(sizeof(T));
  attend<W, T>(shape, {static_cast<const T*>(q), q_stride, static_cast<const T*>(cache.k),
                       static_cast<const T*>(cache.v), static_cast<T*>(out), attention.scale,
                       attention.softcap});
}

}  // namespace
}  // namespace tandem

extern "C" {

void tandem_paged_attention(const TandemBatch* batch, const TandemAttention* attention,
                            const TandemLayerCache* cache, std::int32_t element, const void* q,
                            std::int64_t q_stride, void* out) {
  using namespace tandem;
  if (static_cast<ElementType>(element) == ElementType::kFloat32) {
    attend<FloatWords, float>(*batch, *attention, *cache, q, q_stride, out);
  } else {
    attend<Bfloat16Words, Bfloat16>(*batch, *attention, *cache, q, q_stride, out);
  }
}
}
