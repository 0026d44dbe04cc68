// Rotates queries and keys, and puts keys and values into their slots of the cache.
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kv_rows.h"
#include "layer_cache.h"
#include "linear_tile.h"
#include "rope.h"
#include "thread_pool.h"

namespace tandem {
namespace {

constexpr std::int64_t kMinElements = 16 * 1024;

template <class T>
struct Tokens {
  Heads<T> q;
  Heads<const T> k, v;
  const std::int64_t* positions;
  const std::int64_t* slots;
  std::int64_t number;
};

// Writes rows of one format at (token, head); see layer_cache.h for where that is.
template <class Row>
class Slot {
 public:
  Slot(const TandemLayerCache& cache, std::int64_t slot) : cache_(cache) {
    const std::int64_t block = slot / cache.block_size, token = slot % cache.block_size;
    values_ = block * cache.block_stride + token * cache.head_dim * Row::kValueBytes;
    scale_ = block * cache.scale_block_stride + token;
  }

  template <class T>
  void put_k(std::int64_t head, const T* row) const {
    put(cache_.k, cache_.k_scales, head, row);
  }

  template <class T>
  void put_v(std::int64_t head, const T* row) const {
    put(cache_.v, cache_.v_scales, head, row);
  }

 private:
  template <class T>
  void put(void* values, Bfloat16* scales, std::int64_t head, const T* row) const {
    void* to = static_cast<char*>(values) + values_ + head * cache_.head_stride;
    Bfloat16* scale =
        scales == nullptr ? nullptr : scales + scale_ + head * cache_.scale_head_stride;
    Row::write(row, cache_.head_dim, to, scale);
  }

  const TandemLayerCache& cache_;
  std::int64_t values_;  // bytes from the cache's start
  std::int64_t scale_;
};

template <class Row, class T>
void rope_write_kv(const Tokens<T>& tokens, const Rotation& rotation,
                   const TandemLayerCache& cache) {
  const std::int64_t d = cache.head_dim;
  const std::size_t rest_bytes = static_cast<std::size_t>(d - rotation.size) * sizeof(T);
  const std::int64_t elements = (tokens.q.number + 2 * tokens.k.number) * d;
  parallel_ranges(tokens.number, kMinElements / elements + 1,
                  [&](std::int64_t begin, std::int64_t end) {
    T rotated[kMaxHeadDim];
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t h = 0; rotation.size > 0 && h < tokens.q.number; ++h) {
        T* row = tokens.q.row(t, h, d);
        rotation.apply(row, tokens.positions[t], row);
      }
      const Slot<Row> slot(cache, tokens.slots[t]);
      for (std::int64_t h = 0; h < tokens.k.number; ++h) {
        const T* row = tokens.k.row(t, h, d);
        if (rotation.size > 0) {
          rotation.apply(row, tokens.positions[t], rotated);
          std::memcpy(rotated + rotation.size, row + rotation.size, rest_bytes);
          row = rotated;
        }
        slot.put_k(h, row);
        slot.put_v(h, tokens.v.row(t, h, d));
      }
    }
  });
}

template <class T>
void rope_write_kv(const Tokens<T>& tokens, const Rotation& rotation,
                   const TandemLayerCache& cache) {
  switch (cache.type) {
    case CacheType::kFloat32:
      return rope_write_kv<PlainRow<float>>(tokens, rotation, cache);
    case CacheType::kBFloat16:
      return rope_write_kv<PlainRow<Bfloat16>>(tokens, rotation, cache);
    case CacheType::kInt8:
      return rope_write_kv<QuantizedRow<Int8>>(tokens, rotation, cache);
    case CacheType::kFloat8E4M3:
      return rope_write_kv<QuantizedRow<Float8E4M3>>(tokens, rotation, cache);
  }
}

}  // namespace
}  // namespace tandem

void tandem_rope_write_kv(const TandemBatch* batch, const TandemLayerCache* cache,
                          std::int32_t element, void* q, std::int64_t q_stride,
                          std::int64_t num_heads, const void* k, std::int64_t k_stride,
                          const void* v, std::int64_t v_stride, const float* cos_sin,
                          std::int64_t rotary_dim, std::int64_t num_tokens) {
  using namespace tandem;
  const auto run = [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const std::int64_t kv_heads = cache->num_kv_heads;
    const Tokens<T> tokens{{static_cast<T*>(q), q_stride, num_heads},
                           {static_cast<const T*>(k), k_stride, kv_heads},
                           {static_cast<const T*>(v), v_stride, kv_heads},
                           batch->positions,
                           batch->slot_mapping,
                           num_tokens};
    rope_write_kv(tokens, {cos_sin, rotary_dim}, *cache);
  };
  if (static_cast<ElementType>(element) == ElementType::kFloat32) {
    run(static_cast<float*>(nullptr));
  } else {
    run(static_cast<Bfloat16*>(nullptr));
  }
}
