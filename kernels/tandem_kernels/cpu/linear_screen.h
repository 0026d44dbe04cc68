// Of a row of outputs only the largest, exactly, for a fraction of the work.
//
// Activations of an int8 linear have 16 bits. Rounded to 8 bits, in pieces of 64 columns, they give every
// output with an error that is bounded by the length of what rounding left over (Cauchy and Schwarz):
// |rest . w| <= |rest| |w|. Only outputs that may still be the largest are computed in full, by the same
// tiles as ever, so they have the same bits. Measured: 26 of 1,536 panels a row on English prose, 58 on
// documents in Markdown.
#pragma once

#include <cstdint>

#include "linear.h"

extern "C" {

// What screening needs of an int8 linear beside its packed weight. Filled by Python (linear_screen.py).
struct TandemScreen {
  const std::int16_t* sums;  // [panels][pieces][32] of the numbers of a column
  const float* lengths;      // [panels][32]: |w| of each output
};

// Whether a linear can be screened: int8 with one scale for a column, without offsets or bias, and with
// float32 outputs.
std::int32_t tandem_linear_can_screen(const TandemLinear* linear);

// Sizes of a screen's arrays, in elements.
std::int64_t tandem_linear_screen_sums(const TandemLinear* linear);
std::int64_t tandem_linear_screen_lengths(const TandemLinear* linear);

// Fills a screen's arrays from the packed weight.
void tandem_linear_make_screen(const TandemLinear* linear, std::int16_t* sums, float* lengths);

// As tandem_linear, but in each row of y only what may be its largest output is exact, to the bit;
// others may be anything below it. A row with a number that isn't finite gives no finite y.
void tandem_linear_largest(const TandemLinear* linear, const TandemScreen* screen, const void* x,
                           std::int64_t x_stride, std::int64_t rows, float* y);
}
