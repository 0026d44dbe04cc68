// How the cache stores one token's key or value of one head.
//
//   float32, bfloat16    the values
//   int8, fp8 (e4m3fn)   the values divided by a scale, and the scale as bfloat16
//
// The scale is the largest magnitude of the row over the largest of the type (127, 448), rounded up
// so that nothing clips, and a normal number. It follows from the row alone: tokens that arrive
// later change nothing that is stored. kv_quantization.py is the torch twin, bit for bit.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace tandem {

using Bytes = std::uint8_t __attribute__((vector_size(kLanes)));

// The low byte of each.
inline Bytes low_bytes(Words words) {
#if defined(TANDEM_AVX512)
  return bit_cast<Bytes>(_mm512_cvtepi32_epi8(bit_cast<__m512i>(words)));
#else
  return __builtin_convertvector(words, Bytes);
#endif
}

// Rounds to nearest, ties to even. |values| <= 127.5.
struct Int8 {
  static constexpr float kLargest = 127.0f;

  static Bytes encode(Floats values) {
    // At 1.5 * 2^23 a float32's last bit counts ones: the sum's low byte is the rounded integer
    return low_bytes(bit_cast<Words>(values + 12582912.0f));
  }
};

// 1 sign, 4 exponent (bias 7), 3 mantissa bits, no infinities (Micikevicius et al., "FP8 Formats
// for Deep Learning", 2022). Rounds to nearest, ties to even. |values| < 464.
struct Float8E4M3 {
  static constexpr float kLargest = 448.0f;

  static Bytes encode(Floats values) {
    const Words bits = bit_cast<Words>(values), magnitude = bits & 0x7fffffff;
    // A normal number keeps 3 of 23 mantissa bits, and its exponent loses 127 - 7
    const Words normal = (magnitude + 0x7ffff + ((magnitude >> 20) & 1) - (120u << 23)) >> 20;
    // Below 2^-6 all steps are 2^-9, which is what a float32's last bit counts at 2^14
    const Words subnormal =
        bit_cast<Words>(bit_cast<Floats>(magnitude) + 16384.0f) - bit_cast<Words>(broadcast(16384.0f));
    const Words kept = magnitude < (121u << 23) ? subnormal : normal;
    return low_bytes(kept | (bits >> 31 << 7));
  }
};

// f(i, count) for all elements of a row: count is kLanes but for the last few.
template <class F>
inline void for_each_lanes(std::int64_t size, const F& f) {
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) f(i, static_cast<std::int64_t>(kLanes));
  if (i < size) f(i, size - i);
}

template <class T>
inline Floats load_lanes(const T* from, std::int64_t count) {
  return count == kLanes ? load(from) : load_some(from, count);
}

template <class T>
inline float largest_magnitude(const T* row, std::int64_t size) {
  Floats largest{};
  for_each_lanes(size, [&](std::int64_t i, std::int64_t count) {
    const Words bits = bit_cast<Words>(load_lanes(row + i, count));
    largest = larger(bit_cast<Floats>(bits & 0x7fffffff), largest);
  });
  return largest_lane(largest);
}

inline float scale_of(float largest_magnitude, float largest_value) {
  constexpr float kSmallestNormal = 1.17549435e-38f;
  const std::uint32_t exact = bit_cast<std::uint32_t>(largest_magnitude / largest_value);
  const float scale = bit_cast<float>((exact + 0xffff) & 0xffff0000);
  return scale > kSmallestNormal ? scale : kSmallestNormal;
}

// Row formats: what `write` makes of `size` values of type T at `to`, and of the row's `scale`.

template <class Codec>
struct QuantizedRow {
  static constexpr std::int64_t kValueBytes = 1;

  template <class T>
  static void write(const T* row, std::int64_t size, void* to, Bfloat16* scale) {
    const float value = scale_of(largest_magnitude(row, size), Codec::kLargest);
    const Floats inverse = broadcast(1.0f / value);
    for_each_lanes(size, [&](std::int64_t i, std::int64_t count) {
      const Bytes bytes = Codec::encode(load_lanes(row + i, count) * inverse);
      std::memcpy(static_cast<std::uint8_t*>(to) + i, &bytes, static_cast<std::size_t>(count));
    });
    scale->bits = static_cast<std::uint16_t>(bit_cast<std::uint32_t>(value) >> 16);
  }
};

template <class Stored>
struct PlainRow {
  static constexpr std::int64_t kValueBytes = sizeof(Stored);

  static void write(const Stored* row, std::int64_t size, void* to, Bfloat16*) {
    std::memcpy(to, row, static_cast<std::size_t>(size) * sizeof(Stored));
  }

  template <class T>
  static void write(const T* row, std::int64_t size, void* to, Bfloat16*) {
    Stored* stored = static_cast<Stored*>(to);
    for_each_lanes(size, [&](std::int64_t i, std::int64_t count) {
      const Floats values = load_lanes(row + i, count);
      count == kLanes ? store(stored + i, values) : store_some(stored + i, values, count);
    });
  }
};

}  // namespace tandem
