// Rows of x as tiles take them: packed side by side, quantised where the format says so.
#pragma once

#include <cstdint>

#include "linear_layout.h"

namespace tandem {

// Bytes of working memory that `pack_tile` needs.
std::int64_t tile_room_bytes(const Layout& layout);

// Packs `rows` <= kMaxTileRows rows of x, `x_row_bytes` apart, as one tile of rows * x_words()
// words. What a row becomes depends on that row alone.
void pack_tile(const TandemLinear& linear, const Layout& layout, const char* x,
               std::int64_t x_row_bytes, std::int64_t rows, void* room, std::uint32_t* tile);

}  // namespace tandem
