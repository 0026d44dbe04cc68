// Attention of a few query rows (decode) that reads keys and values where they lie.
//
//   per tile:  scores     lanes are keys        keys are transposed, some vectors at a time
//              softmax    row by row
//              values     lanes are dimensions  rows of the cache as they are
//
// The memory is read in one order, tile by tile, keys before values; ReadAhead asks for what comes
// next, of the next jobs too.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_plan.h"
#include "attention_rows.h"
#include "attention_softmax.h"
#include "attention_words.h"
#include "scratch.h"
#include "word_product.h"

namespace tandem {

// Below as many rows as this, lanes that are rows would mostly be empty (many_rows.h).
constexpr std::int64_t kFewRows = kLanes > 8 ? 8 : kLanes / 2;

// Tiles of jobs that are computed one after the other.
struct TileRange {
  const AttentionJob* first;
  const AttentionJob* end;
  // Of a single shared job, perhaps only some tiles
  std::int64_t first_tile, end_tile;

  std::int64_t first_tile_of(const AttentionJob& job) const {
    return first_tile < end_tile ? first_tile : job.first_tile;
  }
  std::int64_t end_tile_of(const AttentionJob& job) const {
    return first_tile < end_tile ? end_tile : job.end_tile;
  }
};

// Walks over the groups of keys and of values in the order in which they will be read.
template <class T>
class ReadAhead {
 public:
  ReadAhead(const AttentionCall& call, const TileRange& range)
      : call_(call), range_(range), job_(range.first) {
    if (job_ != range_.end) open_tile(range_.first_tile_of(*job_));
  }

  // Asks for the next group.
  void advance() {
    if (job_ == range_.end) return;
    const std::int64_t end = std::min(at_ + kLanes, end_);
    const char* base = static_cast<const char*>(is_values_ ? call_.cache.v : call_.cache.k);
    const std::int32_t* table =
        call_.batch.block_tables + job_->sequence * call_.batch.table_width;
    while (at_ < end) {
      const std::int64_t block = at_ / call_.cache.block_size, offset = at_ % call_.cache.block_size;
      const std::int64_t run = std::min(end - at_, call_.cache.block_size - offset);
      const std::int64_t row_bytes = call_.cache.head_dim * static_cast<std::int64_t>(sizeof(T));
      const char* from = base + table[block] * call_.cache.block_stride +
                         job_->kv_head * call_.cache.head_stride + offset * row_bytes;
      for (std::int64_t i = 0; i < run * row_bytes; i += kCacheLineBytes) {
        __builtin_prefetch(from + i, 0, 2);
      }
      at_ += run;
    }
    if (at_ == end_) next_half();
  }

 private:
  static constexpr std::int64_t kCacheLineBytes = 64;

  void open_tile(std::int64_t tile) {
    tile_ = tile;
    is_values_ = false;
    open_half();
  }

  void open_half() {
    const std::int64_t s = job_->sequence;
    begin_ = tile_ * kTile + call_.seen(s, job_->begin, tile_).begin;
    end_ = tile_ * kTile + call_.seen(s, job_->end - 1, tile_).end;
    at_ = begin_;
  }

  void next_half() {
    if (!is_values_) {
      is_values_ = true;
      at_ = begin_;
      return;
    }
    if (tile_ + 1 < range_.end_tile_of(*job_)) return open_tile(tile_ + 1);
    if (++job_ != range_.end) open_tile(range_.first_tile_of(*job_));
  }

