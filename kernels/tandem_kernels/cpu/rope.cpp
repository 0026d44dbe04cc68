// Rotary embedding and the writing of KV, together or each alone.
#include <cstdint>
#include <cstring>

#include "simd.h"
#include "thread_pool.h"

namespace tandem {
namespace {

constexpr std::int64_t kMinElements = 16 * 1024;

// Rotates element i with element i + half: `to` may be `from`.
template <class T>
void rotate(const T* from, const float* cos, const float* sin, T* to, std::int64_t half) {
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

// [num_blocks, kv_heads, block_size, d], addressed by slot; each block is contiguous.
template <class T>
struct Cache {
  T* data;
  std::int64_t block_size;
  std::int64_t block_stride;

  T* row(std::int64_t slot, std::int64_t head, std::int64_t d) const {
    const std::int64_t block = slot / block_size, offset = slot % block_size;
    return data + block * block_stride + (head * block_size + offset) * d;
  }
};

template <class T>
void rope(const Heads<T>& heads, const std::int64_t* positions, const float* cos_sin,
          std::int64_t num_tokens, std::int64_t d) {
  parallel_ranges(num_tokens, kMinElements / (heads.number * d) + 1,
                  [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* cos = cos_sin + positions[t] * d;
      for (std::int64_t h = 0; h < heads.number; ++h) {
        rotate(heads.row(t, h, d), cos, cos + d / 2, heads.row(t, h, d), d / 2);
      }
    }
  });
}

template <class T>
void write_kv(const Heads<const T>& k, const Heads<const T>& v, const Cache<T>& k_cache,
              const Cache<T>& v_cache, const std::int64_t* slots, std::int64_t num_tokens,
              std::int64_t d) {
  const std::size_t row_bytes = static_cast<std::size_t>(d) * sizeof(T);
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    for (std::int64_t h = 0; h < k.number; ++h) {
      std::memcpy(k_cache.row(slots[t], h, d), k.row(t, h, d), row_bytes);
      std::memcpy(v_cache.row(slots[t], h, d), v.row(t, h, d), row_bytes);
    }
  }
}

// Queries are rotated where they are; keys on their way into the cache.
template <class T>
void rope_write_kv(const Heads<T>& q, const Heads<const T>& k, const Heads<const T>& v,
                   const std::int64_t* positions, const float* cos_sin, const Cache<T>& k_cache,
                   const Cache<T>& v_cache, const std::int64_t* slots, std::int64_t num_tokens,
                   std::int64_t d) {
  const std::size_t row_bytes = static_cast<std::size_t>(d) * sizeof(T);
  parallel_ranges(num_tokens, kMinElements / ((q.number + 2 * k.number) * d) + 1,
                  [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* cos = cos_sin + positions[t] * d;
      const float* sin = cos + d / 2;
      for (std::int64_t h = 0; h < q.number; ++h) {
        rotate(q.row(t, h, d), cos, sin, q.row(t, h, d), d / 2);
      }
      for (std::int64_t h = 0; h < k.number; ++h) {
        rotate(k.row(t, h, d), cos, sin, k_cache.row(slots[t], h, d), d / 2);
        std::memcpy(v_cache.row(slots[t], h, d), v.row(t, h, d), row_bytes);
      }
    }
  });
}

}  // namespace
}  // namespace tandem

// Strides count elements, from one token or block to the next. cos_sin is float32 [positions, d].
#define TANDEM_ROPE(SUFFIX, T)                                                                     \
  void tandem_rope_##SUFFIX(T* x, std::int64_t stride, std::int64_t num_heads,                     \
                            const std::int64_t* positions, const float* cos_sin,                   \
                            std::int64_t num_tokens, std::int64_t d) {                             \
    tandem::rope<T>({x, stride, num_heads}, positions, cos_sin, num_tokens, d);                    \
  }                                                                                                \
  void tandem_write_kv_##SUFFIX(                                                                   \
      const T* k, std::int64_t k_stride, const T* v, std::int64_t v_stride,                        \
      std::int64_t num_kv_heads, T* k_cache, T* v_cache, std::int64_t block_size,                  \
      std::int64_t block_stride, const std::int64_t* slots, std::int64_t num_tokens,               \
      std::int64_t d) {                                                                            \
    tandem::write_kv<T>({k, k_stride, num_kv_heads}, {v, v_stride, num_kv_heads},                  \
                        {k_cache, block_size, block_stride}, {v_cache, block_size, block_stride},  \
                        slots, num_tokens, d);                                                     \
  }                                                                                                \
  void tandem_rope_write_kv_##SUFFIX(                                                              \
      T* q, std::int64_t q_stride, std::int64_t num_heads, const T* k, std::int64_t k_stride,      \
      const T* v, std::int64_t v_stride, std::int64_t num_kv_heads, const std::int64_t* positions, \
      const float* cos_sin, T* k_cache, T* v_cache, std::int64_t block_size,                       \
      std::int64_t block_stride, const std::int64_t* slots, std::int64_t num_tokens,               \
      std::int64_t d) {                                                                            \
    tandem::rope_write_kv<T>({q, q_stride, num_heads}, {k, k_stride, num_kv_heads},                \
                             {v, v_stride, num_kv_heads}, positions, cos_sin,                      \
                             {k_cache, block_size, block_stride},                                  \
                             {v_cache, block_size, block_stride}, slots, num_tokens, d);           \
  }

extern "C" {
TANDEM_ROPE(float32, float)
TANDEM_ROPE(bfloat16, tandem::Bfloat16)
}
