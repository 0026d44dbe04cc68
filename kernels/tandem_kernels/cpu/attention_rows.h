// Where the keys and values of one KV head of one sequence lie in the paged cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attention_call.h"

namespace tandem {

// A head's elements in whole vectors.
inline std::int64_t padded_width(std::int64_t d) { return (d + kLanes - 1) / kLanes * kLanes; }

inline std::int64_t value_bytes(CacheType type) {
  return type == CacheType::kFloat32 ? 4 : type == CacheType::kBFloat16 ? 2 : 1;
}

// Blocks hold a multiple of so many keys.
constexpr std::int64_t kRunKeys = 8;

// Asks for a run and its scales, if there are any.
[[gnu::always_inline]] inline void prefetch_run(const char* run, std::int64_t run_bytes,
                                                const Bfloat16* scales) {
  for (std::int64_t i = 0; i < run_bytes; i += 64) __builtin_prefetch(run + i, 0, 2);
  if (scales != nullptr) __builtin_prefetch(scales, 0, 2);
}

// The keys of one tile that are read, run by run of neighbours.
struct TileRuns {
  Span keys{};  // what is read; the rest may hold anything
  std::int64_t delta;  // bytes from a key to its value
  const char* runs[kTile / kRunKeys];
  std::int64_t scales[kTile / kRunKeys];  // of the run's first key, elements

  void locate(const AttentionCall& call, std::int64_t sequence, std::int64_t kv_head,
              std::int64_t tile, Span read) {
    const TandemLayerCache& cache = call.cache;
    const std::int32_t* table = call.batch.block_tables + sequence * call.batch.table_width;
    keys = read;
    delta = static_cast<const char*>(cache.v) - static_cast<const char*>(cache.k);
    const std::int64_t block_bytes = cache.block_stride;
    const std::int64_t first_run = read.begin / kRunKeys;
    const std::int64_t position = tile * kTile + first_run * kRunKeys;
    std::int64_t block = position / cache.block_size;
    std::int64_t offset = position - block * cache.block_size;
    const std::int64_t row_bytes = cache.head_dim * value_bytes(cache.type);
    for (std::int64_t run = first_run; run * kRunKeys < read.end; ++run) {
      const std::int64_t at = table[block];
      runs[run] = static_cast<const char*>(cache.k) + at * block_bytes +
                  kv_head * cache.head_stride + offset * row_bytes;
      scales[run] = at * cache.scale_block_stride + kv_head * cache.scale_head_stride + offset;
      offset += kRunKeys;
      if (offset >= cache.block_size) {
        offset = 0;
        ++block;
      }
    }
  }

  // Null where the cache has none.
  const Bfloat16* scales_of(const TandemLayerCache& cache, std::int64_t run, bool values) const {
    const Bfloat16* first = values ? cache.v_scales : cache.k_scales;
    return first == nullptr ? nullptr : first + scales[run];
  }

  // Asks for the keys of a run, or for its values.
  void prefetch(const TandemLayerCache& cache, std::int64_t run, std::int64_t run_bytes,
                bool values) const {
    prefetch_run(runs[run] + (values ? delta : 0), run_bytes, scales_of(cache, run, values));
  }
};

// Runs of a tile that can be read whole.
template <class T>
struct WholeRuns {
  const T* of[kTile / kRunKeys];
};

// Reads kLanes neighbouring rows at a time. Those outside the span are rows of zeros, so that
// whatever the cache holds there is never read.
template <class T>
class TileReader {
 public:
  static constexpr bool kHasScales = sizeof(T) == 1;

  // `zeros` is a row.
  TileReader(const AttentionCall& call, const TileRuns& tile, const T* zeros)
      : cache_(call.cache), tile_(tile), zeros_(zeros) {}

  // Where the keys from `first`, a multiple of kLanes, lie.
  void keys(std::int64_t first, const T* (&rows)[kLanes]) const { locate(first, 0, rows); }
  void values(std::int64_t first, const T* (&rows)[kLanes]) const {
    locate(first, tile_.delta, rows);
  }

