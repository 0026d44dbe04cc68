// Computes one job of attention tile by tile, for one element type and one kind of words.
//
//   per tile:  pack keys and values > per few rows: scores > softmax > weighted values > merge
//
// Every row does the same sums in the same order whatever rows are beside it: scores run over the
// words of a head, weighted values over the keys of a tile, merging over the tiles. Rows and keys
// that don't see each other add exact zeros, or are left out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "activation_rows.h"
#include "attention_plan.h"
#include "attention_words.h"
#include "scratch.h"
#include "simd_math.h"
#include "word_product.h"

namespace tandem {

template <class T>
struct AttentionTensors {
  const T* q;
  std::int64_t q_stride;  // elements from one token to the next; heads are contiguous
  const T* k_cache;
  const T* v_cache;
  T* out;  // contiguous
  float scale;
  float softcap;  // 0: none
};

// A softmax over some keys: their largest score (in powers of 2), the sum of their weights relative
// to it, and the sum of their values so weighted.
struct RowSum {
  float* largest;
  float* total;
  float* values;
};

// Adds the keys of `tile` to those of `row`. An empty row has largest = -inf and zeros elsewhere.
inline void merge(RowSum row, RowSum tile, std::int64_t width) {
  const float largest = std::max(*row.largest, *tile.largest);
  Floats exponents{};
  exponents[0] = *row.largest - largest;
  exponents[1] = *tile.largest - largest;
  const Floats factors = exp2_of(exponents);
  const Floats keep = broadcast(factors[0]), add = broadcast(factors[1]);
  *row.largest = largest;
  *row.total = fused(broadcast(*tile.total), add, broadcast(*row.total) * keep)[0];
  for (std::int64_t i = 0; i < width; i += kLanes) {
    store(row.values + i, fused(load(tile.values + i), add, load(row.values + i) * keep));
  }
}

template <class W, class T>
class AttentionRows {
 public:
  AttentionRows(const AttentionShape& shape, const AttentionTensors<T>& tensors, Scratch& scratch)
      : shape_(shape),
        tensors_(tensors),
        group_(shape.group()),
        num_words_((shape.head_dim + W::kPerWord - 1) / W::kPerWord),
        width_(padded_width(shape.head_dim)) {
    const std::int64_t rows = job_tokens(group_) * group_;
    scratch.reset(Scratch::measure<std::uint32_t>(num_words_ * kTile) +
                  Scratch::measure<std::uint32_t>(width_ * kTile) +
                  Scratch::measure<std::uint32_t>(rows * num_words_) +
                  Scratch::measure<std::uint32_t>(kBlockRows * kTile) +
                  Scratch::measure<float>(kBlockRows * kTile) +
                  Scratch::measure<float>(kBlockRows * width_) +
                  Scratch::measure<float>(rows * row_size()) + Scratch::measure<T>(width_) +
                  2 * Scratch::measure<TileRows>(1));
    keys_ = scratch.take<std::uint32_t>(num_words_ * kTile);
    values_ = scratch.take<std::uint32_t>(width_ * kTile);
    queries_ = scratch.take<std::uint32_t>(rows * num_words_);
    weights_ = scratch.take<std::uint32_t>(kBlockRows * kTile);
    scores_ = scratch.take<float>(kBlockRows * kTile);
    tile_values_ = scratch.take<float>(kBlockRows * width_);
    rows_ = scratch.take<float>(rows * row_size());
    zeros_ = scratch.take<T>(width_);
    current_ = scratch.take<TileRows>(1);
    ahead_ = scratch.take<TileRows>(1);
    std::fill_n(zeros_, shape.head_dim, T{});
  }

  // Floats that `partials` of a job need for each of its tiles.
  static std::int64_t partial_size(const AttentionShape& shape) {
    return shape.group() * (padded_width(shape.head_dim) + kRowHeader);
  }

  // All of the job, or some of its tiles into its partials. `next` is what will be computed next,
  // whose keys are fetched meanwhile; null if nothing is.
  void compute(const JobShare& share, const JobShare* next) {
    const AttentionJob& job = *share.job;
    pack_queries(job);
    if (job.partials == nullptr) clear(rows_, num_rows(job));
    for (std::int64_t tile = share.begin; tile < share.end; ++tile) {
      if (!is_located_) locate(job, tile, *current_);
      is_located_ = tile + 1 < share.end || next != nullptr;
      if (tile + 1 < share.end) {
        locate(job, tile + 1, *ahead_);
      } else if (next != nullptr) {
        locate(*next->job, next->begin, *ahead_);
      } else {
        ahead_->span = {};
      }
      pack(*current_, *ahead_);
      add_tile(job, tile, sums_of(job, tile));
      std::swap(current_, ahead_);
    }
    if (job.partials == nullptr) finish(job, rows_);
  }

  // Merges the partials of a job that several threads computed.
  void merge_partials(const AttentionJob& job) {
    const std::int64_t n = num_rows(job);
    clear(rows_, n);
    for (std::int64_t tile = 0; tile < job.end_tile - job.first_tile; ++tile) {
      for (std::int64_t r = 0; r < n; ++r) {
        merge(row_sum(rows_, r), row_sum(job.partials, tile * n + r), width_);
      }
    }
    finish(job, rows_);
  }

