// Tiles of int4 weights by activations of 8 bits with a scale for each row and unit.
//
// Weights are spread to bytes, in registers or for many tiles at once. Sums within a unit are whole
// numbers; between units they are float32, in the order of K.
#include <type_traits>

#include "linear_tile_rows.h"

namespace tandem {
namespace {

// Byte i of a word is elements i (lower nibble) and 4 + i (upper).
struct Int4Word {
  static constexpr int kQuads = 2;
  static Words quad(Words word, int index) { return (word >> (4 * index)) & 0x0f0f0f0fu; }
};

// A widened panel's.
struct WideWord {
  static constexpr int kQuads = 1;
  static Words quad(Words word, int) { return word; }
};

template <class Word, bool kOffsets>
struct NibblesRows {
  static constexpr bool kWide = std::is_same_v<Word, WideWord>;

  template <int R>
  static void multiply(const Layout& layout, const Tile& tile, std::int64_t first_row) {
    Floats sums[R][kVectors] = {};
    const std::uint32_t* x = tile.x + first_row;
    const auto* x_scales =
        reinterpret_cast<const float*>(tile.x + layout.x_lanes * tile.rows) + first_row;
    const float* x_sums = x_scales + layout.units * tile.rows;
    const char* unit = tile.panel;
    const char* weight = kWide ? reinterpret_cast<const char*>(tile.wide) : unit;
    const ScaleLoader scale_loader(layout);
    Prefetcher prefetch(tile);
    for (std::int64_t u = 0; u < layout.units; ++u) {
      const std::int64_t words = layout.words_of(u) * (kWide ? Int4Word::kQuads : 1);
      Ints ints[R][kVectors] = {};
      if (!kWide) {
        weight = unit + layout.head_bytes;
        prefetch.skip(layout.head_bytes);
      }
      for (std::int64_t word = 0; word < words; ++word) {
        prefetch();
        Words columns[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) columns[v] = load_words(weight + v * sizeof(Words));
#pragma GCC unroll 2
        for (int q = 0; q < Word::kQuads; ++q) {
          Words quads[kVectors];
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) quads[v] = Word::quad(columns[v], q);
#pragma GCC unroll 12
          for (int r = 0; r < R; ++r) {
            const Words row = spread(x[r]);
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) ints[r][v] = dot_bytes(ints[r][v], quads[v], row);
          }
          x += tile.rows;
        }
        weight += kWordsBytes;
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const Floats scale = scale_loader.load(unit, v);
        Floats offset = {};
        if constexpr (kOffsets) offset = scale_loader.load(unit + layout.scales_bytes, v);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          sums[r][v] = fused(to_floats(ints[r][v]), scale * broadcast(x_scales[r]), sums[r][v]);
          if constexpr (kOffsets) sums[r][v] = fused(broadcast(x_sums[r]), offset, sums[r][v]);
        }
      }
      x_scales += tile.rows;
      x_sums += tile.rows;
      unit += layout.unit_bytes();
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) store_sum(tile, first_row + r, v * kLanes, sums[r][v]);
    }
  }
};

void widen_panel(const Layout& layout, const char* panel, std::uint32_t* wide) {
  for (std::int64_t u = 0; u < layout.units; ++u) {
    const char* weight = panel + u * layout.unit_bytes() + layout.head_bytes;
    for (std::int64_t word = 0; word < layout.words_of(u); ++word) {
      for (int v = 0; v < kVectors; ++v) {
        const Words column = load_words(weight + v * sizeof(Words));
#pragma GCC unroll 2
        for (int q = 0; q < Int4Word::kQuads; ++q) {
          const Words quad = Int4Word::quad(column, q);
          std::memcpy(wide + q * kPanelColumns + v * kLanes, &quad, sizeof quad);
        }
      }
      wide += Int4Word::kQuads * kPanelColumns;
      weight += kWordsBytes;
    }
  }
}

template <bool kOffsets>
constexpr TileFunctions kTiles{TileOf<NibblesRows<Int4Word, kOffsets>>::multiply, widen_panel,
                               TileOf<NibblesRows<WideWord, kOffsets>>::multiply};

}  // namespace

TileFunctions nibbles_tiles(bool has_offsets) { return has_offsets ? kTiles<true> : kTiles<false>; }

}  // namespace tandem
