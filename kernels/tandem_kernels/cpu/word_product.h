// A few rows times a matrix of words, block by block of registers.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attention_words.h"

namespace tandem {

constexpr int kBlockRows = 6;
constexpr int kBlockVectors = kVectorRegisters >= 32 ? 4 : 2;

// c[R][V vectors] = sum over `depth` words of a[R][depth] b[depth][V vectors].
template <class W, int R, int V>
inline void multiply_block(const std::uint32_t* a, std::int64_t a_stride, const std::uint32_t* b,
                           std::int64_t b_stride, std::int64_t depth, float* c,
                           std::int64_t c_stride) {
  Floats sums[R][V] = {};
  for (std::int64_t k = 0; k < depth; ++k) {
    Words columns[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) columns[v] = load_words(b + k * b_stride + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Words row = a[r * a_stride + k] + Words{};
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] = W::multiply_add(sums[r][v], row, columns[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(c + r * c_stride + v * kLanes, sums[r][v]);
  }
}

// The same for any number of whole vectors.
template <class W, int R>
inline void multiply_rows(const std::uint32_t* a, std::int64_t a_stride, const std::uint32_t* b,
                          std::int64_t b_stride, std::int64_t depth, float* c,
                          std::int64_t c_stride, std::int64_t num_vectors) {
  std::int64_t v = 0;
  for (; v + kBlockVectors <= num_vectors; v += kBlockVectors) {
    multiply_block<W, R, kBlockVectors>(a, a_stride, b + v * kLanes, b_stride, depth,
                                        c + v * kLanes, c_stride);
  }
  for (; v < num_vectors; ++v) {
    multiply_block<W, R, 1>(a, a_stride, b + v * kLanes, b_stride, depth, c + v * kLanes,
                            c_stride);
  }
}

// The same for 1 to kBlockRows rows.
template <class W>
void multiply(int num_rows, const std::uint32_t* a, std::int64_t a_stride, const std::uint32_t* b,
              std::int64_t b_stride, std::int64_t depth, float* c, std::int64_t c_stride,
              std::int64_t num_vectors) {
  const auto rows = [&](auto count) {
    multiply_rows<W, decltype(count)::value>(a, a_stride, b, b_stride, depth, c, c_stride,
                                             num_vectors);
  };
  switch (num_rows) {
    case 1: return rows(std::integral_constant<int, 1>());
    case 2: return rows(std::integral_constant<int, 2>());
    case 3: return rows(std::integral_constant<int, 3>());
    case 4: return rows(std::integral_constant<int, 4>());
    case 5: return rows(std::integral_constant<int, 5>());
    default: return rows(std::integral_constant<int, kBlockRows>());
  }
}

}  // namespace tandem
