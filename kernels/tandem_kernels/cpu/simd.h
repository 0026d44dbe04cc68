// One vector type for all CPUs: kLanes float32, as many as a register holds.
//
// Arithmetic is GCC's and Clang's vector extension, which every target has; intrinsics only where
// the extension lacks an operation. Nothing here depends on where in memory a value comes from.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tandem {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define TANDEM_AVX512 1
constexpr int kLanes = 16;
constexpr int kVectorRegisters = 32;
#elif defined(__AVX2__) && defined(__FMA__)
#define TANDEM_AVX2 1
constexpr int kLanes = 8;
constexpr int kVectorRegisters = 16;
#elif defined(__aarch64__)
constexpr int kLanes = 4;
constexpr int kVectorRegisters = 32;
#else
constexpr int kLanes = 4;
constexpr int kVectorRegisters = 16;
#endif

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Ints = std::int32_t __attribute__((vector_size(4 * kLanes)));
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = std::uint16_t __attribute__((vector_size(2 * kLanes)));

// Storage of bfloat16: the upper half of a float32.
struct Bfloat16 {
  std::uint16_t bits;
};

template <class To, class From>
inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline Floats broadcast(float value) { return value - Floats{}; }

inline Floats load(const float* from) {
  Floats to;
  std::memcpy(&to, from, sizeof to);
  return to;
}

inline Floats load(const Bfloat16* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  return bit_cast<Floats>(__builtin_convertvector(halves, Words) << 16);
}

inline void store(float* to, Floats values) { std::memcpy(to, &values, sizeof values); }

// Past the caches, where the CPU can and `to` is a whole line's start: for much that is written once and
// read much later. Others see it after `finish_streams`.
inline void stream(float* to, Floats values) {
#if defined(TANDEM_AVX512)
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof values == 0) return _mm512_stream_ps(to, values);
#endif
  store(to, values);
}

inline void finish_streams() {
#if defined(TANDEM_AVX512)
  _mm_sfence();
#endif
}

// Rounds to nearest, ties to even; NaN stays NaN. What is too small for an exponent of its own may
// become 0.
inline void store(Bfloat16* to, Floats values) {
#if defined(TANDEM_AVX512) && defined(__AVX512BF16__)
  const __m256bh halves = _mm512_cvtneps_pbh(values);
#else
  const Words bits = bit_cast<Words>(values);
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Words kept = values == values ? rounded : (bits >> 16) | 0x40;
  const Halves halves = __builtin_convertvector(kept, Halves);
#endif
  std::memcpy(to, &halves, sizeof halves);
}

// The first `count` < kLanes elements; the other lanes are 0.
template <class T>
inline Floats load_some(const T* from, std::int64_t count) {
  T whole[kLanes] = {};
  std::memcpy(whole, from, static_cast<std::size_t>(count) * sizeof(T));
  return load(whole);
}

template <class T>
inline void store_some(T* to, Floats values, std::int64_t count) {
  T whole[kLanes];
  store(whole, values);
  std::memcpy(to, whole, static_cast<std::size_t>(count) * sizeof(T));
}

// a * b + c, rounded once where the CPU can.
inline Floats fused(Floats a, Floats b, Floats c) {
#if defined(TANDEM_AVX512)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(TANDEM_AVX2)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// NaN in `a` is dropped, NaN in `b` is kept.
inline Floats larger(Floats a, Floats b) {
#if defined(TANDEM_AVX512)
  return _mm512_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

// Lanes are added in halves: 0 + 8, 1 + 9, ... and so on, in this order on every call.
inline float sum_of_lanes(Floats values) {
#if defined(TANDEM_AVX512)
  return _mm512_reduce_add_ps(values);
#else
  float lanes[kLanes];
  store(lanes, values);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
#endif
}

inline float largest_lane(Floats values) {
#if defined(TANDEM_AVX512)
  return _mm512_reduce_max_ps(values);
#else
  float lanes[kLanes];
  store(lanes, values);
  float largest = lanes[0];
  for (int i = 1; i < kLanes; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  return largest;
#endif
}

// Cheaper than the largest lane. NaN lanes may count as below or not.
inline bool all_below(Floats values, float bound) {
#if defined(TANDEM_AVX512)
  return _mm512_cmp_ps_mask(values, broadcast(bound), _CMP_NLT_UQ) == 0;
#else
  return largest_lane(values) < bound;
#endif
}

}  // namespace tandem
