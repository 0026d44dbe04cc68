// bfloat16 without instructions for it: the upper half of a float32.
#pragma once

#include <cstdint>
#include <cstring>

namespace tandem {

inline float float_from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t bits_from_float(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline std::uint16_t bfloat16_from_float(float value) {
  const std::uint32_t bits = bits_from_float(value);
  if (value != value) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace tandem
