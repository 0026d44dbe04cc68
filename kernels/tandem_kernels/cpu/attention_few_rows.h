// Attention of a few query rows (decode) that reads keys and values where they lie.
//
//   per tile:  scores     lanes are keys        keys are transposed, some vectors at a time
//              softmax    row by row
//              values     lanes are dimensions  rows of the cache as they are
//
// While a tile is computed, the next one is fetched, be it of another job.
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

// Walks over the tiles of a range, one tile ahead of what is computed.
class TileWalk {
 public:
  TileWalk(const AttentionCall& call, const TileRange& range)
      : call_(call), range_(range), job_(range.first), tile_(range.first_tile_of(*range.first)) {
    locate();
  }

  const TileRuns& current() const { return places_[now_]; }
  // Nothing to read where the walk ends.
  const TileRuns& next() const { return places_[1 - now_]; }

  // The tile ahead becomes the current one.
  void advance() { now_ = 1 - now_; }

  // Finds the tile after the one that was found last.
  void look_ahead() {
    TileRuns& place = places_[1 - now_];
    place.keys = {};
    if (job_ == range_.end) return;
    if (++tile_ == range_.end_tile_of(*job_)) {
      if (++job_ == range_.end) return;
      tile_ = range_.first_tile_of(*job_);
    }
    place.locate(call_, job_->sequence, job_->kv_head, tile_, job_->read(call_, tile_));
  }

 private:
  void locate() {
    places_[now_].locate(call_, job_->sequence, job_->kv_head, tile_, job_->read(call_, tile_));
  }

  const AttentionCall& call_;
  const TileRange range_;
  const AttentionJob* job_;
  std::int64_t tile_;
  TileRuns places_[2];
  int now_ = 0;
};

// Asks for the next tile's keys or values, some runs at a time, while the current one is computed.
class Prefetch {
 public:
  Prefetch(const TileRuns& next, std::int64_t run_bytes, bool values)
      : next_(next),
        run_bytes_(run_bytes),
        values_(values),
        run_(next.keys.begin / kRunKeys),
        end_((next.keys.end + kRunKeys - 1) / kRunKeys) {}

  void advance(std::int64_t num_keys) {
    const std::int64_t end = std::min(run_ + num_keys / kRunKeys, end_);
    for (; run_ < end; ++run_) next_.prefetch(run_, run_bytes_, values_);
  }
  void finish() { advance(kTile); }

 private:
  const TileRuns& next_;
  const std::int64_t run_bytes_;
  const bool values_;
  std::int64_t run_, end_;
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
    TileWalk walk(call_, range);
    for (const AttentionJob* job = range.first; job != range.end; ++job) {
      load_queries(*job);
      clear(rows_, num_rows(*job));
      for (std::int64_t tile = range.first_tile_of(*job); tile < range.end_tile_of(*job); ++tile) {
        walk.look_ahead();
        add_tile(*job, tile, walk.current(), walk.next());
        walk.advance();
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
  static constexpr bool kHasScales = TileReader<T>::kHasScales;
  static constexpr int kGroupVectors = kVectorRegisters >= 32 ? 4 : 2;  // of keys or values
  static constexpr int kBlockRows = 4;
  static constexpr std::int64_t kPieceKeys = kGroupVectors * kLanes;  // transposed at a time
  static constexpr std::int64_t kRowHeader = kLanes;  // largest and total; values stay aligned
  static constexpr std::int64_t kWeightWords = kTile / W::kPerWord;

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

  void add_tile(const AttentionJob& job, std::int64_t tile, const TileRuns& runs,
                const TileRuns& next) {
    const TileReader<T> reader(call_, runs, zeros_);
    const Span keys = runs.keys.widened();
    score(reader, keys, num_rows(job), Prefetch(next, run_bytes(), false));
    const std::int64_t n = num_rows(job);
    for (std::int64_t r = 0; r < n; ++r) {
      const Span own = call_.seen(job.sequence, job.begin + r / group_, tile);
      softmax(r, own, keys, row_sum(tile_rows_, r));
    }
    weigh_values(reader, keys, n, Prefetch(next, run_bytes(), true));
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

  std::int64_t run_bytes() const {
    return kRunKeys * d_ * static_cast<std::int64_t>(sizeof(T));
  }

  void score(const TileReader<T>& reader, Span span, std::int64_t n, Prefetch ahead) {
    // Whole pieces: their scores beyond the span mean nothing and are never looked at
    for (std::int64_t piece = span.begin / kPieceKeys * kPieceKeys; piece < span.end;
         piece += kPieceKeys) {
      float scales[kPieceKeys];
      const std::int64_t end = std::min(piece + kPieceKeys, span.end);
      for (std::int64_t key = std::max(piece, span.begin); key < end; key += kLanes) {
        const T* rows[kLanes];
        reader.keys(key, rows);
        ahead.advance(kLanes);
        transpose_rows<W>(rows, d_, num_words_, keys_ + (key - piece), kPieceKeys);
        if (kHasScales) {
          store(scales + (key - piece), reader.key_scales(key));
          store(value_scales_ + key, reader.value_scales(key));
        }
      }
      for (std::int64_t r = 0; r < n; r += kBlockRows) {
        with_count<kBlockRows>(static_cast<int>(n - r), [&](auto rows) {
          score_block<rows.value>(r, piece, scales);
        });
      }
    }
    ahead.finish();
  }

  // Not inlined, here and below: among other code, GCC keeps the sums in memory.
  template <int R>
  [[gnu::noinline]] void score_block(std::int64_t first, std::int64_t piece, const float* scales) {
    float* scores = scores_ + first * kTile + piece;
    const bool capped = exponents_.capped();
    multiply_block<W, R, kGroupVectors>(
        queries_ + first * num_words_, num_words_, 1, keys_, kPieceKeys, num_words_,
        [&](int r, int v, Floats score) {
          if (kHasScales) score *= load(scales + v * kLanes);
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
          if (kHasScales) parts[p] *= load(value_scales_ + key);
        } else {
          parts[p] = Floats{};
        }
      }
      store_words(weights + i / W::kPerWord, W::across(parts));
    }
    *sum.largest = largest[0];
    *sum.total = sum_of_lanes(total);
  }

  void weigh_values(const TileReader<T>& reader, Span span, std::int64_t n, Prefetch ahead) {
    const std::int64_t num_vectors = width_ / kLanes;
    for (std::int64_t r = 0; r < n; r += kBlockRows) {
      with_count<kBlockRows>(static_cast<int>(n - r), [&](auto rows) {
        std::int64_t v = 0;
        for (; v + kGroupVectors <= num_vectors; v += kGroupVectors) {
          values_block<rows.value, kGroupVectors>(reader, span, r, v * kLanes, ahead);
        }
        for (; v < num_vectors; ++v) {
          values_block<rows.value, 1>(reader, span, r, v * kLanes, ahead);
        }
      });
    }
    ahead.finish();
  }

  template <int R, int V>
  [[gnu::noinline]] void values_block(const TileReader<T>& reader, Span span, std::int64_t first,
                                      std::int64_t dim, Prefetch& ahead) {
    Floats sums[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] = Floats{};
    }
    for (std::int64_t i = span.begin; i < span.end; i += kLanes) {
      const T* rows[kLanes];
      reader.values(i, rows);
      ahead.advance(kLanes);
      const std::uint32_t* weights = weights_ + first * kWeightWords + i / W::kPerWord;
#pragma GCC unroll 2
      for (int k = 0; k < kLanes / W::kPerWord; ++k) {
        Words columns[V];
        W::template columns<V>(rows + k * W::kPerWord, dim, d_, columns);
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
