// Where the keys and values of one KV head of one sequence lie in the paged cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_call.h"

namespace tandem {

// kLanes neighbouring keys. Those outside what was asked for are rows of zeros, so that whatever
// the cache holds there is never read.
template <class T>
struct KeyGroup {
  const T* keys[kLanes];
  const T* values[kLanes];
  float key_scales[kLanes];
  float value_scales[kLanes];
};

template <class T>
class CacheRows {
 public:
  static constexpr bool kHasScales = sizeof(T) == 1;

  // `zeros` is a row.
  CacheRows(const AttentionCall& call, std::int64_t sequence, std::int64_t kv_head, const T* zeros)
      : cache_(call.cache),
        table_(call.batch.block_tables + sequence * call.batch.table_width),
        head_(kv_head),
        zeros_(zeros) {}

  // The group that starts with `first`, a position; keys from `begin` to `end` are there.
  void locate(std::int64_t first, std::int64_t begin, std::int64_t end, KeyGroup<T>& group) const {
    begin = std::max(begin, first);
    end = std::min(end, first + kLanes);
    std::int64_t i = first;
    for (; i < begin; ++i) put_zeros(i - first, group);
    while (i < end) {
      const std::int64_t block = i / cache_.block_size;
      const std::int64_t run_end = std::min(end, (block + 1) * cache_.block_size);
      const std::int64_t offset = i - block * cache_.block_size;
      put_run(table_[block], offset, i - first, run_end - first, group);
      i = run_end;
    }
    for (; i < first + kLanes; ++i) put_zeros(i - first, group);
  }

 private:
  void put_zeros(std::int64_t lane, KeyGroup<T>& group) const {
    group.keys[lane] = group.values[lane] = zeros_;
    if (kHasScales) group.key_scales[lane] = group.value_scales[lane] = 0.0f;
  }

  // Rows of one block from `offset` on.
  void put_run(std::int64_t block, std::int64_t offset, std::int64_t lane, std::int64_t end,
               KeyGroup<T>& group) const {
    const std::int64_t size = cache_.head_dim;
    const std::int64_t bytes = block * cache_.block_stride + head_ * cache_.head_stride;
    const T* key = reinterpret_cast<const T*>(static_cast<const char*>(cache_.k) + bytes);
    const T* value = reinterpret_cast<const T*>(static_cast<const char*>(cache_.v) + bytes);
    const std::int64_t scale =
        block * cache_.scale_block_stride + head_ * cache_.scale_head_stride + offset;
    key += offset * size;
    value += offset * size;
    for (std::int64_t i = lane; i < end; ++i) {
      group.keys[i] = key + (i - lane) * size;
      group.values[i] = value + (i - lane) * size;
      if (kHasScales) {
        group.key_scales[i] = as_float(cache_.k_scales[scale + i - lane]);
        group.value_scales[i] = as_float(cache_.v_scales[scale + i - lane]);
      }
    }
  }

  static float as_float(Bfloat16 value) {
    return bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
  }

  const TandemLayerCache& cache_;
  const std::int32_t* table_;
  std::int64_t head_;
  const T* zeros_;
};

// A head's elements in whole vectors.
inline std::int64_t padded_width(std::int64_t d) { return (d + kLanes - 1) / kLanes * kLanes; }

}  // namespace tandem
