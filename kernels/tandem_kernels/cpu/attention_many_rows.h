// Attention of many query rows (prefill): the lanes of every vector are rows.
//
//   keys, values    a tile, packed once for all rows of a job
//   scores          [keys][rows of a block]        so maxima and sums need no work across lanes
//   values          [dimensions][rows of a block]
//
// A row's sums run in the same order as in few_rows.h: scores over the words of a head, weighted
// values over the keys of a tile, totals in kLanes chains of every kLanes-th key. What a tile is
// computed with is another's: attention_many_words.h, attention_many_bytes.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_plan.h"
#include "attention_row_spans.h"
#include "attention_rows.h"
#include "attention_softmax.h"
#include "attention_words.h"
#include "scratch.h"
#include "word_product.h"

namespace tandem {

template <class Tile>
class ManyRows {
 public:
  using T = typename Tile::Value;
  using E = typename Tile::Element;

  ManyRows(const AttentionCall& call, Scratch& scratch)
      : call_(call),
        group_(call.group()),
        d_(call.cache.head_dim),
        width_(padded_width(d_)),
        tile_(with_room(call, scratch), max_blocks(call), scratch),
        blocks_(scratch.take<float>(max_blocks(call) * block_size(call))),
        zeros_(scratch.take<T>(width_)) {
    std::fill_n(zeros_, width_, T{});
  }

  void compute(const AttentionJob& job) {
    load_queries(job);
    for (std::int64_t b = 0; b < num_blocks(job); ++b) clear(block(b));
    for (std::int64_t tile = job.first_tile; tile < job.end_tile; ++tile) {
      pack(job, tile);
      for (std::int64_t b = 0; b < num_blocks(job); ++b) {
        with_count<kBlockVectors>(num_vectors(job, b),
                                  [&](auto vectors) { add_tile<vectors.value>(job, b, tile); });
      }
    }
    finish(job);
  }

 private:
  // The sums of a block of rows.
  struct Block {
    float* largest;  // [kBlockRows]
    float* total;    // [kBlockRows]
    float* values;   // [width][kBlockRows]
  };

  static std::int64_t block_size(const AttentionCall& call) {
    return (padded_width(call.cache.head_dim) + 2) * kBlockRows;
  }
  static std::int64_t max_blocks(const AttentionCall& call) {
    const std::int64_t rows = std::max(job_tokens(call.group()) * call.group(), call.group());
    return (rows + kBlockRows - 1) / kBlockRows;
  }

  static const AttentionCall& with_room(const AttentionCall& call, Scratch& scratch) {
    const std::int64_t blocks = max_blocks(call);
    scratch.reset(Tile::scratch_bytes(call, blocks) +
                  Scratch::measure<float>(blocks * block_size(call)) +
                  Scratch::measure<T>(padded_width(call.cache.head_dim)));
    return call;
  }

  Block block(std::int64_t b) const {
    float* begin = blocks_ + b * block_size(call_);
    return {begin, begin + kBlockRows, begin + 2 * kBlockRows};
  }
  std::int64_t num_rows(const AttentionJob& job) const { return (job.end - job.begin) * group_; }
  std::int64_t num_blocks(const AttentionJob& job) const {
    return (num_rows(job) + kBlockRows - 1) / kBlockRows;
  }
  int num_vectors(const AttentionJob& job, std::int64_t b) const {
    const std::int64_t rows = std::min(kBlockRows, num_rows(job) - b * kBlockRows);
    return static_cast<int>((rows + kLanes - 1) / kLanes);
  }

  void clear(const Block& sums) const {
    std::fill_n(sums.largest, block_size(call_), 0.0f);
    std::fill_n(sums.largest, kBlockRows, kUnseen);
  }

  // Row r = token x group + head, as in the tensor; the last row fills up its vector.
  void load_queries(const AttentionJob& job) {
    const E* q = static_cast<const E*>(call_.q);
    const std::int64_t last = num_rows(job) - 1;
    for (std::int64_t first = 0; first <= last; first += kLanes) {
      const E* rows[kLanes];
      for (std::int64_t i = 0; i < kLanes; ++i) {
        const std::int64_t r = std::min(first + i, last);
        const std::int64_t token = job.begin + r / group_, head = job.kv_head * group_ + r % group_;
        rows[i] = q + token * call_.q_stride + head * d_;
      }
      tile_.load_queries(rows, first);
    }
  }

