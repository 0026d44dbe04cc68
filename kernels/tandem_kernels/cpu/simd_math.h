// Exponentials of vectors, good to 2e-7 relative: a polynomial on [-0.5, 0.5] scaled by 2^n.
#pragma once

#include "simd.h"

namespace tandem {

constexpr float kLog2E = 1.44269504088896341f;

// 2^x; exactly 1 at 0, exactly 0 below -126 (-inf too), infinite from 127.5 on; NaN stays NaN.
inline Floats exp2_of(Floats x) {
  // Adding 1.5 * 2^23 leaves the nearest whole number in the lowest bits of the sum
  const Floats shift = broadcast(12582912.0f);
  const Floats low = broadcast(-126.0f), high = broadcast(128.0f);
  const Floats clamped = x < low ? low : (x > high ? high : x);
  const Floats shifted = clamped + shift;
  const Floats r = clamped - (shifted - shift);
  // Least relative error at degree 5, with the constant term held at 1
  Floats p = broadcast(0.001326472731307149f);
  p = fused(p, r, broadcast(0.009671512991189957f));
  p = fused(p, r, broadcast(0.05550733581185341f));
  p = fused(p, r, broadcast(0.24022242426872253f));
  p = fused(p, r, broadcast(0.6931470036506653f));
  p = fused(p, r, broadcast(1.0f));
  const Ints n = bit_cast<Ints>(shifted) - bit_cast<Ints>(shift);
  const Floats power = bit_cast<Floats>((n + 127) << 23);  // 128 becomes infinity
  return x < low ? Floats{} : p * power;
}

// 1 / (1 + e^-x).
inline Floats sigmoid(Floats x) {
  return 1.0f / (1.0f + exp2_of(x * broadcast(-kLog2E)));
}

}  // namespace tandem
