// Rotary embedding alone, in place.
#include "rope.h"

#include "linear_tile.h"
#include "thread_pool.h"

namespace tandem {
namespace {

constexpr std::int64_t kMinElements = 16 * 1024;

template <class T>
void rope(const Heads<T>& heads, std::int64_t head_dim, const Rotation& rotation,
          const std::int64_t* positions, std::int64_t num_tokens) {
  parallel_ranges(num_tokens, kMinElements / (heads.number * head_dim) + 1,
                  [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t h = 0; h < heads.number; ++h) {
        T* row = heads.row(t, h, head_dim);
        rotation.apply(row, positions[t], row);
      }
    }
  });
}

}  // namespace
}  // namespace tandem

extern "C" {

// x [T][stride] with contiguous heads, of `element`; cos_sin float32 [positions][rotary_dim].
void tandem_rope(std::int32_t element, void* x, std::int64_t stride, std::int64_t num_heads,
                 std::int64_t head_dim, const float* cos_sin, std::int64_t rotary_dim,
                 const std::int64_t* positions, std::int64_t num_tokens) {
  using namespace tandem;
  const Rotation rotation{cos_sin, rotary_dim};
  if (static_cast<ElementType>(element) == ElementType::kFloat32) {
    const Heads<float> heads{static_cast<float*>(x), stride, num_heads};
    rope(heads, head_dim, rotation, positions, num_tokens);
  } else {
    const Heads<Bfloat16> heads{static_cast<Bfloat16*>(x), stride, num_heads};
    rope(heads, head_dim, rotation, positions, num_tokens);
  }
}
}