  const AttentionCall& call_;
  const TileRange range_;
  const AttentionJob* job_;
  std::int64_t tile_ = 0;
  std::int64_t begin_ = 0, end_ = 0, at_ = 0;  // positions
  bool is_values_ = false;
};

template <class W, class T, class E>
class FewRows {
 public:
  FewRows(const AttentionCall& call, Scratch& scratch)
      : call_(call),
        exponents_(call.attention),
        group_(call.group()),
        d_(call.cache.head_dim),
        num_words_((d_ + W::kPerWord - 1) / W::kPerWord),
        width_(padded_width(d_)) {
    const std::int64_t rows = std::max(kFewRows, group_);
    scratch.reset(Scratch::measure<std::uint32_t>(num_words_ * kPieceKeys) +
                  Scratch::measure<std::uint32_t>(rows * num_words_) +
                  Scratch::measure<std::uint32_t>(rows * kTile) +
                  Scratch::measure<float>(rows * kTile) +
                  2 * Scratch::measure<float>(rows * row_size()) + Scratch::measure<T>(width_) +
                  Scratch::measure<float>(kTile));
    keys_ = scratch.take<std::uint32_t>(num_words_ * kPieceKeys);
    queries_ = scratch.take<std::uint32_t>(rows * num_words_);
    weights_ = scratch.take<std::uint32_t>(rows * kTile);
    scores_ = scratch.take<float>(rows * kTile);
    rows_ = scratch.take<float>(rows * row_size());
    tile_rows_ = scratch.take<float>(rows * row_size());
    zeros_ = scratch.take<T>(width_);
    value_scales_ = scratch.take<float>(kTile);
    std::fill_n(zeros_, width_, T{});
  }

  // Floats that `partials` of a job need for each of its tiles.
  static std::int64_t partial_size(const AttentionCall& call) {
    return call.group() * (padded_width(call.cache.head_dim) + kRowHeader);
  }

  // All of the jobs, or some tiles of a shared one into its partials.
  void compute(const TileRange& range) {
    ReadAhead<T> ahead(call_, range);
    for (int i = 0; i < kGroupsAhead; ++i) ahead.advance();
    for (const AttentionJob* job = range.first; job != range.end; ++job) {
      load_queries(*job);
      clear(rows_, num_rows(*job));
      const CacheRows<T> cache(call_, job->sequence, job->kv_head, zeros_);
      for (std::int64_t tile = range.first_tile_of(*job); tile < range.end_tile_of(*job); ++tile) {
        add_tile(*job, cache, tile, ahead);
      }
      if (job->partials == nullptr) finish(*job);
    }
  }

  // Merges the partials of a job that several parts computed.
  void merge_partials(const AttentionJob& job) {
    const std::int64_t n = num_rows(job);
    clear(rows_, n);
    for (std::int64_t tile = 0; tile < job.num_tiles(); ++tile) {
      for (std::int64_t r = 0; r < n; ++r) {
        merge(row_sum(rows_, r), row_sum(job.partials, tile * n + r), width_);
      }
    }
    finish(job);
  }

 private:
  static constexpr int kGroupVectors = kVectorRegisters >= 32 ? 4 : 2;  // of keys or values
  static constexpr int kBlockRows = 4;
  static constexpr std::int64_t kPieceKeys = kGroupVectors * kLanes;  // transposed at a time
  static constexpr std::int64_t kRowHeader = kLanes;  // largest and total; values stay aligned
  static constexpr std::int64_t kWeightWords = kTile / W::kPerWord;
  // Some 16 kB: what the memory delivers while a softmax is computed.
  static constexpr int kGroupsAhead = 8;

  std::int64_t row_size() const { return width_ + kRowHeader; }
  std::int64_t num_rows(const AttentionJob& job) const { return (job.end - job.begin) * group_; }

  RowSum row_sum(float* rows, std::int64_t r) const {
    float* row = rows + r * row_size();
    return {row, row + 1, row + kRowHeader};
  }

  void clear(float* rows, std::int64_t n) const {
    std::fill_n(rows, n * row_size(), 0.0f);
    for (std::int64_t r = 0; r < n; ++r) *row_sum(rows, r).largest = kUnseen;
  }

  // Row r = token x group + head, as in the tensor.
  void load_queries(const AttentionJob& job) {
    const E* q = static_cast<const E*>(call_.q);
    for (std::int64_t r = 0; r < num_rows(job); ++r) {
      const std::int64_t token = job.begin + r / group_, head = job.kv_head * group_ + r % group_;
      const E* from = q + token * call_.q_stride + head * d_;
      for (std::int64_t w = 0; w < num_words_; ++w) {
        queries_[r * num_words_ + w] = W::word(from, w, d_);
      }
    }
  }

