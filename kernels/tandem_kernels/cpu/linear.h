// y = x W^T + b on weights that were packed once.
#pragma once

#include <cstdint>

#include "linear_tile.h"

extern "C" {

// One layer's weights, as Python lays them out (linear.py).
struct TandemLinear {
  const std::uint32_t* weight;  // [panels][lanes][32]
  const float* bias;            // [out_features], or null
  std::int64_t in_features;
  std::int64_t out_features;
  tandem::ElementType type;    // of x and weight
  tandem::ElementType y_type;  // of y
  std::int32_t portable;       // not 0: leave out what only this CPU has
};

// Bytes of a packed weight [out_features, in_features].
std::int64_t tandem_linear_packed_bytes(std::int32_t type, std::int64_t out_features,
                                        std::int64_t in_features);

// Packs a contiguous weight [out_features, in_features] into `packed`, which is 64-byte aligned.
void tandem_linear_pack(std::int32_t type, const void* weight, std::int64_t out_features,
                        std::int64_t in_features, void* packed);

// Computes `rows` rows: x [rows][in_features] with rows `x_stride` elements apart, y contiguous.
// A row of y has the same bits in any batch, at any place in it, on any number of threads.
void tandem_linear(const TandemLinear* linear, const void* x, std::int64_t x_stride,
                   std::int64_t rows, void* y);

// Copies rows of the weight as they were before packing to `out` [num_indices][in_features].
// Returns 0, having written nothing, if there is an index without a row; else 1.
std::int32_t tandem_linear_weight_rows(const TandemLinear* linear, const std::int64_t* indices,
                                       std::int64_t num_indices, void* out);
}
