// What attention multiplies: words of 32 bits, which hold what one instruction takes per lane.
//
//   FloatWords   one float32 (from float32 or bfloat16); multiply and add
//   PairWords    two neighbouring bfloat16; two products added to a float32 (AVX-512 BF16)
//
//   keys     [words of a key][kTile]     lanes are keys: each dimension's words side by side
//   values   [kTile / per word][width]   lanes are dimensions, padded with 0 to whole vectors
//
// A lane's sum runs over its words in order, so it is the same in every shape of block.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace tandem {

// Keys that one softmax covers before it is merged with those before it. Tiles lie at absolute
// positions: a query meets the same tiles however its prompt was cut.
constexpr int kTile = 256;

inline Words load_words(const std::uint32_t* from) {
  Words to;
  std::memcpy(&to, from, sizeof to);
  return to;
}

struct FloatWords {
  static constexpr int kPerWord = 1;

  static Floats multiply_add(Floats sum, Words a, Words b) {
    return fused(bit_cast<Floats>(a), bit_cast<Floats>(b), sum);
  }

  static std::uint32_t word(const float* row, std::int64_t w, std::int64_t) {
    return bit_cast<std::uint32_t>(row[w]);
  }
  static std::uint32_t word(const Bfloat16* row, std::int64_t w, std::int64_t) {
    return static_cast<std::uint32_t>(row[w].bits) << 16;
  }

  // The row's words from w on, one vector; 0 beyond its end.
  template <class T>
  static Words words(const T* row, std::int64_t w, std::int64_t d) {
    return bit_cast<Words>(d - w >= kLanes ? load(row + w) : load_some(row + w, d - w));
  }

  template <class T>
  static void pack_values(const T* const* rows, std::int64_t d, std::int64_t width,
                          std::uint32_t* to) {
    for (std::int64_t i = 0; i < width; i += kLanes) {
      const Words packed = words(rows[0], i, d);
      std::memcpy(to + i, &packed, sizeof packed);
    }
  }

  // Stores kPerWord vectors of weights for the product with values, and adds them, as they will be
  // multiplied, to `sum`.
  static Floats put_weights(std::uint32_t* to, const Floats (&weights)[1], Floats sum) {
    std::memcpy(to, &weights[0], sizeof weights[0]);
    return sum + weights[0];
  }
};

#if defined(TANDEM_AVX512) && defined(__AVX512BF16__)
#define TANDEM_PAIR_WORDS 1

struct PairWords {
  static constexpr int kPerWord = 2;

  static Floats multiply_add(Floats sum, Words a, Words b) {
    return _mm512_dpbf16_ps(sum, bit_cast<__m512bh>(a), bit_cast<__m512bh>(b));
  }

  static std::uint32_t word(const Bfloat16* row, std::int64_t w, std::int64_t d) {
    const std::uint32_t high = 2 * w + 1 < d ? row[2 * w + 1].bits : 0;
    return high << 16 | row[2 * w].bits;
  }

  static Words words(const Bfloat16* row, std::int64_t w, std::int64_t d) {
    return bit_cast<Words>(elements(row, 2 * w, d));
  }

  // Two rows, element by element in turn.
  static void pack_values(const Bfloat16* const* rows, std::int64_t d, std::int64_t width,
                          std::uint32_t* to) {
    const __m512i low = interleaving(0), high = interleaving(16);
    for (std::int64_t i = 0; i < width; i += 2 * kLanes) {
      const __m512i even = elements(rows[0], i, d), odd = elements(rows[1], i, d);
      _mm512_storeu_si512(to + i, _mm512_permutex2var_epi16(even, low, odd));
      if (i + kLanes < width) {
        _mm512_storeu_si512(to + i + kLanes, _mm512_permutex2var_epi16(even, high, odd));
      }
    }
  }

  static Floats put_weights(std::uint32_t* to, const Floats (&weights)[2], Floats sum) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh(weights[1], weights[0]);
    std::memcpy(to, &rounded, sizeof rounded);
    const __m512bh ones = bit_cast<__m512bh>(Words{} + 0x3f803f80u);
    return _mm512_dpbf16_ps(sum, rounded, ones);
  }

 private:
  // Elements i to i + 32 of a row, 0 beyond its end.
  static __m512i elements(const Bfloat16* row, std::int64_t i, std::int64_t d) {
    if (d - i >= 32) return _mm512_loadu_si512(row + i);
    return _mm512_maskz_loadu_epi16((1u << (d - i)) - 1, row + i);
  }

  // Picks elements first, first + 1, ... of two vectors in turn.
  static __m512i interleaving(std::uint16_t first) {
    std::uint16_t picks[32];
    for (std::uint16_t i = 0; i < 16; ++i) {
      picks[2 * i] = first + i;
      picks[2 * i + 1] = 32 + first + i;
    }
    return _mm512_loadu_si512(picks);
  }
};
#endif

#if defined(TANDEM_AVX512)
// Rows of 16 words become columns.
inline void transpose(__m512i (&rows)[16]) {
  __m512i pairs[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      rows[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
      rows[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
    }
  }
  // rows[4 i + j]: words j, j + 4, j + 8, j + 12 of rows 4 i .. 4 i + 3, a quarter each
  for (int j = 0; j < 4; ++j) {
    pairs[j] = _mm512_shuffle_i32x4(rows[j], rows[4 + j], 0x88);
    pairs[4 + j] = _mm512_shuffle_i32x4(rows[j], rows[4 + j], 0xdd);
    pairs[8 + j] = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], 0x88);
    pairs[12 + j] = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], 0xdd);
  }
  for (int j = 0; j < 4; ++j) {
    rows[j] = _mm512_shuffle_i32x4(pairs[j], pairs[8 + j], 0x88);
    rows[8 + j] = _mm512_shuffle_i32x4(pairs[j], pairs[8 + j], 0xdd);
    rows[4 + j] = _mm512_shuffle_i32x4(pairs[4 + j], pairs[12 + j], 0x88);
    rows[12 + j] = _mm512_shuffle_i32x4(pairs[4 + j], pairs[12 + j], 0xdd);
  }
}
#endif

// Packs kLanes keys of `num_words` words into the columns that start at `to`.
template <class W, class T>
inline void pack_keys(const T* const* rows, std::int64_t d, std::int64_t num_words,
                      std::uint32_t* to) {
#if defined(TANDEM_AVX512)
  for (std::int64_t w = 0; w < num_words; w += 16) {
    __m512i block[16];
    for (int i = 0; i < 16; ++i) block[i] = bit_cast<__m512i>(W::words(rows[i], w, d));
    transpose(block);
    const std::int64_t count = num_words - w < 16 ? num_words - w : 16;
    for (std::int64_t i = 0; i < count; ++i) _mm512_storeu_si512(to + (w + i) * kTile, block[i]);
  }
#else
  for (int i = 0; i < kLanes; ++i) {
    for (std::int64_t w = 0; w < num_words; ++w) to[w * kTile + i] = W::word(rows[i], w, d);
  }
#endif
}

}  // namespace tandem
