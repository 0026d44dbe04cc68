// What this CPU can do at most, to be measured beside the linears: loops of nothing but the
// instruction that a format lives on, and of nothing but reading.
#include "linear_layout.h"
#include "thread_pool.h"

namespace tandem {
namespace {

constexpr int kSums = 12;  // enough for the latency of any of these instructions
constexpr std::int64_t kReadParts = 8;

struct Float32Loop {
  using Sum = Floats;
  static constexpr int kPerLane = 1;
  static Sum multiply_add(Sum sum, Words a, Words b) {
    return fused(bit_cast<Floats>(a), bit_cast<Floats>(b), sum);
  }
};

struct BFloat16Loop {
  using Sum = Floats;
  static constexpr int kPerLane = 2;
  static Sum multiply_add(Sum sum, Words a, Words b) { return dot_bfloat16(sum, a, b); }
};

struct ShortsLoop {
  using Sum = Ints;
  static constexpr int kPerLane = 2;
  static Sum multiply_add(Sum sum, Words a, Words b) { return dot_shorts(sum, a, b); }
};

struct BytesLoop {
  using Sum = Ints;
  static constexpr int kPerLane = 4;
  static Sum multiply_add(Sum sum, Words a, Words b) { return dot_bytes(sum, a, b); }
};

template <class Loop>
std::int64_t run(std::int64_t rounds) {
  parallel_parts(num_threads(), [&](int) {
    typename Loop::Sum sums[kSums] = {};
    Words a = {}, b = {};
    asm volatile("" : "+m"(a), "+m"(b));  // not known to be zero, so the loop is run
    for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
      for (int s = 0; s < kSums; ++s) {
        sums[s] = Loop::multiply_add(sums[s], a, b);
      }
    }
    for (int s = 0; s < kSums; ++s) asm volatile("" : : "m"(sums[s]));
  });
  return 2 * kSums * Loop::kPerLane * kLanes * rounds * num_threads();
}

}  // namespace
}  // namespace tandem

extern "C" {

// Runs `rounds` rounds of a loop on every thread and returns the operations (two for each product
// and its addition) of all. Numbers: 0 float32, 1 bfloat16, 2 int16, 3 bytes.
std::int64_t tandem_peak_operations(std::int32_t loop, std::int64_t rounds) {
  switch (loop) {
    case 0: return tandem::run<tandem::Float32Loop>(rounds);
    case 1: return tandem::run<tandem::BFloat16Loop>(rounds);
    case 2: return tandem::run<tandem::ShortsLoop>(rounds);
    default: return tandem::run<tandem::BytesLoop>(rounds);
  }
}

// Reads `size_bytes` from a 64-byte aligned address, all threads together.
void tandem_peak_read(const void* memory, std::int64_t size_bytes) {
  const std::int64_t lines = size_bytes / 64;
  const std::int64_t parts = tandem::kReadParts * tandem::num_threads();
  tandem::parallel_parts(static_cast<int>(parts), [&](int part) {
    const tandem::Range range = tandem::share(lines, part, parts);
    constexpr std::int64_t kStep = 256;
    tandem::Words sums[kStep / sizeof(tandem::Words)] = {};
    const char* at = static_cast<const char*>(memory) + range.begin * 64;
    const char* end = static_cast<const char*>(memory) + range.end * 64;
    for (; at + kStep <= end; at += kStep) {
      __builtin_prefetch(at + 8192, 0, 2);
      __builtin_prefetch(at + 8192 + 64, 0, 2);
      __builtin_prefetch(at + 8192 + 128, 0, 2);
      __builtin_prefetch(at + 8192 + 192, 0, 2);
#pragma GCC unroll 16
      for (std::size_t i = 0; i < kStep / sizeof(tandem::Words); ++i) {
        sums[i] += tandem::load_words(at + i * sizeof(tandem::Words));
      }
    }
    for (auto& sum : sums) asm volatile("" : : "m"(sum));
  });
}
}
