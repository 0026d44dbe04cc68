// Tiles of float32 and bfloat16 weights.
#include "linear_tile_rows.h"

namespace tandem {
namespace {

struct Float32Word {
  static Floats multiply_add(Floats sum, Words weight, Words x) {
    return fused(bit_cast<Floats>(weight), bit_cast<Floats>(x), sum);
  }
};

struct BFloat16Word {
  static Floats multiply_add(Floats sum, Words weight, Words x) {
    return dot_bfloat16(sum, weight, x);
  }
};

template <class Word>
struct PlainRows {
  template <int R>
  static void multiply(const Layout& layout, const Tile& tile, std::int64_t first_row) {
    Floats sums[R][kVectors] = {};
    const std::uint32_t* x = tile.x + first_row;
    const char* weight = tile.panel;
    Prefetcher prefetch(tile);
    for (std::int64_t word = 0; word < layout.words; ++word) {
      prefetch();
      Words columns[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) columns[v] = load_words(weight + v * sizeof(Words));
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Words row = spread(x[r]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = Word::multiply_add(sums[r][v], columns[v], row);
        }
      }
      x += tile.rows;
      weight += kWordsBytes;
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) store_sum(tile, first_row + r, v * kLanes, sums[r][v]);
    }
  }
};

}  // namespace

TileFunction float32_tile() { return TileOf<PlainRows<Float32Word>>::multiply; }
TileFunction bfloat16_tile() { return TileOf<PlainRows<BFloat16Word>>::multiply; }

}  // namespace tandem
