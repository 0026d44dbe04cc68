// The tile: rows of x by a panel of weights, which is all the arithmetic there is.
//
// Each of its 12 x 32 sums stays in one register lane from the first word of K to the last, and is
// folded at the same words: so an output's bits follow from its row of x and its column of the
// weight alone, whatever the height of the tile it happened to be in.
#pragma once

#include "linear_layout.h"

namespace tandem {

struct Tile {
  const std::uint32_t* x;  // a packed tile
  const char* panel;
  const std::uint32_t* wide;  // the panel's numbers once they are widened, or null
  const float* bias;  // [columns], or null
  void* y;            // row r starts at element r * y_stride
  std::int64_t rows;
  std::int64_t y_stride;
  std::int64_t columns;  // of the panel's 32, how many exist
  ElementType y_type;
  const char* prefetch;        // weights wanted soon, to be fetched along the way: two cache lines
  std::int64_t prefetch_step;  // at every word, this many bytes on
};

using TileFunction = void (*)(const Layout& layout, const Tile& tile);

// Where a panel that many tiles use is widened once instead of by every tile.
using WidenFunction = void (*)(const Layout& layout, const char* panel, std::uint32_t* wide);

struct TileFunctions {
  TileFunction multiply;
  WidenFunction widen;       // [x_lanes][32] words; null: tiles take panels only
  TileFunction multiply_wide;
};

TileFunctions tile_functions(const TandemLinear& linear);

TileFunction float32_tile();
TileFunction bfloat16_tile();
TileFunction bytes_tile();
TileFunctions shorts_tiles(bool has_offsets);
TileFunctions nibbles_tiles(bool has_offsets);

}  // namespace tandem