  // What some query of the job sees; zeros fill up the last vectors.
  void pack(const AttentionJob& job, std::int64_t tile) {
    TileRuns runs;
    runs.locate(call_, job.sequence, job.kv_head, tile, job.read(call_, tile));
    tile_.pack(TileReader<T>(call_, runs, zeros_), runs.keys.widened());
  }

  template <int V>
  RowSpans<V> row_spans(const AttentionJob& job, std::int64_t b, std::int64_t tile) const {
    RowSpans<V> spans;
    const std::int64_t last = num_rows(job) - 1;
    const auto seen = [&](std::int64_t r) {
      return call_.seen(job.sequence, job.begin + std::min(r, last) / group_, tile);
    };
    const std::int64_t first = b * kBlockRows;
    const Span lowest = seen(first), highest = seen(first + V * kLanes - 1);
    spans.all = {lowest.begin, highest.end};
    spans.common = {highest.begin, lowest.end};
    for (int v = 0; v < V; ++v) {
      for (int i = 0; i < kLanes; ++i) {
        const Span own = seen(first + v * kLanes + i);
        spans.begin[v][i] = static_cast<std::int32_t>(std::min<std::int64_t>(own.begin, kTile));
        spans.end[v][i] = static_cast<std::int32_t>(std::max<std::int64_t>(own.end, 0));
      }
    }
    return spans;
  }

  template <int V>
  void add_tile(const AttentionJob& job, std::int64_t b, std::int64_t tile) {
    const RowSpans<V> spans = row_spans<V>(job, b, tile);
    if (spans.all.empty()) return;
    const Span span = spans.all.widened();
    Floats largest[V], keep[V], add[V];
    tile_.template score<V>(b, spans, span, largest);
    const Block sums = block(b);
    for (int v = 0; v < V; ++v) {
      const Floats total = tile_.weigh(v, span, largest[v]);
      const MergeFactors factors(load(sums.largest + v * kLanes), largest[v]);
      keep[v] = factors.keep;
      add[v] = factors.add;
      store(sums.largest + v * kLanes, factors.largest);
      store(sums.total + v * kLanes,
            merged(load(sums.total + v * kLanes), total, factors.keep, factors.add));
    }
    tile_.template weigh_values<V>(span, [&](std::int64_t dim, int v, Floats sum) {
      float* row = sums.values + dim * kBlockRows + v * kLanes;
      store(row, merged(load(row), sum, keep[v], add[v]));
    });
  }

  void finish(const AttentionJob& job) const {
    E* out = static_cast<E*>(call_.out);
    const std::int64_t n = num_rows(job);
    for (std::int64_t first = 0; first < n; first += kLanes) {
      const Block sums = block(first / kBlockRows);
      const Floats share = 1.0f / load(sums.total + first % kBlockRows);
      for (std::int64_t dim = 0; dim < d_; dim += kLanes) {
        Words values[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          const float* row = sums.values + (dim + i) * kBlockRows + first % kBlockRows;
          values[i] = bit_cast<Words>(load(row) * share);
        }
        transpose(values);
        for (std::int64_t i = 0; i < std::min<std::int64_t>(kLanes, n - first); ++i) {
          const std::int64_t token = job.begin + (first + i) / group_;
          const std::int64_t head = job.kv_head * group_ + (first + i) % group_;
          E* to = out + (token * call_.attention.num_heads + head) * d_ + dim;
          if (d_ - dim >= kLanes) {
            store(to, bit_cast<Floats>(values[i]));
          } else {
            store_some(to, bit_cast<Floats>(values[i]), d_ - dim);
          }
        }
      }
    }
  }

  const AttentionCall& call_;
  const std::int64_t group_;
  const std::int64_t d_;
  const std::int64_t width_;
  Tile tile_;
  float* const blocks_;  // [blocks][block_size]
  T* const zeros_;       // a row
};

}  // namespace tandem