 private:
  static constexpr std::int64_t kKeysTogether = kLanes * W::kPerWord;  // a vector of weights
  static constexpr std::int64_t kCacheLineBytes = 64;
  static constexpr std::int64_t kRowHeader = kLanes;  // largest and total, and values stay aligned

  // Keys within a tile.
  struct Span {
    std::int64_t begin, end;
  };

  // Where in the cache the keys and values of a tile lie.
  struct TileRows {
    Span span;
    const T* keys[kTile];
    const T* values[kTile];
  };

  static std::int64_t padded_width(std::int64_t d) { return (d + kLanes - 1) / kLanes * kLanes; }
  std::int64_t row_size() const { return width_ + kRowHeader; }
  std::int64_t num_rows(const AttentionJob& job) const { return (job.end - job.begin) * group_; }

  RowSum row_sum(float* rows, std::int64_t r) const {
    float* row = rows + r * row_size();
    return {row, row + 1, row + kRowHeader};
  }

  void clear(float* rows, std::int64_t n) const {
    std::fill_n(rows, n * row_size(), 0.0f);
    for (std::int64_t r = 0; r < n; ++r) {
      *row_sum(rows, r).largest = -std::numeric_limits<float>::infinity();
    }
  }

  // Row r = token x group + head, as in the tensor.
  void pack_queries(const AttentionJob& job) {
    for (std::int64_t t = job.begin; t < job.end; ++t) {
      for (std::int64_t g = 0; g < group_; ++g) {
        const std::int64_t head = job.kv_head * group_ + g;
        const T* from = tensors_.q + t * tensors_.q_stride + head * shape_.head_dim;
        std::uint32_t* to = queries_ + ((t - job.begin) * group_ + g) * num_words_;
        for (std::int64_t w = 0; w < num_words_; ++w) to[w] = W::word(from, w, shape_.head_dim);
      }
    }
  }

  // Where the sums of a tile go: among all tiles' of the job, or to a place of its own.
  float* sums_of(const AttentionJob& job, std::int64_t tile) const {
    if (job.partials == nullptr) return rows_;
    float* own = job.partials + (tile - job.first_tile) * num_rows(job) * row_size();
    clear(own, num_rows(job));
    return own;
  }

  void add_tile(const AttentionJob& job, std::int64_t tile, float* sums) {
    const std::int64_t n = num_rows(job);
    for (std::int64_t r = 0; r < n; r += kBlockRows) {
      add_rows(job, tile, r, static_cast<int>(std::min<std::int64_t>(kBlockRows, n - r)), sums);
    }
  }

  // The keys of the tile that the query row `row` sees; may be none.
  Span seen(const AttentionJob& job, std::int64_t tile, std::int64_t row) const {
    const std::int64_t position = shape_.position(job.sequence, row), start = tile * kTile;
    return {std::max<std::int64_t>(shape_.first_key(position) - start, 0),
            std::min<std::int64_t>(position + 1 - start, kTile)};
  }

  static Span whole_vectors(std::int64_t begin, std::int64_t end) {
    return {begin / kKeysTogether * kKeysTogether,
            (end + kKeysTogether - 1) / kKeysTogether * kKeysTogether};
  }

  // Only what some query of the job sees is read from the cache.
  void locate(const AttentionJob& job, std::int64_t tile, TileRows& rows) const {
    const std::int64_t begin = seen(job, tile, job.begin).begin;
    const std::int64_t end = seen(job, tile, job.end - 1).end;
    rows.span = whole_vectors(begin, end);
    std::fill(rows.keys + rows.span.begin, rows.keys + rows.span.end, zeros_);
    std::fill(rows.values + rows.span.begin, rows.values + rows.span.end, zeros_);
    const std::int32_t* table = shape_.block_tables + job.sequence * shape_.table_width;
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t position = tile * kTile + i, block = position / shape_.block_size;
      const std::int64_t block_end = std::min(end, (block + 1) * shape_.block_size - tile * kTile);
      std::int64_t row = table[block] * shape_.block_stride + job.kv_head * shape_.head_stride +
                         position % shape_.block_size * shape_.head_dim;
      for (; i < block_end; ++i, row += shape_.head_dim) {
        rows.keys[i] = tensors_.k_cache + row;
        rows.values[i] = tensors_.v_cache + row;
      }
    }
  }

  // The cache is scattered over memory: packing one tile, we ask for as much of the tile ahead.
  void pack(const TileRows& rows, const TileRows& ahead) {
    const std::int64_t d = shape_.head_dim;
    std::int64_t later = ahead.span.begin;
    for (std::int64_t i = rows.span.begin; i < rows.span.end; i += kLanes) {
      const std::int64_t end = std::min(later + kLanes, ahead.span.end);
      for (; later < end; ++later) {
        prefetch(ahead.keys[later]);
        prefetch(ahead.values[later]);
      }
      pack_keys<W>(rows.keys + i, d, num_words_, keys_ + i);
      for (std::int64_t j = i; j < i + kLanes; j += W::kPerWord) {
        W::pack_values(rows.values + j, d, width_, values_ + j / W::kPerWord * width_);
      }
    }
  }

