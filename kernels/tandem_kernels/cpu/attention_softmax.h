// Softmax over some keys at a time, and how such parts are put together.
//
// Online softmax (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018): each
// tile of keys has weights relative to its own largest score, so tiles can be computed in any order
// and by any thread; they are merged in the order of their positions.
#pragma once

#include <cstdint>
#include <limits>

#include "attention_call.h"
#include "simd.h"
#include "simd_math.h"

namespace tandem {

// The score of a key that isn't seen. Not infinite, so that differences of two are numbers.
constexpr float kUnseen = -std::numeric_limits<float>::max();

// From products q * k to exponents of 2: exponent = unit * softcapped product.
class Exponents {
 public:
  explicit Exponents(const TandemAttention& attention)
      : capped_(attention.softcap > 0.0f),
        inner_(broadcast(capped_ ? attention.scale / attention.softcap : 1.0f)),
        unit_(broadcast((capped_ ? attention.softcap : attention.scale) * kLog2E)) {}

  bool capped() const { return capped_; }
  Floats cap(Floats products) const { return tanh_of(products * inner_); }
  // The exponent of products that count in `scales`, and `added`.
  Floats of(Floats products, Floats scales, Floats added) const {
    if (!capped_) return fused(products, unit_ * scales, added);
    return fused(tanh_of(products * (inner_ * scales)), unit_, added);
  }
  Floats unit() const { return unit_; }

  // The largest exponent, where `score` is the largest score.
  Floats largest(Floats scores) const { return larger(scores * unit_, broadcast(kUnseen)); }

 private:
  bool capped_;
  Floats inner_;
  Floats unit_;
};

// A softmax over some keys: their largest exponent, the sum of their weights relative to it, and
// the sum of their values so weighted. One row with its values side by side.
struct RowSum {
  float* largest;
  float* total;
  float* values;
};

// Such sums of rows, one after the other.
struct RowSums {
  float* begin;
  std::int64_t row_size;

  static constexpr std::int64_t kHeader = kLanes;  // largest and total; values stay aligned

  RowSum row(std::int64_t r) const {
    float* row = begin + r * row_size;
    return {row, row + 1, row + kHeader};
  }
};

// What the sums so far and those of a tile are multiplied by when they are merged.
struct MergeFactors {
  Floats largest, keep, add;

  MergeFactors(Floats row, Floats tile)
      : largest(larger(row, tile)), keep(exp2_of(row - largest)), add(exp2_of(tile - largest)) {}
};

inline Floats merged(Floats row, Floats tile, Floats keep, Floats add) {
  return fused(tile, add, row * keep);
}

// Adds the keys of `tile` to those of `row`. An empty row has largest = kUnseen and zeros elsewhere.
inline void merge(RowSum row, RowSum tile, std::int64_t width) {
  const MergeFactors factors(broadcast(*row.largest), broadcast(*tile.largest));
  *row.largest = factors.largest[0];
  *row.total = merged(broadcast(*row.total), broadcast(*tile.total), factors.keep, factors.add)[0];
  for (std::int64_t i = 0; i < width; i += kLanes) {
    store(row.values + i,
          merged(load(row.values + i), load(tile.values + i), factors.keep, factors.add));
  }
}

}  // namespace tandem
