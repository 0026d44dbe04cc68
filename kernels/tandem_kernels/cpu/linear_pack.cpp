// Packing is a transposition of words, in squares of 4 x 4 as far as they go.
#include "linear_pack.h"

#include <algorithm>
#include <cstring>

namespace tandem {
namespace {

using FourWords = std::uint32_t __attribute__((vector_size(16)));

FourWords load_four(const char* from) {
  FourWords words;
  std::memcpy(&words, from, sizeof words);
  return words;
}

void store_four(std::uint32_t* to, FourWords words) { std::memcpy(to, &words, sizeof words); }

void pack_square(const char* source, std::int64_t stride_bytes, std::int64_t columns,
                 std::uint32_t* packed) {
  const FourWords a = load_four(source);
  const FourWords b = load_four(source + stride_bytes);
  const FourWords c = load_four(source + 2 * stride_bytes);
  const FourWords d = load_four(source + 3 * stride_bytes);
  const FourWords ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const FourWords ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const FourWords cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const FourWords cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  store_four(packed, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
  store_four(packed + columns, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
  store_four(packed + 2 * columns, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
  store_four(packed + 3 * columns, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
}

void pack_one(const char* row, std::int64_t first_byte, std::int64_t row_bytes,
              std::int64_t columns, std::uint32_t* packed) {
  for (std::int64_t byte = first_byte; byte < row_bytes; byte += 4) {
    std::uint32_t word = 0;
    if (byte + 4 <= row_bytes) {
      std::memcpy(&word, row + byte, 4);
    } else {
      std::memcpy(&word, row + byte, static_cast<std::size_t>(row_bytes - byte));
    }
    packed[byte / 4 * columns] = word;
  }
}

}  // namespace

void pack_rows(const void* source, std::int64_t stride_bytes, std::int64_t rows,
               std::int64_t row_bytes, std::int64_t columns, std::uint32_t* packed) {
  const char* first = static_cast<const char*>(source);
  const std::int64_t square_bytes = rows < 4 ? 0 : row_bytes / 16 * 16;
  for (std::int64_t row = 0; square_bytes > 0 && row < rows; row += 4) {
    const std::int64_t top = std::min(row, rows - 4);  // the last square may repeat some rows
    for (std::int64_t byte = 0; byte < square_bytes; byte += 16) {
      pack_square(first + top * stride_bytes + byte, stride_bytes, columns,
                  packed + byte / 4 * columns + top);
    }
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    pack_one(first + row * stride_bytes, square_bytes, row_bytes, columns, packed + row);
  }
  for (std::int64_t word = 0; rows < columns && word * 4 < row_bytes; ++word) {
    std::memset(packed + word * columns + rows, 0, static_cast<std::size_t>(columns - rows) * 4);
  }
}

void unpack_row(const void* packed, std::int64_t columns, std::int64_t column,
                std::int64_t row_bytes, void* row) {
  const char* from = static_cast<const char*>(packed) + column * 4;
  char* to = static_cast<char*>(row);
  for (std::int64_t byte = 0; byte < row_bytes; byte += 4) {
    const std::int64_t count = std::min<std::int64_t>(row_bytes - byte, 4);
    std::memcpy(to + byte, from + byte * columns, static_cast<std::size_t>(count));
  }
}

}  // namespace tandem
