// Whole-number arithmetic of attention over int8 caches: products of bytes, summed exactly.
//
//   query     a scale of its own x 16 bits       a high and a low byte for each element
//   weight    the tile's largest is 1 to 2 x 2^15  a high and a low byte for each key
//
// Four products of bytes are added to an int32 at once, high and low bytes apart; neither sum can
// overflow. Sums of whole numbers have no order, so both forms of attention get the same bits.
//
// A key's weight takes in the scale of its value, m x 2^e with 1 <= m < 2. e is added to the
// exponent before the tile's largest is found: so the largest product of both is within a factor of
// 2 of what 16 bits hold, and follows from the keys that the row sees alone.
#pragma once

#include <cstdint>

#include "attention_rows.h"
#include "attention_softmax.h"
#include "attention_words.h"
#include "simd.h"

#if defined(TANDEM_PAIR_WORDS) && defined(__AVX512VNNI__)
#define TANDEM_BYTE_PRODUCTS 1

namespace tandem {

constexpr std::int64_t kBytesPerWord = 4;
constexpr std::int64_t kVectorBytes = kLanes * kBytesPerWord;

// A head's elements in words, whole vectors.
inline std::int64_t byte_words(std::int64_t d) {
  return (d + kVectorBytes - 1) / kVectorBytes * kLanes;
}

// Whole numbers as 256 * high + low.
struct ByteSums {
  Ints high, low;

  Floats value() const {
    return fused(_mm512_cvtepi32_ps(bit_cast<__m512i>(high)), broadcast(256.0f),
                 _mm512_cvtepi32_ps(bit_cast<__m512i>(low)));
  }
};

// Adds four products to each lane: bytes of `a` are unsigned, those of `b` have signs.
inline Ints add_products(Ints sum, Words a, Words b) {
  return bit_cast<Ints>(_mm512_dpbusd_epi32(bit_cast<__m512i>(sum), bit_cast<__m512i>(a),
                                            bit_cast<__m512i>(b)));
}

// Keys as unsigned bytes: 128 more. A query's sum starts at what this adds to it.
constexpr std::uint32_t kFlipSigns = 0x80808080;

// A query row as bytes.
struct ByteQuery {
  float scale;  // NaN if the row has a NaN or infinity
  std::int32_t high_start, low_start;

  // Sets words[0 ..] to the high bytes and words[num_words ..] to the low ones, 0 beyond d.
  template <class E>
  static ByteQuery of(const E* row, std::int64_t d, std::int64_t num_words, std::uint32_t* words) {
    Ints largest{};
    for_elements(row, d, [&](std::int64_t, Floats values) {
      // NaN and infinity are the largest as whole numbers too
      largest = bit_cast<Ints>(_mm512_max_epi32(
          bit_cast<__m512i>(largest), bit_cast<__m512i>(bit_cast<Words>(values) & 0x7fffffff)));
    });
    const float magnitude = bit_cast<float>(_mm512_reduce_max_epi32(bit_cast<__m512i>(largest)));
    const float scale = (magnitude > kSmallest ? magnitude : kSmallest) / kLargest;
    const Floats inverse = broadcast(1.0f / scale);
    std::int8_t* high = reinterpret_cast<std::int8_t*>(words);
    std::int8_t* low = reinterpret_cast<std::int8_t*>(words + num_words);
    std::memset(words, 0, static_cast<std::size_t>(2 * num_words) * sizeof(std::uint32_t));
    Ints highs{}, lows{};
    for_elements(row, d, [&](std::int64_t i, Floats values) {
      const __m512i whole = _mm512_cvtps_epi32(values * inverse);
      const __m512i upper =
          _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
      const __m512i lower = _mm512_sub_epi32(whole, _mm512_slli_epi32(upper, 8));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(high + i), _mm512_cvtepi32_epi8(upper));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(low + i), _mm512_cvtepi32_epi8(lower));
      highs += bit_cast<Ints>(upper);
      lows += bit_cast<Ints>(lower);
    });
    const float whole_scale = magnitude < kInfinity ? scale : magnitude - magnitude;
    return {whole_scale, -128 * _mm512_reduce_add_epi32(bit_cast<__m512i>(highs)),
            -128 * _mm512_reduce_add_epi32(bit_cast<__m512i>(lows))};
  }

 private:
  static constexpr float kLargest = 127.0f * 256.0f;
  static constexpr float kSmallest = 0x1p-60f;
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();

  template <class E, class F>
  static void for_elements(const E* row, std::int64_t d, const F& f) {
    std::int64_t i = 0;
    for (; i + kLanes <= d; i += kLanes) f(i, load(row + i));
    if (i < d) f(i, load_some(row + i, d - i));
  }
};

