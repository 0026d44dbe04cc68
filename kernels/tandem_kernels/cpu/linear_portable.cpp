// Tiles for any CPU, in the vectors of simd.h.
#include <algorithm>

#include "linear_tile.h"
#include "simd.h"

namespace tandem {
namespace {

constexpr int kVectors = kPanelColumns / kLanes;
// Rows at a time: with 16 registers, 8 sums leave room for weights and activations.
constexpr int kRowsAtOnce = 2;

Floats spread(std::uint32_t word) { return bit_cast<Floats>(Words{} + word); }

struct Float32Lane {
  static Floats multiply_add(Floats sum, Words weight, std::uint32_t x) {
    return fused(bit_cast<Floats>(weight), spread(x), sum);
  }
};

// The lower half of a lane is the earlier element of K.
struct BFloat16Lane {
  static Floats multiply_add(Floats sum, Words weight, std::uint32_t x) {
    sum = fused(bit_cast<Floats>(weight << 16), spread(x << 16), sum);
    return fused(bit_cast<Floats>(weight & 0xffff0000u), spread(x & 0xffff0000u), sum);
  }
};

void store_sum(const Tile& tile, std::int64_t row, std::int64_t column, Floats sum) {
  const std::int64_t count = std::min<std::int64_t>(tile.columns - column, kLanes);
  if (count <= 0) return;
  if (tile.bias != nullptr) sum += load_some(tile.bias + column, count);
  const std::int64_t at = row * tile.y_stride + column;
  if (tile.y_type == ElementType::kFloat32) {
    store_some(static_cast<float*>(tile.y) + at, sum, count);
  } else {
    store_some(static_cast<Bfloat16*>(tile.y) + at, sum, count);
  }
}

template <typename Lane, int kRows>
void multiply_rows(const Tile& tile, std::int64_t first_row) {
  Floats sums[kRows][kVectors] = {};
  const std::uint32_t* x = tile.x + first_row;
  const std::uint32_t* weight = tile.weight;
  for (std::int64_t lane = 0; lane < tile.lanes; ++lane, x += tile.rows, weight += kPanelColumns) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      Words words;
      std::memcpy(&words, weight + v * kLanes, sizeof words);
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) {
        sums[r][v] = Lane::multiply_add(sums[r][v], words, x[r]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) store_sum(tile, first_row + r, v * kLanes, sums[r][v]);
  }
}

template <typename Lane>
void multiply_tile(const Tile& tile) {
  std::int64_t row = 0;
  for (; row + kRowsAtOnce <= tile.rows; row += kRowsAtOnce) {
    multiply_rows<Lane, kRowsAtOnce>(tile, row);
  }
  for (; row < tile.rows; ++row) multiply_rows<Lane, 1>(tile, row);
}

}  // namespace

TileFunctions portable_tiles() { return {multiply_tile<Float32Lane>, multiply_tile<BFloat16Lane>}; }

}  // namespace tandem
