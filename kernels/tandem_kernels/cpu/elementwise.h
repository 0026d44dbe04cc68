// Row by row: norms, sums, activations. Parallel inside; inline where the caller is on the pool.
#pragma once

#include <cstdint>

#include "activation_rows.h"
#include "linear_tile.h"

extern "C" {

// A norm's weights of the rows' type; RMSNorm without a bias, LayerNorm with one.
struct TandemNorm {
  const void* weight;  // null: no norm
  const void* bias;
};
}

namespace tandem {

// `heads` rows of `width` in each of `tokens` pieces that lie `stride` elements apart; out has
// them `out_stride` apart, and may be x.
void norm_rows(ElementType element, const TandemNorm& norm, const void* x, std::int64_t stride,
               std::int64_t heads, void* out, std::int64_t out_stride, std::int64_t tokens,
               std::int64_t width, float eps);

// residual += post(summand), then out = norm(residual). Without a weight, post changes nothing and
// norm writes nothing. All rows are contiguous; `summand` is overwritten where there is a `post`,
// and out may be summand.
void add_norm_rows(ElementType element, void* residual, void* summand, const TandemNorm& post,
                   const TandemNorm& norm, void* out, std::int64_t rows, std::int64_t width,
                   float eps);

// total += summand. Contiguous.
void add_rows(ElementType element, void* total, const void* summand, std::int64_t rows,
              std::int64_t width);

// x *= factor. Contiguous.
void scale_rows(ElementType element, void* x, float factor, std::int64_t rows, std::int64_t width);

// x [rows][2 * width] (gate, then up) where `gated`, else [rows][width] -> out [rows][width].
void activate_rows(ElementType element, Activation activation, bool gated, const void* x, void* out,
                   std::int64_t rows, std::int64_t width);

// scores = cap * tanh(scores / cap). Contiguous.
void softcap_rows(float* scores, std::int64_t rows, std::int64_t width, float cap);

}  // namespace tandem
