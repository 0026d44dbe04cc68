// Where the keys and values of one KV head of one sequence lie in the paged cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attention_call.h"

namespace tandem {

// A head's elements in whole vectors.
inline std::int64_t padded_width(std::int64_t d) { return (d + kLanes - 1) / kLanes * kLanes; }

// Blocks hold a multiple of so many keys.
constexpr std::int64_t kRunKeys = 8;

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

  // The keys of a run `head` heads on, or its values.
  const char* run_of(const TandemLayerCache& cache, std::int64_t run, std::int64_t head,
                     bool values) const {
    return runs[run] + head * cache.head_stride + (values ? delta : 0);
  }

  // Null where the cache has none.
  const Bfloat16* scales_of(const TandemLayerCache& cache, std::int64_t run, std::int64_t head,
                            bool values) const {
    const Bfloat16* first = values ? cache.v_scales : cache.k_scales;
    return first == nullptr ? nullptr : first + scales[run] + head * cache.scale_head_stride;
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

  // Of the KV head `head` heads on from that of the runs. `zeros` is a row.
  TileReader(const AttentionCall& call, const TileRuns& tile, std::int64_t head, const T* zeros)
      : cache_(call.cache), tile_(tile), head_(head), zeros_(zeros) {}

  // Where the keys from `first`, a multiple of kLanes, lie.
  void keys(std::int64_t first, const T* (&rows)[kLanes]) const { locate(first, false, rows); }
  void values(std::int64_t first, const T* (&rows)[kLanes]) const {
    locate(first, true, rows);
  }

  // All keys in whole vectors, or their values: each run is kRunKeys rows. Those that aren't read
  // whole are copied to `spare`, which has room for kSpareRuns.
  static constexpr std::int64_t kSpareRuns = 2 * kLanes / kRunKeys;
  WholeRuns<T> whole_runs(bool values, T* spare) const {
    const std::int64_t run_size = kRunKeys * cache_.head_dim;
    const Span span = tile_.keys.widened();
    WholeRuns<T> runs;
    for (std::int64_t key = span.begin; key < span.end; key += kRunKeys) {
      const T*& whole = runs.of[key / kRunKeys];
      if (tile_.keys.begin <= key && key + kRunKeys <= tile_.keys.end) {
        whole = run(key, values);
        continue;
      }
      std::fill_n(spare, run_size, T{});
      const std::int64_t begin = std::max(key, tile_.keys.begin);
      const std::int64_t end = std::min(key + kRunKeys, tile_.keys.end);
      if (begin < end) {
        std::copy_n(row(begin, values), (end - begin) * cache_.head_dim,
                    spare + (begin - key) * cache_.head_dim);
      }
      whole = spare;
      spare += run_size;
    }
    return runs;
  }

  Floats key_scales(std::int64_t first) const { return scales(first, false); }
  Floats value_scales(std::int64_t first) const { return scales(first, true); }

 private:
  static constexpr std::int64_t kStep = kLanes < kRunKeys ? kLanes : kRunKeys;

  const T* run(std::int64_t key, bool values) const {
    return reinterpret_cast<const T*>(tile_.run_of(cache_, key / kRunKeys, head_, values));
  }
  const T* row(std::int64_t key, bool values) const {
    return run(key, values) + key % kRunKeys * cache_.head_dim;
  }

  void locate(std::int64_t first, bool values, const T* (&rows)[kLanes]) const {
    if (tile_.keys.begin <= first && first + kLanes <= tile_.keys.end) {
      for (std::int64_t i = 0; i < kLanes; i += kStep) {
        const T* from = row(first + i, values);
        for (std::int64_t j = 0; j < kStep; ++j) rows[i + j] = from + j * cache_.head_dim;
      }
      return;
    }
    for (std::int64_t i = 0; i < kLanes; ++i) {
      rows[i] = is_read(first + i) ? row(first + i, values) : zeros_;
    }
  }

  bool is_read(std::int64_t key) const { return tile_.keys.begin <= key && key < tile_.keys.end; }

  const Bfloat16* scales_of(std::int64_t key, bool values) const {
    return tile_.scales_of(cache_, key / kRunKeys, head_, values) + key % kRunKeys;
  }

  Floats scales(std::int64_t first, bool values) const {
    if (tile_.keys.begin <= first && first + kLanes <= tile_.keys.end) {
#if defined(TANDEM_AVX512)
      // Put together in a register: what is stored in parts can't be loaded whole at once
      const auto eight = [&](std::int64_t key) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales_of(key, values)));
      };
      const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(eight(first)),
                                                   eight(first + kRunKeys), 1);
      return bit_cast<Floats>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(both), 16));
#else
      Bfloat16 whole[kLanes];
      for (std::int64_t i = 0; i < kLanes; i += kStep) {
        std::memcpy(whole + i, scales_of(first + i, values), kStep * sizeof(Bfloat16));
      }
      return load(whole);
#endif
    }
    Bfloat16 whole[kLanes] = {};
    for (std::int64_t i = 0; i < kLanes; ++i) {
      if (is_read(first + i)) whole[i] = *scales_of(first + i, values);
    }
    return load(whole);
  }

  const TandemLayerCache& cache_;
  const TileRuns& tile_;
  const std::int64_t head_;
  const T* zeros_;
};

}  // namespace tandem
