// Rows of words, packed side by side: what tiles and panels are made of.
#pragma once

#include <cstdint>

namespace tandem {

// Writes `packed` [words][columns] from `rows` rows of `row_bytes`, `stride_bytes` apart. Columns
// beyond `rows`, and what a row's last word lacks, become zero.
void pack_rows(const void* source, std::int64_t stride_bytes, std::int64_t rows,
               std::int64_t row_bytes, std::int64_t columns, std::uint32_t* packed);

// Writes one row of `row_bytes` back out of `packed` [words][columns].
void unpack_row(const void* packed, std::int64_t columns, std::int64_t column,
                std::int64_t row_bytes, void* row);

}  // namespace tandem
