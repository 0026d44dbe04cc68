// Tiles of int8 weights by activations of 8 bits.
//
// The instruction takes activations as unsigned: they are stored plus 128, and sums start at -128
// times the sum of the column's weights. All sums are whole numbers: their order is free.
#include "linear_tile_rows.h"

namespace tandem {
namespace {

struct BytesRows {
  template <int R>
  static void multiply(const Layout& layout, const Tile& tile, std::int64_t first_row) {
    const std::uint32_t* x = tile.x + first_row;
    const char* weight = tile.panel + layout.head_bytes;
    Prefetcher prefetch(tile);
    Ints sums[R][kVectors];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        std::memcpy(&sums[r][v], tile.panel + layout.scales_bytes + v * sizeof(Ints), sizeof(Ints));
      }
    }
    for (std::int64_t word = 0; word < layout.words; ++word) {
      prefetch();
      Words columns[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) columns[v] = load_words(weight + v * sizeof(Words));
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Words row = spread(x[r]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[r][v] = dot_bytes(sums[r][v], row, columns[v]);
      }
      x += tile.rows;
      weight += kWordsBytes;
    }
    const auto* x_scales = reinterpret_cast<const float*>(x);  // behind the last lane
    const auto* scales = reinterpret_cast<const float*>(tile.panel);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const Floats scaled = to_floats(sums[r][v]) * load(scales + v * kLanes);
        store_sum(tile, first_row + r, v * kLanes, scaled * broadcast(x_scales[r]));
      }
    }
  }
};

}  // namespace

TileFunction bytes_tile() { return TileOf<BytesRows>::multiply; }

}  // namespace tandem