// Scales of values, m * 2^e: what a key's weight takes from them.
struct ValueScales {
  static constexpr float kOne = 32767.0f;

  Floats exponents;  // e
  Floats factors;    // kOne * m
  Floats inverses;   // kOne / 2^e, which turns a weight with its scale into one without

  // Scales too small to matter count as 2^-60 times less than 1; 0 is one of them.
  explicit ValueScales(Floats scales) {
    const __m512i biased = _mm512_max_epi32(
        _mm512_set1_epi32(127 - 60), _mm512_srli_epi32(bit_cast<__m512i>(scales), 23));
    const Floats inverse = bit_cast<Floats>(
        _mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(254), biased), 23));
    exponents = _mm512_cvtepi32_ps(_mm512_sub_epi32(biased, _mm512_set1_epi32(127)));
    factors = scales * inverse * kOne;
    inverses = fused(scales, Floats{}, inverse * kOne);  // NaN and infinity show
  }
};

// The bits of a weight: the lowest 16 are the weight, which is at most 2 * kOne.
inline __m512i whole_weight(Floats weight, Floats factor) {
  // At 2^23 a float32's last bit counts ones
  return bit_cast<__m512i>(fused(weight, factor, broadcast(8388608.0f)));
}

// Up to kVectorBytes bytes of a row from `i` on, 0 beyond its end.
[[gnu::always_inline]] inline __m512i row_bytes(const Int8Value* row, std::int64_t i,
                                                std::int64_t d) {
  if (d - i >= kVectorBytes) return _mm512_loadu_si512(row + i);
  return _mm512_maskz_loadu_epi8((std::uint64_t{1} << (d - i)) - 1, row + i);
}

// Puts the bytes of four rows side by side: kVectorBytes of each fill four vectors, of which these
// are First .. First + V (two or all). Interleaving two rows by bytes, and two such pairs by twos,
// leaves elements 16 j + 4 i .. + 4 in quarter j of vector i.
template <int First, int V>
[[gnu::always_inline]] inline void interleave(__m512i a, __m512i b, __m512i c, __m512i d,
                                              Words (&columns)[V]) {
  static_assert((First == 0 && (V == 2 || V == 4)) || (First == 2 && V == 2));
  if constexpr (First == 0) {
    const __m512i front = _mm512_unpacklo_epi8(a, b), back = _mm512_unpacklo_epi8(c, d);
    columns[0] = bit_cast<Words>(_mm512_unpacklo_epi16(front, back));
    columns[1] = bit_cast<Words>(_mm512_unpackhi_epi16(front, back));
  }
  if constexpr (First + V == 4) {
    const __m512i front = _mm512_unpackhi_epi8(a, b), back = _mm512_unpackhi_epi8(c, d);
    columns[V - 2] = bit_cast<Words>(_mm512_unpacklo_epi16(front, back));
    columns[V - 1] = bit_cast<Words>(_mm512_unpackhi_epi16(front, back));
  }
}

// Stores vector i of four such as elements of a row `width` wide.
template <class V, class To>
inline void store_quarters(V vector, int i, std::int64_t width, To* to) {
  To lanes[kLanes];
  std::memcpy(lanes, &vector, sizeof vector);
  for (std::int64_t j = 0; j * kLanes < width; ++j) {
    std::memcpy(to + j * kLanes + i * 4, lanes + 4 * j, 4 * sizeof(To));
  }
}

}  // namespace tandem
#endif