  // Into the second level: a whole tile would push what is being computed out of the first.
  void prefetch(const T* row) const {
    for (std::int64_t i = 0; i < shape_.head_dim; i += kCacheLineBytes / sizeof(T)) {
      __builtin_prefetch(row + i, 0, 2);
    }
  }

  // Rows first .. first + n of the job against the packed tile.
  void add_rows(const AttentionJob& job, std::int64_t tile, std::int64_t first, int n,
                float* sums) {
    const Span lowest = seen(job, tile, job.begin + first / group_);
    const Span highest = seen(job, tile, job.begin + (first + n - 1) / group_);
    if (lowest.begin >= highest.end) return;
    const Span span = whole_vectors(lowest.begin, highest.end);
    multiply<W>(n, queries_ + first * num_words_, num_words_, keys_ + span.begin, kTile, num_words_,
                scores_ + span.begin, kTile, (span.end - span.begin) / kLanes);
    float largest[kBlockRows], total[kBlockRows];
    for (int r = 0; r < n; ++r) {
      const Span own = seen(job, tile, job.begin + (first + r) / group_);
      softmax(scores_ + r * kTile, weights_ + r * kWeightWords, own, span, largest[r], total[r]);
    }
    const std::int64_t offset = span.begin / W::kPerWord;
    multiply<W>(n, weights_ + offset, kWeightWords, values_ + offset * width_, width_,
                (span.end - span.begin) / W::kPerWord, tile_values_, width_, width_ / kLanes);
    for (int r = 0; r < n; ++r) {
      if (total[r] == 0.0f) continue;  // it sees nothing of this tile
      merge(row_sum(sums, first + r), {&largest[r], &total[r], tile_values_ + r * width_}, width_);
    }
  }

  // Weights of the keys in `span`, exactly 0 outside `own`.
  void softmax(float* scores, std::uint32_t* weights, Span own, Span span, float& largest,
               float& total) const {
    const bool is_capped = tensors_.softcap != 0.0f;
    if (is_capped) {
      softcap_row(scores + span.begin, span.end - span.begin, tensors_.softcap, tensors_.scale);
    }
    const float nothing = -std::numeric_limits<float>::infinity();
    const bool sees_some = own.begin < own.end;
    std::fill(scores + span.begin, scores + (sees_some ? own.begin : span.end), nothing);
    if (sees_some) std::fill(scores + own.end, scores + span.end, nothing);
    Floats highest = broadcast(nothing);
    for (std::int64_t i = span.begin; i < span.end; i += kLanes) {
      highest = larger(highest, load(scores + i));
    }
    const Floats scale = broadcast((is_capped ? 1.0f : tensors_.scale) * kLog2E);
    // Where nothing is seen, 0 stands in for -inf - -inf
    largest = sees_some ? largest_lane(highest) * scale[0] : 0.0f;
    const Floats base = broadcast(-largest);
    Floats sum{};
    for (std::int64_t i = span.begin; i < span.end; i += kKeysTogether) {
      Floats exponentials[W::kPerWord];
      for (int part = 0; part < W::kPerWord; ++part) {
        exponentials[part] = exp2_of(fused(load(scores + i + part * kLanes), scale, base));
      }
      sum = W::put_weights(weights + i / W::kPerWord, exponentials, sum);
    }
    total = sum_of_lanes(sum);
  }

  void finish(const AttentionJob& job, float* rows) const {
    for (std::int64_t r = 0; r < num_rows(job); ++r) {
      const RowSum row = row_sum(rows, r);
      const std::int64_t head = job.kv_head * group_ + r % group_;
      const std::int64_t token = job.begin + r / group_;
      T* out = tensors_.out + (token * shape_.num_heads + head) * shape_.head_dim;
      for (std::int64_t i = 0; i < shape_.head_dim; i += kLanes) {
        const Floats values = load(row.values + i) / broadcast(*row.total);
        if (shape_.head_dim - i >= kLanes) {
          store(out + i, values);
        } else {
          store_some(out + i, values, shape_.head_dim - i);
        }
      }
    }
  }

  static constexpr std::int64_t kWeightWords = kTile / W::kPerWord;

  const AttentionShape& shape_;
  const AttentionTensors<T>& tensors_;
  const std::int64_t group_;
  const std::int64_t num_words_;
  const std::int64_t width_;  // of a head, in whole vectors
  std::uint32_t* keys_;       // [num_words][kTile]
  std::uint32_t* values_;     // [kWeightWords][width]
  std::uint32_t* queries_;    // [rows][num_words]
  std::uint32_t* weights_;    // [kBlockRows][kWeightWords]
  float* scores_;             // [kBlockRows][kTile]
  float* tile_values_;        // [kBlockRows][width]
  float* rows_;               // [rows][row_size]
  T* zeros_;                  // a key that stands for those outside the tile's span
  TileRows* current_;         // the tile that is packed next, if it is located
  TileRows* ahead_;
  bool is_located_ = false;
};

}  // namespace tandem
