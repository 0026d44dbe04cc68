// Quantising a row of x, whole or in the pieces that belong to units of the weight:
//
//   peak = largest |x|;  number = round(x * limit / peak);  x is about number * (peak / limit)
//
//   int8   limit 32,767, row by row: errors are at most 2^-16 of the peak (of each bfloat16, 2^-9)
//   w8a8   limit 127, in pieces of 64 columns
//   int4   limit 127, unit by unit, as llama.cpp does for its 4-bit formats
#include "linear_activations.h"

#include <cstring>
#include <limits>

#include "linear_pack.h"

namespace tandem {
namespace {

// Pieces of nothing larger are zero: limit / peak would overflow soon after.
constexpr float kTiniest = 1e-30f;
// Infinities and NaN, as integers, are not below it.
constexpr std::int32_t kInfinityBits = 0x7f800000;

struct Step {
  float size;     // what 1 stands for; NaN if there is a number that isn't finite
  float inverse;  // numbers per 1 of x
};

template <class T>
Floats load_part(const T* x, std::int64_t at, std::int64_t width) {
  return width - at >= kLanes ? load(x + at) : load_some(x + at, width - at);
}

// From the bits of the largest |x|.
inline Step step_of_peak(std::int32_t peak_bits, float limit) {
  if (peak_bits >= kInfinityBits) return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  const float peak = bit_cast<float>(peak_bits);
  if (peak < kTiniest) return {0.0f, 0.0f};
  return {peak / limit, limit / peak};
}

template <class T>
Step step_of(const T* x, std::int64_t width, float limit) {
  Ints largest = {};
  for (std::int64_t i = 0; i < width; i += kLanes) {
    const Ints bits = bit_cast<Ints>(load_part(x, i, width)) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return step_of_peak(largest_lane(largest), limit);
}

struct Piece {
  float scale;
  std::int32_t sum;
};

struct AsShorts {
  using Number = std::int16_t;
  static constexpr float kLimit = 32767.0f;
  static NarrowShorts narrow(Ints numbers) {
    return __builtin_convertvector(numbers, NarrowShorts);
  }
};

struct AsBytes {
  using Number = std::int8_t;
  static constexpr float kLimit = 127.0f;
  static NarrowBytes narrow(Ints numbers) { return __builtin_convertvector(numbers, NarrowBytes); }
};

// Writes `padded_width` numbers, zero beyond `width`, and adds up the numbers.
template <class As, class T>
Piece quantize(const T* x, std::int64_t width, std::int64_t padded_width, void* row) {
  const Step step = step_of(x, width, As::kLimit);
  auto* to = static_cast<typename As::Number*>(row);
  Ints sums = {};
  for (std::int64_t i = 0; i < padded_width; i += kLanes) {
    const Floats values = i < width ? load_part(x, i, width) : Floats{};
    const Ints numbers = to_ints(values * broadcast(step.inverse));
    sums += numbers;
    const auto narrow = As::narrow(numbers);
    const std::int64_t count = std::min<std::int64_t>(padded_width - i, kLanes);
    std::memcpy(to + i, &narrow, static_cast<std::size_t>(count) * sizeof(*to));
  }
  return {step.size, sum_of_lanes(sums)};
}

// The same for a whole piece of w8a8, which is read once and stays in registers: most rows consist
// of such pieces, and each linear of a prompt begins with this.
template <class T>
Piece quantize_whole(const T* x, std::int8_t* to) {
  constexpr int kVectorsOfPiece = kPieceColumns / kLanes;
  Floats values[kVectorsOfPiece];
  Ints largest = {};
#pragma GCC unroll 16
  for (int v = 0; v < kVectorsOfPiece; ++v) {
    values[v] = load(x + v * kLanes);
    const Ints bits = bit_cast<Ints>(values[v]) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  const Step step = step_of_peak(largest_lane(largest), AsBytes::kLimit);
  const Floats inverse = broadcast(step.inverse);
  Ints sums = {};
#pragma GCC unroll 16
  for (int v = 0; v < kVectorsOfPiece; ++v) {
    const Ints numbers = to_ints(values[v] * inverse);
    sums += numbers;
    const NarrowBytes narrow = AsBytes::narrow(numbers);
    std::memcpy(to + v * kLanes, &narrow, sizeof narrow);
  }
  return {step.size, sum_of_lanes(sums)};
}

// Sums of the numbers that share an offset, `stride` apart.
void sum_units(const Layout& layout, const std::int16_t* row, std::int64_t stride, float* sums) {
  const std::int64_t end = layout.words * layout.per_word;
  const std::int64_t size = layout.unit_words * layout.per_word;
  for (std::int64_t u = 0; u < layout.units; ++u) {
    std::int32_t sum = 0;
    for (std::int64_t i = u * size; i < std::min(end, (u + 1) * size); ++i) sum += row[i];
    sums[u * stride] = static_cast<float>(sum);
  }
}

// What a unit's sum is needed for: offsets of int4; in w8a8 to undo that weights are stored plus
// 128, which takes a whole number.
float sum_figure(const TandemLinear& linear, Piece piece) {
  if (linear.format == WeightFormat::kW8A8) return bit_cast<float>(-128 * piece.sum);
  return static_cast<float>(piece.sum) * piece.scale;
}

// Where one row's scales and sums go: `stride` apart.
struct Figures {
  float* scales;
  float* sums;  // null: none are wanted
  std::int64_t stride;
};

template <class T>
void quantize_row(const TandemLinear& linear, const Layout& layout, const T* x, void* row,
                  Figures figures) {
  const std::int64_t width = linear.in_features, padded = layout.words * layout.per_word;
  if (linear.format == WeightFormat::kInt8) {
    *figures.scales = quantize<AsShorts>(x, width, padded, row).scale;
    if (figures.sums != nullptr) {
      sum_units(layout, static_cast<const std::int16_t*>(row), figures.stride, figures.sums);
    }
    return;
  }
  const std::int64_t size = layout.unit_words * layout.per_word;
  for (std::int64_t u = 0; u < layout.units; ++u) {
    const std::int64_t at = u * size;
    std::int8_t* to = static_cast<std::int8_t*>(row) + at;
    const bool is_whole = size == kPieceColumns && width - at >= kPieceColumns;
    const Piece piece = is_whole ? quantize_whole(x + at, to)
                                 : quantize<AsBytes>(x + at, std::min(size, width - at),
                                                     std::min(size, padded - at), to);
    figures.scales[u * figures.stride] = piece.scale;
    if (figures.sums != nullptr) figures.sums[u * figures.stride] = sum_figure(linear, piece);
  }
}

std::int64_t row_room_bytes(const Layout& layout) { return ceil_div(layout.x_lanes * 4, 64) * 64; }

}  // namespace

std::int64_t tile_room_bytes(const Layout& layout) {
  return layout.x_scales == 0 ? 0 : row_room_bytes(layout) * kMaxTileRows;
}

void pack_tile(const TandemLinear& linear, const Layout& layout, const char* x,
               std::int64_t x_row_bytes, std::int64_t rows, void* room, std::uint32_t* tile) {
  if (layout.x_scales == 0) {
    const std::int64_t row_bytes = linear.in_features * element_bytes(linear.type);
    return pack_rows(x, x_row_bytes, rows, row_bytes, rows, tile);
  }
  auto* scales = reinterpret_cast<float*>(tile + layout.x_lanes * rows);
  float* sums = layout.x_sums == 0 ? nullptr : scales + layout.x_scales * rows;
  for (std::int64_t r = 0; r < rows; ++r) {
    const char* from = x + r * x_row_bytes;
    char* to = static_cast<char*>(room) + r * row_room_bytes(layout);
    const Figures figures{scales + r, sums == nullptr ? nullptr : sums + r, rows};
    if (linear.type == ElementType::kFloat32) {
      quantize_row(linear, layout, reinterpret_cast<const float*>(from), to, figures);
    } else {
      quantize_row(linear, layout, reinterpret_cast<const Bfloat16*>(from), to, figures);
    }
  }
  pack_rows(room, row_room_bytes(layout), rows, layout.x_lanes * 4, rows, tile);
}

}  // namespace tandem
