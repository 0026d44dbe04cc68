// Packing is a transposition of four-byte lanes, in squares of 4 x 4 as far as they go.
#include "linear_pack.h"

#include <cstring>

namespace tandem {
namespace {

using Words = std::uint32_t __attribute__((vector_size(16)));

Words load(const char* from) {
  Words words;
  std::memcpy(&words, from, sizeof words);
  return words;
}

void store(std::uint32_t* to, Words words) { std::memcpy(to, &words, sizeof words); }

void pack_square(const char* source, std::int64_t stride_bytes, std::int64_t columns,
                 std::uint32_t* packed) {
  const Words a = load(source);
  const Words b = load(source + stride_bytes);
  const Words c = load(source + 2 * stride_bytes);
  const Words d = load(source + 3 * stride_bytes);
  const Words ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Words ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Words cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Words cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  store(packed, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
  store(packed + columns, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
  store(packed + 2 * columns, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
  store(packed + 3 * columns, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
}

void pack_one(const char* row, std::int64_t first_lane, std::int64_t row_bytes,
              std::int64_t columns, std::uint32_t* packed) {
  for (std::int64_t byte = first_lane * 4; byte < row_bytes; byte += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, row + byte, byte + 4 <= row_bytes ? 4 : 2);
    packed[byte / 4 * columns] = word;
  }
}

}  // namespace

std::int64_t num_lanes(ElementType type, std::int64_t width) {
  return (width * element_bytes(type) + 3) / 4;
}

void pack_rows(const void* source, std::int64_t stride_bytes, std::int64_t rows, ElementType type,
               std::int64_t width, std::int64_t columns, std::uint32_t* packed) {
  const char* first = static_cast<const char*>(source);
  const std::int64_t row_bytes = width * element_bytes(type);
  const std::int64_t square_lanes = row_bytes / 16 * 4;
  std::int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    const char* here = first + row * stride_bytes;
    for (std::int64_t lane = 0; lane < square_lanes; lane += 4) {
      pack_square(here + lane * 4, stride_bytes, columns, packed + lane * columns + row);
    }
    for (int r = 0; r < 4; ++r) {
      pack_one(here + r * stride_bytes, square_lanes, row_bytes, columns, packed + row + r);
    }
  }
  for (; row < rows; ++row) {
    pack_one(first + row * stride_bytes, 0, row_bytes, columns, packed + row);
  }
  for (std::int64_t lane = 0; rows < columns && lane < num_lanes(type, width); ++lane) {
    std::memset(packed + lane * columns + rows, 0, (columns - rows) * 4);
  }
}

void unpack_row(const std::uint32_t* packed, std::int64_t columns, std::int64_t column,
                ElementType type, std::int64_t width, void* row) {
  char* to = static_cast<char*>(row);
  const std::int64_t row_bytes = width * element_bytes(type);
  for (std::int64_t byte = 0; byte < row_bytes; byte += 4) {
    std::memcpy(to + byte, packed + byte / 4 * columns + column, byte + 4 <= row_bytes ? 4 : 2);
  }
}

}  // namespace tandem
