// What attention multiplies: words of 32 bits, which hold what one instruction takes per lane.
//
//   FloatWords   one float32; multiply and add
//   PairWords    two neighbouring bfloat16; two products added to a float32 (AVX-512 BF16)
//
// A lane's sum runs over its words in order, so it is the same in every shape of block. Quantised
// values become words as they are, without their scales: int8 and float8 are exact in bfloat16.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"
#include "simd_math.h"

namespace tandem {

struct Int8Value {
  std::int8_t value;
};

// Storage of float8 e4m3fn: 1 sign, 4 exponent (bias 7), 3 mantissa bits.
struct Float8Value {
  std::uint8_t bits;
};

using Bytes8 = std::uint8_t __attribute__((vector_size(kLanes)));

inline Floats load(const Int8Value* from) {
  std::int8_t __attribute__((vector_size(kLanes))) bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(__builtin_convertvector(bytes, Ints), Floats);
}

inline Floats load(const Float8Value* from) {
  Bytes8 bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  const Words bits = __builtin_convertvector(bytes, Words);
  const Words sign = (bits & 0x80) << 24, magnitude = bits & 0x7f;
  // Below 8 there is no hidden 1: steps of 2^-9
  const Words subnormal = bit_cast<Words>(
      __builtin_convertvector(bit_cast<Ints>(magnitude), Floats) * 0x1p-9f);
  const Words normal = (magnitude << 20) + (120u << 23);
  return bit_cast<Floats>(sign | (magnitude < 8 ? subnormal : normal));
}

inline float scalar(float value) { return value; }
inline float scalar(Int8Value value) { return value.value; }
inline float scalar(Bfloat16 value) {
  return bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
inline float scalar(Float8Value value) {
  const std::uint32_t magnitude = value.bits & 0x7f, sign = (value.bits & 0x80u) << 24;
  const float positive = magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-9f
                                       : bit_cast<float>((magnitude << 20) + (120u << 23));
  return bit_cast<float>(bit_cast<std::uint32_t>(positive) | sign);
}

inline Words load_words(const std::uint32_t* from) {
  Words to;
  std::memcpy(&to, from, sizeof to);
  return to;
}

inline void store_words(std::uint32_t* to, Words words) { std::memcpy(to, &words, sizeof words); }

struct FloatWords {
  static constexpr int kPerWord = 1;

  static Floats multiply_add(Floats sum, Words a, Words b) {
    return fused(bit_cast<Floats>(a), bit_cast<Floats>(b), sum);
  }

  // A weight of the softmax, 2^x.
  static Floats weight(Floats x) { return exp2_of(x); }

  template <class T>
  static std::uint32_t word(const T* row, std::int64_t w, std::int64_t) {
    return bit_cast<std::uint32_t>(scalar(row[w]));
  }

  // The row's words from w on, one vector; 0 beyond its end.
  template <class T>
  static Words words(const T* row, std::int64_t w, std::int64_t d) {
    return bit_cast<Words>(d - w >= kLanes ? load(row + w) : load_some(row + w, d - w));
  }

  // The words of kPerWord rows from element i on, V vectors.
  template <int V, class T>
  static void columns(const T* const* rows, std::int64_t i, std::int64_t d, Words (&to)[V]) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) to[v] = words(rows[0], i + v * kLanes, d);
  }

  // Weights of as many keys as are put together, as words whose lanes are keys.
  static Words across(const Floats (&weights)[1]) { return bit_cast<Words>(weights[0]); }
  // And as words whose lanes are something else: each lane joins its weights of kPerWord keys.
  static Words along(const Floats (&weights)[1]) { return bit_cast<Words>(weights[0]); }
};

#if defined(TANDEM_AVX512) && defined(__AVX512BF16__)
#define TANDEM_PAIR_WORDS 1

struct PairWords {
  static constexpr int kPerWord = 2;

  static Floats multiply_add(Floats sum, Words a, Words b) {
    return _mm512_dpbf16_ps(sum, bit_cast<__m512bh>(a), bit_cast<__m512bh>(b));
  }

  // Good to 1e-4 relative, a twentieth of what rounding to bfloat16 costs: least error on
  // [-0.5, 0.5] at degree 3, with the constant term held at 1.
  static Floats weight(Floats x) {
    x = _mm512_max_ps(broadcast(-150.0f), x);  // NaN stays NaN
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
    const Floats r = x - n;
    Floats p = fused(broadcast(0.0550089311f), r, broadcast(0.2422109593f));
    p = fused(p, r, broadcast(0.6932829271f));
    return _mm512_scalef_ps(fused(p, r, broadcast(1.0f)), n);
  }

  template <class T>
  static std::uint32_t word(const T* row, std::int64_t w, std::int64_t d) {
    const std::uint32_t low = bit_cast<std::uint32_t>(scalar(row[2 * w])) >> 16;
    return 2 * w + 1 < d ? low | bit_cast<std::uint32_t>(scalar(row[2 * w + 1])) : low;
  }

  template <class T>
  static Words words(const T* row, std::int64_t w, std::int64_t d) {
    return bit_cast<Words>(elements(row, 2 * w, d));
  }

  template <int V, class T>
  static void columns(const T* const* rows, std::int64_t i, std::int64_t d, Words (&to)[V]) {
    const __m512i low = interleaving(0), high = interleaving(16);
#pragma GCC unroll 8
    for (int v = 0; v < V; v += 2) {
      const __m512i even = elements(rows[0], i + v * kLanes, d);
      const __m512i odd = elements(rows[1], i + v * kLanes, d);
      to[v] = bit_cast<Words>(_mm512_permutex2var_epi16(even, low, odd));
      if (v + 1 < V) to[v + 1] = bit_cast<Words>(_mm512_permutex2var_epi16(even, high, odd));
    }
  }

