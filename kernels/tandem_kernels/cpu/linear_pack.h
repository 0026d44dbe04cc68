// Rows of a matrix, packed side by side: what tiles and panels are made of.
#pragma once

#include <cstdint>

#include "linear_tile.h"

namespace tandem {

constexpr std::int64_t element_bytes(ElementType type) {
  return type == ElementType::kFloat32 ? 4 : 2;
}

// Four-byte lanes in a row of `width` elements.
std::int64_t num_lanes(ElementType type, std::int64_t width);

// Writes `packed` [lanes][columns] from `rows` rows of `width` elements, `stride_bytes` apart.
// Columns beyond `rows`, and the second half of an odd last lane, become zero.
void pack_rows(const void* source, std::int64_t stride_bytes, std::int64_t rows, ElementType type,
               std::int64_t width, std::int64_t columns, std::uint32_t* packed);

// Writes one row of `width` elements back out of `packed` [lanes][columns].
void unpack_row(const std::uint32_t* packed, std::int64_t columns, std::int64_t column,
                ElementType type, std::int64_t width, void* row);

}  // namespace tandem
