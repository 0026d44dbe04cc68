// Products of words along K, lane by lane: what each instruction set has its own instruction for.
#pragma once

#include "simd.h"

#if defined(TANDEM_AVX512) && !(defined(__AVX512BF16__) && defined(__AVX512VNNI__))
#error "the AVX-512 level includes BF16 and VNNI"
#endif

namespace tandem {

using Shorts = std::int16_t __attribute__((vector_size(4 * kLanes)));
using NarrowShorts = std::int16_t __attribute__((vector_size(2 * kLanes)));
using NarrowBytes = std::int8_t __attribute__((vector_size(kLanes)));

inline Words spread(std::uint32_t word) { return word + Words{}; }

inline Words load_words(const void* from) {
  Words words;
  std::memcpy(&words, from, sizeof words);
  return words;
}

// Two bfloat16 a word. Without an instruction of its own, the lower (earlier) one comes first.
inline Floats dot_bfloat16(Floats sum, Words a, Words b) {
#if defined(TANDEM_AVX512)
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
  sum = fused(bit_cast<Floats>(a << 16), bit_cast<Floats>(b << 16), sum);
  return fused(bit_cast<Floats>(a & 0xffff0000u), bit_cast<Floats>(b & 0xffff0000u), sum);
#endif
}

// Two int16 a word. Exact unless the sum leaves int32.
inline Ints dot_shorts(Ints sum, Words a, Words b) {
#if defined(TANDEM_AVX512)
  return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(TANDEM_AVX2)
  return sum + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return sum + (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
  const int16x8_t left = (int16x8_t)a, right = (int16x8_t)b;
  const int32x4_t low = vmull_s16(vget_low_s16(left), vget_low_s16(right));
  return sum + (Ints)vpaddq_s32(low, vmull_high_s16(left, right));
#else
  const Ints low = (bit_cast<Ints>(a << 16) >> 16) * (bit_cast<Ints>(b << 16) >> 16);
  return sum + low + (bit_cast<Ints>(a) >> 16) * (bit_cast<Ints>(b) >> 16);
#endif
}

// Four bytes a word: unsigned of `a` times signed of `b`. Exact unless the sum leaves int32.
inline Ints dot_bytes(Ints sum, Words a, Words b) {
#if defined(TANDEM_AVX512)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#else
  const Words even_a = a & 0x00ff00ffu, odd_a = (a >> 8) & 0x00ff00ffu;
  const Shorts even_b = bit_cast<Shorts>(b << 8) >> 8, odd_b = bit_cast<Shorts>(b) >> 8;
  sum = dot_shorts(sum, even_a, bit_cast<Words>(even_b));
  return dot_shorts(sum, odd_a, bit_cast<Words>(odd_b));
#endif
}

// Rounds to nearest, ties to even.
inline Ints to_ints(Floats values) {
#if defined(TANDEM_AVX512)
  return (Ints)_mm512_cvtps_epi32(values);
#elif defined(TANDEM_AVX2)
  return (Ints)_mm256_cvtps_epi32(values);
#elif defined(__SSE2__)
  return (Ints)_mm_cvtps_epi32((__m128)values);
#elif defined(__aarch64__)
  return (Ints)vcvtnq_s32_f32((float32x4_t)values);
#else
  Ints ints;
  for (int i = 0; i < kLanes; ++i) ints[i] = static_cast<std::int32_t>(__builtin_rintf(values[i]));
  return ints;
#endif
}

inline Floats to_floats(Ints ints) { return __builtin_convertvector(ints, Floats); }

inline std::int32_t largest_lane(Ints ints) {
#if defined(TANDEM_AVX512)
  return _mm512_reduce_max_epi32((__m512i)ints);
#else
  std::int32_t largest = ints[0];
  for (int i = 1; i < kLanes; ++i) largest = ints[i] > largest ? ints[i] : largest;
  return largest;
#endif
}

inline std::int32_t sum_of_lanes(Ints ints) {
#if defined(TANDEM_AVX512)
  return _mm512_reduce_add_epi32((__m512i)ints);
#else
  std::int32_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += ints[i];
  return sum;
#endif
}

// float16, exactly; infinities and NaN don't occur.
inline Floats load_float16(const std::uint16_t* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
#if defined(TANDEM_AVX512)
  return _mm512_cvtph_ps((__m256i)halves);
#else
  const Words bits = __builtin_convertvector(halves, Words);
  const Floats size = bit_cast<Floats>((bits & 0x7fff) << 13) * 0x1p112f;
  return bit_cast<Floats>(bit_cast<Words>(size) | (bits & 0x8000) << 16);
#endif
}

inline std::uint16_t float16_bits(float value) {
  const std::uint32_t bits = bit_cast<std::uint32_t>(value);
  const float size = bit_cast<float>(bits & 0x7fffffff) * 0x1p-112f;
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000) | bit_cast<std::uint32_t>(size) >> 13);
}

inline float float16_value(std::uint16_t half) {
  const float size = bit_cast<float>(static_cast<std::uint32_t>(half & 0x7fff) << 13) * 0x1p112f;
  return (half & 0x8000) != 0 ? -size : size;
}

}  // namespace tandem
