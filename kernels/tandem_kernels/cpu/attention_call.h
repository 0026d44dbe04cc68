// One call of attention as the kernels see it: the batch, the layer and the tensors.
#pragma once

#include <algorithm>
#include <cstdint>

#include "layer_cache.h"
#include "linear_tile.h"
#include "simd.h"

namespace tandem {

// Keys that one softmax covers before it is merged with those before it. Tiles lie at absolute
// positions: a query meets the same tiles however its prompt was cut.
constexpr std::int64_t kTile = 256;

// Keys of one tile, counted from its first.
struct Span {
  std::int64_t begin, end;

  bool empty() const { return begin >= end; }
  // In whole vectors.
  Span widened() const {
    return {begin / kLanes * kLanes, (end + kLanes - 1) / kLanes * kLanes};
  }
};

struct AttentionCall {
  const TandemBatch& batch;
  const TandemAttention& attention;
  const TandemLayerCache& cache;
  ElementType element;
  const void* q;
  std::int64_t q_stride;
  void* out;

  std::int64_t group() const { return attention.num_heads / cache.num_kv_heads; }

  // Where query row `row` of sequence `s` stands in its context.
  std::int64_t position(std::int64_t s, std::int64_t row) const {
    return batch.context_lens[s] - batch.query_starts[s + 1] + row;
  }

  // The first key that the query at `position` sees.
  std::int64_t first_key(std::int64_t position) const {
    const std::int64_t window = attention.window;
    return window > 0 && position >= window ? position - window + 1 : 0;
  }

  // The keys of `tile` that the query row sees; may be none.
  Span seen(std::int64_t s, std::int64_t row, std::int64_t tile) const {
    const std::int64_t at = position(s, row), start = tile * kTile;
    return {std::max<std::int64_t>(first_key(at) - start, 0),
            std::min<std::int64_t>(at + 1 - start, kTile)};
  }
};

}  // namespace tandem
