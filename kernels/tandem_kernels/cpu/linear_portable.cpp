// Tiles for any CPU: vectors of 8 floats, which compilers turn into AVX, SSE or NEON registers.
#include <cstring>

#include "bfloat16.h"
#include "linear_tile.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

namespace tandem {
namespace {

using Floats = float __attribute__((vector_size(32)));
using Words = std::uint32_t __attribute__((vector_size(32)));
constexpr int kWidth = 8;
constexpr int kVectors = kPanelColumns / kWidth;

Floats fused(Floats a, Floats b, Floats sum) {
#if defined(__AVX2__) && defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
  return a * b + sum;
#endif
}

Words spread(std::uint32_t word) { return Words{} + word; }

struct Float32Lane {
  static Floats multiply_add(Floats sum, Words weight, std::uint32_t x) {
    return fused((Floats)weight, (Floats)spread(x), sum);
  }
};

// The lower half of a lane is the earlier element of K.
struct BFloat16Lane {
  static Floats multiply_add(Floats sum, Words weight, std::uint32_t x) {
    sum = fused((Floats)(weight << 16), (Floats)spread(x << 16), sum);
    return fused((Floats)(weight & 0xffff0000u), (Floats)spread(x & 0xffff0000u), sum);
  }
};

void store(const Tile& tile, std::int64_t row, const float* sums) {
  const std::int64_t first = row * tile.y_stride;
  for (std::int64_t c = 0; c < tile.columns; ++c) {
    const float value = tile.bias == nullptr ? sums[c] : sums[c] + tile.bias[c];
    if (tile.y_type == ElementType::kFloat32) {
      static_cast<float*>(tile.y)[first + c] = value;
    } else {
      static_cast<std::uint16_t*>(tile.y)[first + c] = bfloat16_from_float(value);
    }
  }
}

template <typename Lane, int kRows>
void multiply_rows(const Tile& tile, std::int64_t first_row) {
  Floats sums[kRows][kVectors] = {};
  const std::uint32_t* x = tile.x + first_row;
  const std::uint32_t* weight = tile.weight;
  for (std::int64_t lane = 0; lane < tile.lanes; ++lane, x += tile.rows, weight += kPanelColumns) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Words words;
      std::memcpy(&words, weight + v * kWidth, sizeof words);
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) {
        sums[r][v] = Lane::multiply_add(sums[r][v], words, x[r]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    store(tile, first_row + r, reinterpret_cast<const float*>(sums[r]));
  }
}

template <typename Lane>
void multiply_tile(const Tile& tile) {
  std::int64_t row = 0;
  for (; row + 2 <= tile.rows; row += 2) multiply_rows<Lane, 2>(tile, row);
  if (row < tile.rows) multiply_rows<Lane, 1>(tile, row);
}

}  // namespace

TileFunctions portable_tiles() { return {multiply_tile<Float32Lane>, multiply_tile<BFloat16Lane>}; }

}  // namespace tandem
