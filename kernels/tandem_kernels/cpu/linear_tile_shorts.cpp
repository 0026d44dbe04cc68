// Tiles of int8 weights by activations of 16-bit fixed point.
//
// Weights are widened to int16, in registers or for many tiles at once. Sums within a unit are
// whole numbers; between units they are float32, in the order of K.
#include <type_traits>

#include "linear_tile_rows.h"

namespace tandem {
namespace {

// Bytes 0, 1, 2, 3 of a word are its elements 0, 2, 1, 3: so pairs of neighbours widen by a shift.
struct Int8Word {
  static constexpr int kPairs = 2;
  static Words pair(Words word, int index) {
    const Shorts halves = bit_cast<Shorts>(index == 0 ? word << 8 : word);
    return bit_cast<Words>(halves >> 8);
  }
};

// A widened panel's.
struct WideWord {
  static constexpr int kPairs = 1;
  static Words pair(Words word, int) { return word; }
};

template <class Word, bool kOffsets>
struct ShortsRows {
  static constexpr bool kWide = std::is_same_v<Word, WideWord>;

  template <int R>
  static void multiply(const Layout& layout, const Tile& tile, std::int64_t first_row) {
    Floats sums[R][kVectors] = {};
    const std::uint32_t* x = tile.x + first_row;
    const auto* x_scales =
        reinterpret_cast<const float*>(tile.x + layout.x_lanes * tile.rows) + first_row;
    const float* x_sums = x_scales + tile.rows;
    const char* unit = tile.panel;
    const char* weight = kWide ? reinterpret_cast<const char*>(tile.wide) : unit;
    const ScaleLoader scale_loader(layout);
    Prefetcher prefetch(tile);
    for (std::int64_t u = 0; u < layout.units; ++u) {
      const std::int64_t words = layout.words_of(u) * (kWide ? Int8Word::kPairs : 1);
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
        for (int p = 0; p < Word::kPairs; ++p) {
          Words pairs[kVectors];
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) pairs[v] = Word::pair(columns[v], p);
#pragma GCC unroll 12
          for (int r = 0; r < R; ++r) {
            const Words row = spread(x[r]);
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) ints[r][v] = dot_shorts(ints[r][v], pairs[v], row);
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
          sums[r][v] = fused(to_floats(ints[r][v]), scale, sums[r][v]);
          if constexpr (kOffsets) sums[r][v] = fused(broadcast(x_sums[r]), offset, sums[r][v]);
        }
      }
      x_sums += tile.rows;
      unit += layout.unit_bytes();
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        store_sum(tile, first_row + r, v * kLanes, sums[r][v] * broadcast(x_scales[r]));
      }
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
        for (int p = 0; p < Int8Word::kPairs; ++p) {
          const Words pair = Int8Word::pair(column, p);
          std::memcpy(wide + p * kPanelColumns + v * kLanes, &pair, sizeof pair);
        }
      }
      wide += Int8Word::kPairs * kPanelColumns;
      weight += kWordsBytes;
    }
  }
}

template <bool kOffsets>
constexpr TileFunctions kTiles{TileOf<ShortsRows<Int8Word, kOffsets>>::multiply, widen_panel,
                               TileOf<ShortsRows<WideWord, kOffsets>>::multiply};

}  // namespace

TileFunctions shorts_tiles(bool has_offsets) { return has_offsets ? kTiles<true> : kTiles<false>; }

}  // namespace tandem