  void add_tile(const AttentionJob& job, const CacheRows<T>& cache, std::int64_t tile,
                ReadAhead<T>& ahead) {
    const Span lowest = call_.seen(job.sequence, job.begin, tile);
    const Span highest = call_.seen(job.sequence, job.end - 1, tile);
    const Span keys{lowest.begin, highest.end};
    score(cache, tile, keys, num_rows(job), ahead);
    const std::int64_t n = num_rows(job);
    for (std::int64_t r = 0; r < n; ++r) {
      const Span own = call_.seen(job.sequence, job.begin + r / group_, tile);
      softmax(r, own, keys.widened(), row_sum(tile_rows_, r));
    }
    weigh_values(cache, tile, keys, n, ahead);
    if (job.partials != nullptr) {
      std::copy_n(tile_rows_, n * row_size(),
                  job.partials + (tile - job.first_tile) * n * row_size());
      return;
    }
    for (std::int64_t r = 0; r < n; ++r) {
      const Span own = call_.seen(job.sequence, job.begin + r / group_, tile);
      if (!own.empty()) merge(row_sum(rows_, r), row_sum(tile_rows_, r), width_);
    }
  }

  void score(const CacheRows<T>& cache, std::int64_t tile, Span keys, std::int64_t n,
             ReadAhead<T>& ahead) {
    const Span span = keys.widened();
    // Whole pieces: their scores beyond the span mean nothing and are never looked at
    for (std::int64_t piece = span.begin / kPieceKeys * kPieceKeys; piece < span.end;
         piece += kPieceKeys) {
      float scales[kPieceKeys];
      const std::int64_t end = std::min(piece + kPieceKeys, span.end);
      for (std::int64_t key = std::max(piece, span.begin); key < end; key += kLanes) {
        KeyGroup<T> group;
        cache.locate(tile * kTile + key, tile * kTile + keys.begin, tile * kTile + keys.end, group);
        ahead.advance();
        transpose_rows<W>(group.keys, d_, num_words_, keys_ + (key - piece), kPieceKeys);
        if (CacheRows<T>::kHasScales) {
          store(scales + (key - piece), load(group.key_scales));
          store(value_scales_ + key, load(group.value_scales));
        }
      }
      for (std::int64_t r = 0; r < n; r += kBlockRows) {
        with_count<kBlockRows>(static_cast<int>(n - r), [&](auto rows) {
          score_block<rows.value>(r, piece, scales);
        });
      }
    }
  }

  // Not inlined, here and below: among other code, GCC keeps the sums in memory.
  template <int R>
  [[gnu::noinline]] void score_block(std::int64_t first, std::int64_t piece, const float* scales) {
    float* scores = scores_ + first * kTile + piece;
    const bool capped = exponents_.capped();
    multiply_block<W, R, kGroupVectors>(
        queries_ + first * num_words_, num_words_, 1, keys_, kPieceKeys, num_words_,
        [&](int r, int v, Floats score) {
          if (CacheRows<T>::kHasScales) score *= load(scales + v * kLanes);
          store(scores + r * kTile + v * kLanes, score);
        });
    if (!capped) return;
    for (int r = 0; r < R; ++r) {
      for (std::int64_t i = 0; i < kPieceKeys; i += kLanes) {
        store(scores + r * kTile + i, exponents_.cap(load(scores + r * kTile + i)));
      }
    }
  }

  // Weights of the keys in `span`, exactly 0 outside `own`.
  void softmax(std::int64_t r, Span own, Span span, RowSum sum) {
    float* scores = scores_ + r * kTile;
    std::uint32_t* weights = weights_ + r * kWeightWords;
    if (own.empty()) own = {span.end, span.end};
    std::fill(scores + span.begin, scores + own.begin, kUnseen);
    std::fill(scores + own.end, scores + span.end, kUnseen);
    Floats highest = broadcast(kUnseen);
    for (std::int64_t i = span.begin; i < span.end; i += kLanes) {
      highest = larger(highest, load(scores + i));
    }
    const Floats largest = exponents_.largest(broadcast(largest_lane(highest)));
    Floats total{};
    for (std::int64_t i = span.begin; i < span.end; i += kLanes * W::kPerWord) {
      Floats parts[W::kPerWord];
      for (int p = 0; p < W::kPerWord; ++p) {
        const std::int64_t key = i + p * kLanes;
        if (key < span.end) {
          parts[p] = W::weight(fused(load(scores + key), exponents_.unit(), -largest));
          total += parts[p];
          if (CacheRows<T>::kHasScales) parts[p] *= load(value_scales_ + key);
        } else {
          parts[p] = Floats{};
        }
      }
      store_words(weights + i / W::kPerWord, W::across(parts));
    }
    *sum.largest = largest[0];
    *sum.total = sum_of_lanes(total);
  }

