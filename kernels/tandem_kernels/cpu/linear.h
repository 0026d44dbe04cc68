// y = x W^T + b on weights that were packed once, whatever their format.
#pragma once

#include <cstdint>

namespace tandem {

// Of x and y, and of a plain weight.
enum class ElementType : std::int32_t { kFloat32 = 0, kBFloat16 = 1 };

//   kPlain   numbers of x's type; sums in float32
//   kInt8    groups of int8 with a scale each     x is rounded to 16-bit fixed point, row by row,
//   kInt4    groups of 0..15 with a scale each    and sums within a group are whole numbers
//   kW8A8    int8, one scale for a column         x is rounded to int8, in pieces of 64 columns
//
// Groups may have offsets: w = number * scale + offset.
enum class WeightFormat : std::int32_t { kPlain = 0, kInt8 = 1, kInt4 = 2, kW8A8 = 3 };

}  // namespace tandem

extern "C" {

// One layer's weights, as Python lays them out (linear.py).
struct TandemLinear {
  const void* weight;  // panels, see linear_layout.h
  const float* bias;   // [out_features], or null
  std::int64_t in_features;
  std::int64_t out_features;
  tandem::ElementType type;    // of x
  tandem::ElementType y_type;  // of y
  tandem::WeightFormat format;
  std::int32_t group_size;   // numbers that share a scale: a multiple of 8, or all of a column
  std::int32_t has_offsets;  // not 0: groups have offsets
  std::int32_t half_scales;  // not 0: scales and offsets are stored as float16, which holds them
};

// Bytes of the packed weight; `weight` and `bias` aren't looked at.
std::int64_t tandem_linear_packed_bytes(const TandemLinear* linear);

// Packs a contiguous plain weight [out_features, in_features] to `linear->weight`, which is zeroed
// and 64-byte aligned.
void tandem_linear_pack(const TandemLinear* linear, const void* weight);

// The same for the other formats: values [out_features, in_features] of one byte, scales and
// offsets (or null) [out_features, groups].
void tandem_linear_pack_quantized(const TandemLinear* linear, const std::uint8_t* values,
                                  const float* scales, const float* offsets);

// Computes `rows` rows: x [rows][in_features] with rows `x_stride` elements apart, y contiguous.
// A row of y has the same bits in any batch, at any place in it, on any number of threads. A row
// of x with a number that isn't finite gives no finite y.
void tandem_linear(const TandemLinear* linear, const void* x, std::int64_t x_stride,
                   std::int64_t rows, void* y);

// Writes rows of the weight to `out` [num_indices][in_features] of x's type: a plain weight's as
// they were, others' value * scale + offset. Returns 0, having written nothing, if there is an
// index without a row; else 1.
std::int32_t tandem_linear_weight_rows(const TandemLinear* linear, const std::int64_t* indices,
                                       std::int64_t num_indices, void* out);
}
