// Row by row: RMSNorm, with and without a residual, and the gate of SwiGLU.
#include <cmath>
#include <cstdint>

#include "simd_math.h"
#include "thread_pool.h"

namespace tandem {
namespace {

// Elements that one thread computes in about the time in which another one wakes.
constexpr std::int64_t kMinElements = 16 * 1024;

std::int64_t min_rows(std::int64_t width) { return kMinElements / width + 1; }

// f(vector, i, count) for all elements of a row: count is kLanes but for the last few.
template <class F>
inline void for_each_vector(std::int64_t width, const F& f) {
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) f(i, static_cast<std::int64_t>(kLanes));
  if (i < width) f(i, width - i);
}

template <class T>
inline Floats take(const T* from, std::int64_t count) {
  return count == kLanes ? load(from) : load_some(from, count);
}

template <class T>
inline void put(T* to, Floats values, std::int64_t count) {
  if (count == kLanes) {
    store(to, values);
  } else {
    store_some(to, values, count);
  }
}

template <class T>
float inverse_rms(const T* x, std::int64_t width, float eps) {
  Floats sums[4] = {};  // four chains hide the latency of an addition
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) {
    const Floats values = take(x + i, count);
    Floats& sum = sums[i / kLanes % 4];
    sum = fused(values, values, sum);
  });
  const float squares = sum_of_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  return 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
}

template <class T>
void norm_row(const T* x, const T* weight, T* out, std::int64_t width, float eps) {
  const Floats factor = broadcast(inverse_rms(x, width, eps));
  for_each_vector(width, [&](std::int64_t i, std::int64_t count) {
    put(out + i, take(x + i, count) * factor * take(weight + i, count), count);
  });
}

template <class T>
void rms_norm(const T* x, std::int64_t stride, const T* weight, T* out, std::int64_t rows,
              std::int64_t width, float eps) {
  parallel_ranges(rows, min_rows(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      norm_row(x + r * stride, weight, out + r * width, width, eps);
    }
  });
}

// The residual is rounded to T before the norm reads it, as the next layer will.
template <class T>
void add_rms_norm(T* x, T* residual, const T* weight, std::int64_t rows, std::int64_t width,
                  float eps) {
  parallel_ranges(rows, min_rows(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      T* summand = x + r * width;
      T* total = residual + r * width;
      for_each_vector(width, [&](std::int64_t i, std::int64_t count) {
        put(total + i, take(total + i, count) + take(summand + i, count), count);
      });
      norm_row(total, weight, summand, width, eps);
    }
  });
}

template <class T>
void silu_mul(const T* gate_up, T* out, std::int64_t rows, std::int64_t width) {
  parallel_ranges(rows, min_rows(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* gates = gate_up + r * 2 * width;
      for_each_vector(width, [&](std::int64_t i, std::int64_t count) {
        const Floats gate = take(gates + i, count);
        put(out + r * width + i, gate * sigmoid(gate) * take(gates + width + i, count), count);
      });
    }
  });
}

}  // namespace
}  // namespace tandem

// All rows are contiguous; `stride` counts elements. The suffix is the element type.
#define TANDEM_ELEMENTWISE(SUFFIX, T)                                                              \
  void tandem_rms_norm_##SUFFIX(const T* x, std::int64_t stride, const T* weight, T* out,          \
                                std::int64_t rows, std::int64_t width, float eps) {                \
    tandem::rms_norm(x, stride, weight, out, rows, width, eps);                                    \
  }                                                                                                \
  void tandem_add_rms_norm_##SUFFIX(T* x, T* residual, const T* weight, std::int64_t rows,         \
                                    std::int64_t width, float eps) {                               \
    tandem::add_rms_norm(x, residual, weight, rows, width, eps);                                   \
  }                                                                                                \
  void tandem_silu_mul_##SUFFIX(const T* gate_up, T* out, std::int64_t rows, std::int64_t width) { \
    tandem::silu_mul(gate_up, out, rows, width);                                                   \
  }

extern "C" {
TANDEM_ELEMENTWISE(float32, float)
TANDEM_ELEMENTWISE(bfloat16, tandem::Bfloat16)
}
