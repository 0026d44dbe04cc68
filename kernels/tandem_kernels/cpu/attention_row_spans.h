// Blocks of query rows, the lanes of vectors, and which keys of a tile each of them sees.
#pragma once

#include <cstdint>

#include "attention_call.h"
#include "attention_softmax.h"
#include "simd.h"

namespace tandem {

constexpr int kBlockVectors = 3;  // of rows in a block
constexpr std::int64_t kBlockRows = kBlockVectors * kLanes;

constexpr std::int64_t kPackedKeys = 4 * kLanes;  // side by side in a piece of a packed tile

// The keys that each row of some vectors sees.
template <int V>
struct RowSpans {
  Ints begin[V], end[V];
  Span all;     // some row sees them
  Span common;  // every row does

  Floats masked(int v, std::int64_t key, Floats scores) const {
    const Ints at = Ints{} + static_cast<std::int32_t>(key);
    return (begin[v] <= at) & (at < end[v]) ? scores : broadcast(kUnseen);
  }
};

}  // namespace tandem
