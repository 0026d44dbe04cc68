// Activations of an MLP, and the gate that one half of a row is for the other.
#pragma once

#include <cstdint>

#include "row_vectors.h"
#include "simd_math.h"

namespace tandem {

enum class Activation : std::int32_t { kSilu = 0, kGelu = 1, kGeluTanh = 2 };

struct Silu {
  static Floats of(Floats x) { return x * sigmoid(x); }
};

// x times the normal distribution's share below x, by erfc(z) = e^(-z^2) p(1 / (1 + 0.3275911 z)):
// Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26 (error 1.5e-7).
struct Gelu {
  static Floats of(Floats x) {
    const Floats z = bit_cast<Floats>(bit_cast<Words>(x) & 0x7fffffff) * 0.70710678118654752f;
    const Floats t = 1.0f / fused(z, broadcast(0.3275911f), broadcast(1.0f));
    Floats p = broadcast(1.061405429f);
    p = fused(p, t, broadcast(-1.453152027f));
    p = fused(p, t, broadcast(1.421413741f));
    p = fused(p, t, broadcast(-0.284496736f));
    p = fused(p, t, broadcast(0.254829592f));
    const Floats beyond = p * t * exp2_of(z * z * -kLog2E) * 0.5f;
    return x * (x < 0.0f ? beyond : 1.0f - beyond);
  }
};

// x / 2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3): Hendrycks and Gimpel,
// "Gaussian Error Linear Units", 2016.
struct GeluTanh {
  static Floats of(Floats x) {
    const Floats slope =
        fused(x * x, broadcast(0.07135481627260025f), broadcast(1.5957691216057308f));
    return x * sigmoid(x * slope);
  }
};

// out = f(gate) * up, with `up` after `gate` in the row.
template <class F, class T>
inline void gate_row(const T* gate_up, T* out, std::int64_t width) {
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) {
    const Floats up = take(gate_up + width + i, count);
    put(out + i, F::of(take(gate_up + i, count)) * up, count);
  });
}

template <class F, class T>
inline void activate_row(const T* x, T* out, std::int64_t width) {
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) {
    put(out + i, F::of(take(x + i, count)), count);
  });
}

// scores = cap * tanh(scale * scores / cap).
inline void softcap_row(float* scores, std::int64_t width, float cap, float scale = 1.0f) {
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) {
    const Floats doubled = sigmoid(take(scores + i, count) * (2.0f * scale / cap));
    put(scores + i, fused(doubled, broadcast(2.0f * cap), broadcast(-cap)), count);
  });
}

}  // namespace tandem
