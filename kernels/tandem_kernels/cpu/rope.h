// Rotary embedding of one head of one token.
#pragma once

#include <cstdint>

#include "simd.h"

namespace tandem {

// Rotates element i with element i + half: `to` may be `from`.
template <class T>
inline void rotate(const T* from, const float* cos, const float* sin, T* to, std::int64_t half) {
  std::int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats low = load(from + i), high = load(from + half + i);
    const Floats c = load(cos + i), s = load(sin + i);
    store(to + i, fused(low, c, -(high * s)));
    store(to + half + i, fused(high, c, low * s));
  }
  if (i == half) return;
  const std::int64_t count = half - i;
  const Floats low = load_some(from + i, count), high = load_some(from + half + i, count);
  const Floats c = load_some(cos + i, count), s = load_some(sin + i, count);
  store_some(to + i, fused(low, c, -(high * s)), count);
  store_some(to + half + i, fused(high, c, low * s), count);
}

// Some heads of every token: rows of `d` elements, `token` apart from one token to the next.
template <class T>
struct Heads {
  T* data;
  std::int64_t token;
  std::int64_t number;

  T* row(std::int64_t t, std::int64_t head, std::int64_t d) const {
    return data + t * token + head * d;
  }
};

// The first `size` elements of a head turn by the angles of the token's position.
struct Rotation {
  const float* cos_sin;  // [positions][size]: cosines, then sines
  std::int64_t size;     // even; 0: nothing turns

  template <class T>
  void apply(const T* from, std::int64_t position, T* to) const {
    const float* cos = cos_sin + position * size;
    rotate(from, cos, cos + size / 2, to, size / 2);
  }
};

}  // namespace tandem