  void weigh_values(const CacheRows<T>& cache, std::int64_t tile, Span keys, std::int64_t n,
                    ReadAhead<T>& ahead) {
    const std::int64_t num_vectors = width_ / kLanes;
    for (std::int64_t r = 0; r < n; r += kBlockRows) {
      with_count<kBlockRows>(static_cast<int>(n - r), [&](auto rows) {
        std::int64_t v = 0;
        for (; v + kGroupVectors <= num_vectors; v += kGroupVectors) {
          values_block<rows.value, kGroupVectors>(cache, tile, keys, r, v * kLanes,
                                                  r == 0 && v == 0 ? &ahead : nullptr);
        }
        for (; v < num_vectors; ++v) {
          values_block<rows.value, 1>(cache, tile, keys, r, v * kLanes,
                                      r == 0 && v == 0 ? &ahead : nullptr);
        }
      });
    }
  }

  template <int R, int V>
  [[gnu::noinline]] void values_block(const CacheRows<T>& cache, std::int64_t tile, Span keys, std::int64_t first,
                    std::int64_t dim, ReadAhead<T>* ahead) {
    const Span span = keys.widened();
    Floats sums[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] = Floats{};
    }
    for (std::int64_t i = span.begin; i < span.end; i += kLanes) {
      KeyGroup<T> group;
      cache.locate(tile * kTile + i, tile * kTile + keys.begin, tile * kTile + keys.end, group);
      if (ahead != nullptr) ahead->advance();
      const std::uint32_t* weights = weights_ + first * kWeightWords + i / W::kPerWord;
#pragma GCC unroll 2
      for (int k = 0; k < kLanes / W::kPerWord; ++k) {
        Words columns[V];
        W::template columns<V>(group.values + k * W::kPerWord, dim, d_, columns);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const Words weight = weights[r * kWeightWords + k] + Words{};
#pragma GCC unroll 8
          for (int v = 0; v < V; ++v) sums[r][v] = W::multiply_add(sums[r][v], weight, columns[v]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        store(row_sum(tile_rows_, first + r).values + dim + v * kLanes, sums[r][v]);
      }
    }
  }

  void finish(const AttentionJob& job) const {
    E* out = static_cast<E*>(call_.out);
    for (std::int64_t r = 0; r < num_rows(job); ++r) {
      const RowSum row = row_sum(rows_, r);
      const std::int64_t token = job.begin + r / group_, head = job.kv_head * group_ + r % group_;
      E* to = out + (token * call_.attention.num_heads + head) * d_;
      const Floats share = 1.0f / broadcast(*row.total);
      for (std::int64_t i = 0; i < d_; i += kLanes) {
        const Floats values = load(row.values + i) * share;
        if (d_ - i >= kLanes) {
          store(to + i, values);
        } else {
          store_some(to + i, values, d_ - i);
        }
      }
    }
  }

  const AttentionCall& call_;
  const Exponents exponents_;
  const std::int64_t group_;
  const std::int64_t d_;
  const std::int64_t num_words_;
  const std::int64_t width_;
  std::uint32_t* keys_;     // [num_words][kPieceKeys]
  std::uint32_t* queries_;  // [rows][num_words]
  std::uint32_t* weights_;  // [rows][kWeightWords]
  float* scores_;           // [rows][kTile]
  float* rows_;             // [rows][row_size]
  float* tile_rows_;        // [rows][row_size], of the tile alone
  T* zeros_;
  float* value_scales_;  // [kTile]
};

}  // namespace tandem
