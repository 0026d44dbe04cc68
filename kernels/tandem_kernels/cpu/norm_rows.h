// RMSNorm and LayerNorm of one row, and the sum that comes before them.
//
// All sums are float32, in four chains (which hide the latency of an addition) that are added in
// one order: a row's bits follow from the row.
#pragma once

#include <cmath>
#include <cstdint>

#include "row_vectors.h"

namespace tandem {

// The sum of f(vector, count) over a row.
template <class T, class F>
inline float sum_of_row(const T* x, std::int64_t width, const F& f) {
  Floats a{}, b{}, c{}, d{};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    a = f(load(x + i), a, kLanes);
    b = f(load(x + i + kLanes), b, kLanes);
    c = f(load(x + i + 2 * kLanes), c, kLanes);
    d = f(load(x + i + 3 * kLanes), d, kLanes);
  }
  for_each_vector(width - i, [&](std::int64_t j, std::int64_t count) {
    a = f(take(x + i + j, count), a, count);
  });
  return sum_of_lanes((a + b) + (c + d));
}

// x / rms(x) * weight (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019). `out`
// may be `x`.
template <class T>
inline void rms_norm_row(const T* x, const T* weight, T* out, std::int64_t width, float eps) {
  const float squares = sum_of_row(
      x, width, [](Floats v, Floats sum, std::int64_t) { return fused(v, v, sum); });
  const Floats factor = broadcast(1.0f / std::sqrt(squares / static_cast<float>(width) + eps));
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) {
    put(out + i, take(x + i, count) * factor * take(weight + i, count), count);
  });
}

// (x - mean) / deviation * weight + bias (Ba et al., "Layer Normalization", 2016). `out` may be
// `x`. The deviation is computed around the mean, in a second pass.
template <class T>
inline void layer_norm_row(const T* x, const T* weight, const T* bias, T* out, std::int64_t width,
                           float eps) {
  const auto size = static_cast<float>(width);
  const Floats mean = broadcast(
      sum_of_row(x, width, [](Floats v, Floats sum, std::int64_t) { return sum + v; }) / size);
  Ints lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  const float squares = sum_of_row(x, width, [&](Floats v, Floats sum, std::int64_t count) {
    const Floats distance = v - mean;
    // Lanes beyond the row are no elements of it
    return lanes < static_cast<std::int32_t>(count) ? fused(distance, distance, sum) : sum;
  });
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
