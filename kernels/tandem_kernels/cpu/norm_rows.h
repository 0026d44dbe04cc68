// RMSNorm and LayerNorm of one row, and the sum that comes before them.
//
// All sums are float32, in four chains (which hide the latency of an addition) that are added in
// one order: a row's bits follow from the row.
#pragma once

#include <cmath>
#include <cstdint>

#include "row_vectors.h"

namespace tandem {

// The sum of f(vector, sum so far, count) over the vectors that vector_at(i, count) gives, in order.
template <class Source, class F>
inline float sum_of_row(std::int64_t width, const Source& vector_at, const F& f) {
  constexpr std::int64_t kWhole = kLanes;
  Floats a{}, b{}, c{}, d{};
  std::int64_t i = 0;
  for (; i + 4 * kWhole <= width; i += 4 * kWhole) {
    a = f(vector_at(i, kWhole), a, kWhole);
    b = f(vector_at(i + kWhole, kWhole), b, kWhole);
    c = f(vector_at(i + 2 * kWhole, kWhole), c, kWhole);
    d = f(vector_at(i + 3 * kWhole, kWhole), d, kWhole);
  }
  for_each_vector(width - i, [&](std::int64_t j, std::int64_t count) {
    a = f(vector_at(i + j, count), a, count);
  });
  return sum_of_lanes((a + b) + (c + d));
}

// The vectors of a row.
template <class T>
inline auto vectors_of(const T* x) {
  return [x](std::int64_t i, std::int64_t count) { return take(x + i, count); };
}

inline Floats add_square(Floats v, Floats sum, std::int64_t) { return fused(v, v, sum); }

// The second half of RMSNorm: x * weight, divided by the root of the mean square.
template <class T>
inline void scale_by_rms(const T* x, float squares, const T* weight, T* out, std::int64_t width,
                         float eps) {
  const Floats factor = broadcast(1.0f / std::sqrt(squares / static_cast<float>(width) + eps));
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) {
    put(out + i, take(x + i, count) * factor * take(weight + i, count), count);
  });
}

// x / rms(x) * weight (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019). `out`
// may be `x`.
template <class T>
inline void rms_norm_row(const T* x, const T* weight, T* out, std::int64_t width, float eps) {
  scale_by_rms(x, sum_of_row(width, vectors_of(x), add_square), weight, out, width, eps);
}

// total += summand, then RMSNorm of the total: the same bits as one after the other.
template <class T>
inline void add_rms_norm_row(T* total, const T* summand, const T* weight, T* out,
                             std::int64_t width, float eps) {
  const auto add = [&](std::int64_t i, std::int64_t count) {
    put(total + i, take(total + i, count) + take(summand + i, count), count);
    return take(total + i, count);  // rounded
  };
  scale_by_rms(total, sum_of_row(width, add, add_square), weight, out, width, eps);
}

// (x - mean) / deviation * weight + bias (Ba et al., "Layer Normalization", 2016). `out` may be
// `x`. The deviation is computed around the mean, in a second pass.
template <class T>
inline void layer_norm_row(const T* x, const T* weight, const T* bias, T* out, std::int64_t width,
                           float eps) {
  const auto size = static_cast<float>(width);
  const Floats mean = broadcast(
      sum_of_row(width, vectors_of(x), [](Floats v, Floats sum, std::int64_t) { return sum + v; }) /
      size);
  Ints lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  const auto add_distance = [&](Floats v, Floats sum, std::int64_t count) {
    const Floats distance = v - mean;
    // Lanes beyond the row are no elements of it
    return lanes < static_cast<std::int32_t>(count) ? fused(distance, distance, sum) : sum;
  };
  const float squares = sum_of_row(width, vectors_of(x), add_distance);
  const Floats factor = broadcast(1.0f / std::sqrt(squares / size + eps));
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) {
    const Floats normed = (take(x + i, count) - mean) * factor;
    put(out + i, fused(normed, take(weight + i, count), take(bias + i, count)), count);
  });
}

// total += summand, rounded to T: what is normed next is what the next layer will read.
template <class T>
inline void add_row(T* total, const T* summand, std::int64_t width) {
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) {
    put(total + i, take(total + i, count) + take(summand + i, count), count);
  });
}

}  // namespace tandem
