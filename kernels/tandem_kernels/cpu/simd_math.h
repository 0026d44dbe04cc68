// Exponentials of vectors, good to 2e-7 relative: a polynomial on [-0.5, 0.5] scaled by 2^n.
#pragma once

#include "simd.h"

namespace tandem {

constexpr float kLog2E = 1.44269504088896341f;

// (2^r - 1) / r for r in [-0.5, 0.5]: least relative error of 2^r at degree 5.
inline Floats exp2_slope(Floats r) {
  Floats p = broadcast(0.001326472731307149f);
  p = fused(p, r, broadcast(0.009671512991189957f));
  p = fused(p, r, broadcast(0.05550733581185341f));
  p = fused(p, r, broadcast(0.24022242426872253f));
  return fused(p, r, broadcast(0.6931470036506653f));
}

// 2^r for r in [-0.5, 0.5].
inline Floats exp2_polynomial(Floats r) { return fused(exp2_slope(r), r, broadcast(1.0f)); }

// 2^x; exactly 1 at 0, exactly 0 from -150 down (-inf too), infinite from 128 up; NaN stays NaN.
inline Floats exp2_of(Floats x) {
#if defined(TANDEM_AVX512)
  // The second operand of max and min wins where one is NaN
  const __m512 clamped =
      _mm512_min_ps(broadcast(150.0f), _mm512_max_ps(broadcast(-150.0f), x));
  const __m512 n = _mm512_roundscale_ps(clamped, _MM_FROUND_TO_NEAREST_INT);
  return _mm512_scalef_ps(exp2_polynomial(clamped - n), n);
#else
  // Adding 1.5 * 2^23 leaves the nearest whole number in the lowest bits of the sum. Results below
  // 2^-126, which have no exponent of their own, are 0; above 127.5 they are infinite.
  const Floats shift = broadcast(12582912.0f);
  const Floats low = broadcast(-126.0f), high = broadcast(128.0f);
  const Floats clamped = x < low ? low : (x > high ? high : x);
  const Floats shifted = clamped + shift;
  const Ints n = bit_cast<Ints>(shifted) - bit_cast<Ints>(shift);
  const Floats power = bit_cast<Floats>((n + 127) << 23);  // 128 becomes infinity
  const Floats result = exp2_polynomial(clamped - (shifted - shift)) * power;
  return x < low ? Floats{} : result;
#endif
}

// tanh(x) = -e / (2 + e) for e = 2^(-2 |x| log2 e) - 1, with the sign of x. The 1 is taken away
// before it is added, so small x keep their digits.
inline Floats tanh_of(Floats x) {
  const Words bits = bit_cast<Words>(x);
  const Floats magnitude = bit_cast<Floats>(bits & 0x7fffffff);
  // Beyond 2^-29 there is only 1
  const Floats exponent = magnitude * (-2.0f * kLog2E);
  const Floats low = broadcast(-29.0f);
  const Floats y = exponent < low ? low : exponent;  // NaN stays
  const Floats shift = broadcast(12582912.0f);
  const Floats shifted = y + shift;
  const Floats power =
      bit_cast<Floats>((bit_cast<Ints>(shifted) - bit_cast<Ints>(shift) + 127) << 23);
  const Floats r = y - (shifted - shift);
  const Floats e = fused(r * exp2_slope(r), power, power - 1.0f);
  return bit_cast<Floats>(bit_cast<Words>(-e / (e + 2.0f)) | (bits & 0x80000000));
}

// 1 / (1 + e^-x).
inline Floats sigmoid(Floats x) {
  return 1.0f / (1.0f + exp2_of(x * broadcast(-kLog2E)));
}

}  // namespace tandem