  // All keys in whole vectors, or their values: each run is kRunKeys rows. Those that aren't read
  // whole are copied to `spare`, which has room for kSpareRuns.
  static constexpr std::int64_t kSpareRuns = 2 * kLanes / kRunKeys;
  WholeRuns<T> whole_runs(bool values, T* spare) const {
    const std::int64_t delta = values ? tile_.delta : 0, run_size = kRunKeys * cache_.head_dim;
    const Span span = tile_.keys.widened();
    WholeRuns<T> runs;
    for (std::int64_t key = span.begin; key < span.end; key += kRunKeys) {
      const T*& run = runs.of[key / kRunKeys];
      if (tile_.keys.begin <= key && key + kRunKeys <= tile_.keys.end) {
        run = reinterpret_cast<const T*>(tile_.runs[key / kRunKeys] + delta);
        continue;
      }
      std::fill_n(spare, run_size, T{});
      const std::int64_t begin = std::max(key, tile_.keys.begin);
      const std::int64_t end = std::min(key + kRunKeys, tile_.keys.end);
      if (begin < end) {
        std::copy_n(row(begin, delta), (end - begin) * cache_.head_dim,
                    spare + (begin - key) * cache_.head_dim);
      }
      run = spare;
      spare += run_size;
    }
    return runs;
  }

  Floats key_scales(std::int64_t first) const { return scales(first, cache_.k_scales); }
  Floats value_scales(std::int64_t first) const { return scales(first, cache_.v_scales); }

 private:
  static constexpr std::int64_t kStep = kLanes < kRunKeys ? kLanes : kRunKeys;

  const T* row(std::int64_t key, std::int64_t delta) const {
    const T* run = reinterpret_cast<const T*>(tile_.runs[key / kRunKeys] + delta);
    return run + key % kRunKeys * cache_.head_dim;
  }

  void locate(std::int64_t first, std::int64_t delta, const T* (&rows)[kLanes]) const {
    if (tile_.keys.begin <= first && first + kLanes <= tile_.keys.end) {
      for (std::int64_t i = 0; i < kLanes; i += kStep) {
        const T* run = row(first + i, delta);
        for (std::int64_t j = 0; j < kStep; ++j) rows[i + j] = run + j * cache_.head_dim;
      }
      return;
    }
    for (std::int64_t i = 0; i < kLanes; ++i) {
      rows[i] = is_read(first + i) ? row(first + i, delta) : zeros_;
    }
  }

  bool is_read(std::int64_t key) const { return tile_.keys.begin <= key && key < tile_.keys.end; }

  Floats scales(std::int64_t first, const Bfloat16* from) const {
    if (tile_.keys.begin <= first && first + kLanes <= tile_.keys.end) {
#if defined(TANDEM_AVX512)
      // Put together in a register: what is stored in parts can't be loaded whole at once
      const auto run = [&](std::int64_t key) {
        return _mm_loadu_si128(
            reinterpret_cast<const __m128i*>(from + tile_.scales[key / kRunKeys]));
      };
      const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(run(first)),
                                                   run(first + kRunKeys), 1);
      return bit_cast<Floats>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(both), 16));
#else
      Bfloat16 whole[kLanes];
      for (std::int64_t i = 0; i < kLanes; i += kStep) {
        const std::int64_t key = first + i;
        std::memcpy(whole + i, from + tile_.scales[key / kRunKeys] + key % kRunKeys,
                    kStep * sizeof(Bfloat16));
      }
      return load(whole);
#endif
    }
    Bfloat16 whole[kLanes] = {};
    for (std::int64_t i = 0; i < kLanes; ++i) {
      const std::int64_t key = first + i;
      if (is_read(key)) whole[i] = from[tile_.scales[key / kRunKeys] + key % kRunKeys];
    }
    return load(whole);
  }

  const TandemLayerCache& cache_;
  const TileRuns& tile_;
  const T* zeros_;
};

}  // namespace tandem