  static Words across(const Floats (&weights)[2]) {
    return bit_cast<Words>(_mm512_cvtne2ps_pbh(weights[1], weights[0]));
  }
  static Words along(const Floats (&weights)[2]) {
    return bit_cast<Words>(
        _mm512_permutexvar_epi16(interleaving(0, 16), bit_cast<__m512i>(across(weights))));
  }

 private:
  // Elements i to i + 32 of a row as bfloat16, 0 beyond its end.
  static __m512i elements(const Bfloat16* row, std::int64_t i, std::int64_t d) {
    if (d - i >= 32) return _mm512_loadu_si512(row + i);
    return _mm512_maskz_loadu_epi16((1u << (d - i)) - 1, row + i);
  }

  static __m256i bytes(const void* row, std::int64_t i, std::int64_t d) {
    const char* from = static_cast<const char*>(row) + i;
    if (d - i >= 32) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm256_maskz_loadu_epi8((1u << (d - i)) - 1, from);
  }

  static __m512i elements(const Int8Value* row, std::int64_t i, std::int64_t d) {
    const __m256i eighths = bytes(row, i, d);
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(eighths)));
    const __m512 high =
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(eighths, 1)));
    return bit_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  }

  static __m512i elements(const Float8Value* row, std::int64_t i, std::int64_t d) {
    const __m512i bits = _mm512_cvtepu8_epi16(bytes(row, i, d));
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi16(0x7f));
    const __m512i normal =
        _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
    // Multiples of 2^-9 below 2^-6, by 0 .. 7
    const __m512i subnormals = _mm512_set4_epi32(0x3c603c40, 0x3c203c00, 0x3bc03b80, 0x3b000000);
    const __mmask32 is_subnormal = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
    const __m512i positive =
        _mm512_mask_permutexvar_epi16(normal, is_subnormal, magnitude, subnormals);
    const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(bits, _mm512_set1_epi16(0x80)), 8);
    return _mm512_or_si512(positive, sign);
  }

  // Picks elements first, first + 1, ... in turn with those `apart` further on.
  static __m512i interleaving(std::uint16_t first, std::uint16_t apart = 32) {
    std::uint16_t picks[32];
    for (std::uint16_t i = 0; i < 16; ++i) {
      picks[2 * i] = first + i;
      picks[2 * i + 1] = apart + first + i;
    }
    return _mm512_loadu_si512(picks);
  }
};
#endif

// kLanes rows of kLanes words become columns.
inline void transpose(Words (&words)[kLanes]) {
#if defined(TANDEM_AVX512)
  __m512i rows[16], pairs[16];
  for (int i = 0; i < 16; ++i) rows[i] = bit_cast<__m512i>(words[i]);
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
    words[j] = bit_cast<Words>(_mm512_shuffle_i32x4(pairs[j], pairs[8 + j], 0x88));
    words[8 + j] = bit_cast<Words>(_mm512_shuffle_i32x4(pairs[j], pairs[8 + j], 0xdd));
    words[4 + j] = bit_cast<Words>(_mm512_shuffle_i32x4(pairs[4 + j], pairs[12 + j], 0x88));
    words[12 + j] = bit_cast<Words>(_mm512_shuffle_i32x4(pairs[4 + j], pairs[12 + j], 0xdd));
  }
#else
  std::uint32_t cells[kLanes][kLanes];
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < kLanes; ++j) cells[j][i] = words[i][j];
  }
  for (int i = 0; i < kLanes; ++i) words[i] = load_words(cells[i]);
#endif
}

// Whether elements of T are words of W as they lie in memory.
template <class W, class T>
constexpr bool kIsPlain = sizeof(T) * W::kPerWord == sizeof(std::uint32_t);

#if defined(TANDEM_AVX512)
constexpr int kHalf = kLanes / 2;

// Words w to w + kHalf of kLanes rows of plain elements become columns. Half as many words as lanes,
// so that two such blocks are held in registers beside sums.
template <class T>
[[gnu::always_inline]] inline void transpose_half(const T* const* rows, std::int64_t w,
                                                  Words (&columns)[kHalf]) {
  const auto half = [&](int row) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[row]) + w / kHalf);
  };
  __m512i pairs[8], fours[8];
  // Rows 0 and 4, 1 and 5, ..., 8 and 12, ...
  for (int i = 0; i < 8; ++i) {
    const int row = i < 4 ? i : i + 4;
    fours[i] = _mm512_inserti64x4(_mm512_castsi256_si512(half(row)), half(row + 4), 1);
  }
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(fours[i], fours[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(fours[i], fours[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
      fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
    }
  }
  for (int j = 0; j < 4; ++j) {
    columns[j] = bit_cast<Words>(_mm512_shuffle_i32x4(fours[j], fours[4 + j], 0x88));
    columns[4 + j] = bit_cast<Words>(_mm512_shuffle_i32x4(fours[j], fours[4 + j], 0xdd));
  }
}
#endif

// kLanes rows of `num_words` words each become columns of `stride` words, one below the other.
template <class W, class T>
inline void transpose_rows(const T* const* rows, std::int64_t d, std::int64_t num_words,
                           std::uint32_t* to, std::int64_t stride) {
  for (std::int64_t w = 0; w < num_words; w += kLanes) {
    Words block[kLanes];
    for (int i = 0; i < kLanes; ++i) block[i] = W::words(rows[i], w, d);
    transpose(block);
    if (num_words - w >= kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store_words(to + (w + i) * stride, block[i]);
    } else {
      for (int i = 0; i < num_words - w; ++i) store_words(to + (w + i) * stride, block[i]);
    }
  }
}

}  // namespace tandem
