// The layout that linears share, and the tile: what is written once for each instruction set.
//
//     lane     four bytes along K: one float32, or two bfloat16 (an odd K is padded with a zero)
//     panel    32 output columns    [lanes][32]      weights, packed when they are loaded
//     tile     1 to 12 rows of x    [lanes][rows]    activations, packed before they are used
//
// A tile function multiplies a tile by a panel. Each of its 12 x 32 sums stays in one register lane
// from the first lane of K to the last: so an output's bits follow from its row of x and its column
// of the weight alone, whatever the height of the tile it happened to be in.
#pragma once

#include <cstdint>

namespace tandem {

constexpr std::int64_t kPanelColumns = 32;
constexpr std::int64_t kMaxTileRows = 12;

enum class ElementType : std::int32_t { kFloat32 = 0, kBFloat16 = 1 };

struct Tile {
  const std::uint32_t* x;       // [lanes][rows]
  const std::uint32_t* weight;  // [lanes][32]
  const float* bias;            // [columns], or null
  void* y;                      // row r starts at element r * y_stride
  std::int64_t lanes;
  std::int64_t rows;
  std::int64_t y_stride;
  std::int64_t columns;  // of the panel's 32, how many exist
  ElementType y_type;
  const char* prefetch;        // weights wanted soon, to be fetched along the way: two cache lines
  std::int64_t prefetch_step;  // at every lane, this many bytes on
};

using TileFunction = void (*)(const Tile& tile);

// One instruction set's tiles by the type of x and weight; null where it has none.
struct TileFunctions {
  TileFunction float32 = nullptr;
  TileFunction bfloat16 = nullptr;
};

TileFunctions portable_tiles();
TileFunctions avx512_tiles();

}  // namespace tandem
