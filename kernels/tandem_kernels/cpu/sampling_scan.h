// Passes over a row of the vocabulary, and the total order of its tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "simd_math.h"

namespace tandem {

// Tokens whose sums or maxima are kept, so that a second look reads one block only.
constexpr std::int64_t kVocabBlock = 256;

inline std::int64_t num_vocab_blocks(std::int64_t vocab_size) {
  return (vocab_size + kVocabBlock - 1) / kVocabBlock;
}

// Distinct integers in the order of the tokens, best last: the logit's bits, then the id reversed.
// No NaN.
inline std::uint64_t order_key(float logit, std::int64_t id) {
  // Adding zero turns -0 into 0, which are equal as numbers but not as bits
  const auto bits = bit_cast<std::uint32_t>(logit + 0.0f);
  const std::uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<std::uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<std::uint32_t>(id));
}

inline std::int64_t id_of(std::uint64_t key) {
  return 0xffffffffu - static_cast<std::uint32_t>(key);
}

// visit(i) for every i with values[i] >= threshold, in order. `threshold` may grow meanwhile. Values
// that are all too small are passed over 4 vectors at a time.
template <class Visit>
inline void for_each_reaching(const float* values, std::int64_t size, const float& threshold,
                              const Visit& visit) {
  constexpr std::int64_t kStride = 4 * kLanes;
  std::int64_t i = 0;
  for (; i + kStride <= size; i += kStride) {
    const float* at = values + i;
    const Floats largest = larger(larger(load(at), load(at + kLanes)),
                                  larger(load(at + 2 * kLanes), load(at + 3 * kLanes)));
    if (largest_lane(largest) < threshold) continue;
    for (std::int64_t j = i; j < i + kStride; ++j) {
      if (values[j] >= threshold) visit(j);
    }
  }
  for (; i < size; ++i) {
    if (values[i] >= threshold) visit(i);
  }
}

// The sum in double, lane by lane, then over the lanes.
class ExactSum {
 public:
  void add(Floats values) {
    HalfFloats halves[2];
    std::memcpy(halves, &values, sizeof values);
    for (int i = 0; i < 2; ++i) sums_[i] += __builtin_convertvector(halves[i], Doubles);
  }
  void add(float value) { sums_[0][0] += static_cast<double>(value); }
  double total() const {
    const Doubles both = sums_[0] + sums_[1];
    double total = 0;
    for (int lane = 0; lane < kLanes / 2; ++lane) total += both[lane];
    return total;
  }

 private:
  using HalfFloats = float __attribute__((vector_size(2 * kLanes)));
  using Doubles = double __attribute__((vector_size(4 * kLanes)));
  Doubles sums_[2] = {};
};

// e^(distance / temperature) for distances <= 0, as vectors and one at a time with the same bits.
class Weigh {
 public:
  Weigh(float best, float temperature)
      : best_(broadcast(best)), scale_(broadcast(kLog2E / temperature)) {}
  Floats operator()(Floats logits) const { return exp2_of((logits - best_) * scale_); }
  float operator()(float logit) const { return (*this)(broadcast(logit))[0]; }

 private:
  Floats best_, scale_;
};

}  // namespace tandem
