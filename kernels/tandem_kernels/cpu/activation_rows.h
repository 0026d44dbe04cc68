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

// x times the normal distribution's share below x, which is erfc(-x / sqrt(2)) / 2, with
// erfc(z) = t e^(p(t) - z^2) and t = 1 / (1 + z / 2) for z >= 0: a Chebyshev fit good to 1.2e-7
// relative (Press et al., "Numerical Recipes", 6.2).
struct Gelu {
  static Floats of(Floats x) {
    const Floats z = bit_cast<Floats>(bit_cast<Words>(x) & 0x7fffffff) * 0.70710678118654752f;
    const Floats t = 1.0f / fused(z, broadcast(0.5f), broadcast(1.0f));
    constexpr float kCoefficients[] = {-0.82215223f, 1.48851587f,  -1.13520398f,
                                       0.27886807f,  -0.18628806f, 0.09678418f,
                                       0.37409196f,  1.00002368f,  -1.26551223f};
    Floats p = broadcast(0.17087277f);
    for (const float coefficient : kCoefficients) p = fused(p, t, broadcast(coefficient));
    const Floats beyond = t * exp2_of(fused(-z, z, p) * kLog2E) * 0.5f;
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
