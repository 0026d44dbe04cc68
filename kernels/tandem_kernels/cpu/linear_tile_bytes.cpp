// Tiles of int8 weights by activations of 8 bits, which have a scale for each piece of K.
//
// The instruction takes one side as unsigned: weights are stored plus 128, and a piece's sums start
// at -128 times the sum of its activations. Within a piece all sums are whole numbers; pieces are
// added in float32, in the order of K.
#include "linear_tile_rows.h"

namespace tandem {
namespace {

struct BytesRows {
  // Sums of both kinds stay in registers.
  static constexpr int kAtOnce = kRowsAtOnce / 2;

  template <int R>
  static void multiply(const Layout& layout, const Tile& tile, std::int64_t first_row) {
    const std::uint32_t* x = tile.x + first_row;
    const std::uint32_t* x_scales = x + layout.x_lanes * tile.rows;
    const std::uint32_t* x_sums = x_scales + layout.x_scales * tile.rows;
    const char* weight = tile.panel + layout.head_bytes;
    Prefetcher prefetch(tile);
    prefetch.skip(layout.head_bytes);
    Floats sums[R][kVectors] = {};
    for (std::int64_t piece = 0; piece < layout.units; ++piece) {
      Ints ints[R][kVectors];
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) ints[r][v] = bit_cast<Ints>(spread(x_sums[r]));
      }
      const std::int64_t words = layout.words_of(piece);
      for (std::int64_t word = 0; word < words; ++word) {
        prefetch();
        Words columns[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) columns[v] = load_words(weight + v * sizeof(Words));
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const Words row = spread(x[r]);
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) ints[r][v] = dot_bytes(ints[r][v], columns[v], row);
        }
        x += tile.rows;
        weight += kWordsBytes;
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Floats scale = bit_cast<Floats>(spread(x_scales[r]));
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = fused(to_floats(ints[r][v]), scale, sums[r][v]);
        }
      }
      x_scales += tile.rows;
      x_sums += tile.rows;
    }
    const auto* scales = reinterpret_cast<const float*>(tile.panel);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        store_sum(tile, first_row + r, v * kLanes, sums[r][v] * load(scales + v * kLanes));
      }
    }
  }
};

}  // namespace

TileFunction bytes_tile() { return TileOf<BytesRows, BytesRows::kAtOnce>::multiply; }

}  // namespace tandem
