// Tiles for AVX-512: up to 12 x 2 sums in registers, one multiply-add for each in a lane of K.
#include "linear_tile.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>

namespace tandem {
namespace {

struct Float32Lane {
  static __m512 multiply_add(__m512 sum, __m512i weight, __m512i x) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(weight), _mm512_castsi512_ps(x), sum);
  }
};

#if defined(__AVX512BF16__)
struct BFloat16Lane {
  static __m512 multiply_add(__m512 sum, __m512i weight, __m512i x) {
    return _mm512_dpbf16_ps(sum, (__m512bh)weight, (__m512bh)x);
  }
};

void store_bfloat16(std::uint16_t* y, __mmask16 mask, __m512 sum) {
  _mm256_mask_storeu_epi16(y, mask, (__m256i)_mm512_cvtneps_pbh(sum));
}
#else
void store_bfloat16(std::uint16_t*, __mmask16, __m512) {}  // nobody calls it: no such tiles
#endif

void store(const Tile& tile, std::int64_t row, std::int64_t first_column, __m512 sum) {
  const std::int64_t remaining = tile.columns - first_column;
  if (remaining <= 0) return;
  const auto mask = static_cast<__mmask16>(remaining >= 16 ? 0xffff : (1 << remaining) - 1);
  if (tile.bias != nullptr) {
    sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, tile.bias + first_column));
  }
  const std::int64_t at = row * tile.y_stride + first_column;
  if (tile.y_type == ElementType::kFloat32) {
    _mm512_mask_storeu_ps(static_cast<float*>(tile.y) + at, mask, sum);
  } else {
    store_bfloat16(static_cast<std::uint16_t*>(tile.y) + at, mask, sum);
  }
}

template <typename Lane, int kRows>
void multiply(const Tile& tile) {
  __m512 sums[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
  const std::uint32_t* x = tile.x;
  const std::uint32_t* weight = tile.weight;
  const char* prefetch = tile.prefetch;
  for (std::int64_t lane = 0; lane < tile.lanes; ++lane, x += kRows, weight += kPanelColumns) {
    _mm_prefetch(prefetch, _MM_HINT_T1);
    _mm_prefetch(prefetch + 64, _MM_HINT_T1);
    prefetch += tile.prefetch_step;
    const __m512i left = _mm512_loadu_si512(weight);
    const __m512i right = _mm512_loadu_si512(weight + 16);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512i value = _mm512_set1_epi32(static_cast<int>(x[r]));
      sums[r][0] = Lane::multiply_add(sums[r][0], left, value);
      sums[r][1] = Lane::multiply_add(sums[r][1], right, value);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    store(tile, r, 0, sums[r][0]);
    store(tile, r, 16, sums[r][1]);
  }
}

template <typename Lane>
void multiply_tile(const Tile& tile) {
  static constexpr TileFunction kByRows[kMaxTileRows] = {
      multiply<Lane, 1>, multiply<Lane, 2>,  multiply<Lane, 3>,  multiply<Lane, 4>,
      multiply<Lane, 5>, multiply<Lane, 6>,  multiply<Lane, 7>,  multiply<Lane, 8>,
      multiply<Lane, 9>, multiply<Lane, 10>, multiply<Lane, 11>, multiply<Lane, 12>};
  kByRows[tile.rows - 1](tile);
}

}  // namespace

#if defined(__AVX512BF16__)
TileFunctions avx512_tiles() { return {multiply_tile<Float32Lane>, multiply_tile<BFloat16Lane>}; }
#else
TileFunctions avx512_tiles() { return {multiply_tile<Float32Lane>, nullptr}; }
#endif

}  // namespace tandem

#else

tandem::TileFunctions tandem::avx512_tiles() { return {}; }

#endif
