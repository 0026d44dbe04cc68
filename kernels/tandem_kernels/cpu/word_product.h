// Small matrices of words multiplied in registers: every lane's sum runs over the words in order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attention_words.h"

namespace tandem {

// sums[R][V vectors] over `depth` words of a[k * a_step + r * a_stride] (one word for all lanes) times
// b[k * b_step] (V vectors). Then finish(r, v, sum) of each.
template <class W, int R, int V, class Finish>
[[gnu::always_inline]] inline void multiply_block(const std::uint32_t* a, std::int64_t a_stride, std::int64_t a_step,
                           const std::uint32_t* b, std::int64_t b_step, std::int64_t depth,
                           const Finish& finish) {
  Floats sums[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sums[r][v] = Floats{};
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    Words columns[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) columns[v] = load_words(b + k * b_step + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Words row = a[k * a_step + r * a_stride] + Words{};
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] = W::multiply_add(sums[r][v], row, columns[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) finish(r, v, sums[r][v]);
  }
}

// f(std::integral_constant<int, count>) for a count of 1 to Most, known when it is compiled.
template <int Most, class F>
inline void with_count(int count, const F& f) {
  if constexpr (Most == 1) {
    f(std::integral_constant<int, 1>());
  } else {
    if (count >= Most) return f(std::integral_constant<int, Most>());
    with_count<Most - 1>(count, f);
  }
}

}  // namespace tandem
