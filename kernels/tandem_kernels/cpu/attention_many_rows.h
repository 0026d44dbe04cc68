// Attention of many query rows (prefill): the lanes of every vector are rows.
//
//   keys, values    a tile, packed once for all rows of a job
//   scores          [keys][rows of a block]        so maxima and sums need no work across lanes
//   values          [dimensions][rows of a block]
//
// A row's sums run in the same order as in few_rows.h: scores over the words of a head, weighted
// values over the keys of a tile, totals in kLanes chains of every kLanes-th key.
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

// A tile as it is multiplied.
struct PackedTile {
  std::uint32_t* keys;    // [kTile / kPieceKeys][num_words][kPieceKeys]
  std::uint32_t* values;  // [kTile / words][width]
  float* key_scales;      // [kTile], where the cache has scales
  float* value_scales;
};

constexpr std::int64_t kPackedKeys = 4 * kLanes;  // side by side in a piece

template <class W, class E>
class ManyRows {
 public:
  static constexpr int kVectors = 3;  // of rows in a block
  static constexpr int kSteps = kVectorRegisters >= 32 ? 8 : 4;  // keys or dimensions at a time
  static constexpr std::int64_t kBlockRows = kVectors * kLanes;

  ManyRows(const AttentionCall& call, bool has_scales, Scratch& scratch)
      : call_(call),
        exponents_(call.attention),
        has_scales_(has_scales),
        group_(call.group()),
        d_(call.cache.head_dim),
        num_words_((d_ + W::kPerWord - 1) / W::kPerWord),
        width_(padded_width(d_)) {
    const std::int64_t rows = std::max(job_tokens(group_) * group_, group_);
    const std::int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
    scratch.reset(Scratch::measure<std::uint32_t>(num_words_ * kTile) +
                  Scratch::measure<std::uint32_t>(width_ * kTile) +
                  2 * Scratch::measure<float>(kTile) +
                  Scratch::measure<std::uint32_t>(blocks * num_words_ * kBlockRows) +
                  Scratch::measure<std::uint32_t>(kTile * kBlockRows) +
                  Scratch::measure<float>(kTile * kBlockRows) +
                  Scratch::measure<float>(blocks * block_size()) +
                  Scratch::measure<float>(kZerosBytes));
    tile_.keys = scratch.take<std::uint32_t>(num_words_ * kTile);
    tile_.values = scratch.take<std::uint32_t>(width_ * kTile);
    tile_.key_scales = scratch.take<float>(kTile);
    tile_.value_scales = scratch.take<float>(kTile);
    queries_ = scratch.take<std::uint32_t>(blocks * num_words_ * kBlockRows);
    weights_ = scratch.take<std::uint32_t>(kTile * kBlockRows);
    scores_ = scratch.take<float>(kTile * kBlockRows);
    blocks_ = scratch.take<float>(blocks * block_size());
    zeros_ = scratch.take<float>(kZerosBytes);
    std::fill_n(zeros_, width_, 0.0f);
  }

  template <class T>
  void compute(const AttentionJob& job) {
    load_queries(job);
    for (std::int64_t b = 0; b < num_blocks(job); ++b) clear(block(b));
    for (std::int64_t tile = job.first_tile; tile < job.end_tile; ++tile) {
      pack<T>(job, tile);
      for (std::int64_t b = 0; b < num_blocks(job); ++b) {
        with_count<kVectors>(num_vectors(job, b),
                             [&](auto vectors) { add_tile<vectors.value>(job, b, tile); });
      }
    }
    finish(job);
  }

 private:
  static constexpr std::int64_t kZerosBytes = kMaxHeadDim + kLanes;

  // The sums of a block of rows.
  struct Block {
    float* largest;  // [kBlockRows]
    float* total;    // [kBlockRows]
    float* values;   // [width][kBlockRows]
  };

  std::int64_t block_size() const { return (width_ + 2) * kBlockRows; }
  Block block(std::int64_t b) const {
    float* begin = blocks_ + b * block_size();
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
    std::fill_n(sums.largest, block_size(), 0.0f);
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
      std::uint32_t* to = queries_ + first / kBlockRows * num_words_ * kBlockRows + first % kBlockRows;
      transpose_rows<W>(rows, d_, num_words_, to, kBlockRows);
    }
  }

  // What some query of the job sees; zeros fill up the last vectors.
  template <class T>
  void pack(const AttentionJob& job, std::int64_t tile) {
    TileRuns runs;
    runs.locate(call_, job.sequence, job.kv_head, tile, job.read(call_, tile));
    const TileReader<T> reader(call_, runs, reinterpret_cast<const T*>(zeros_));
    const Span span = runs.keys.widened();
    for (std::int64_t i = span.begin; i < span.end; i += kLanes) {
      const T* rows[kLanes];
      reader.keys(i, rows);
      std::uint32_t* piece = tile_.keys + i / kPackedKeys * num_words_ * kPackedKeys;
      transpose_rows<W>(rows, d_, num_words_, piece + i % kPackedKeys, kPackedKeys);
      reader.values(i, rows);
      for (std::int64_t k = 0; k < kLanes; k += W::kPerWord) {
        pack_values(rows + k, tile_.values + (i + k) / W::kPerWord * width_);
      }
      if (TileReader<T>::kHasScales) {
        store(tile_.key_scales + i, reader.key_scales(i));
        store(tile_.value_scales + i, reader.value_scales(i));
      }
    }
  }

  template <class T>
  void pack_values(const T* const* rows, std::uint32_t* to) const {
    for (std::int64_t dim = 0; dim < width_; dim += 2 * kLanes) {
      with_count<2>(static_cast<int>((width_ - dim) / kLanes), [&](auto vectors) {
        Words columns[vectors.value];
        W::template columns<vectors.value>(rows, dim, d_, columns);
        for (int v = 0; v < vectors.value; ++v) store_words(to + dim + v * kLanes, columns[v]);
      });
    }
  }

  // The keys that each row of some vectors sees.
  template <int V>
  struct RowSpans {
    Ints begin[V], end[V];
    Span all;     // some row sees them
    Span common;  // every row does
  };

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
    score<V>(b, spans, span, largest);
    const Block sums = block(b);
    for (int v = 0; v < V; ++v) {
      const Floats total = weigh(v, span, largest[v]);
      const MergeFactors factors(load(sums.largest + v * kLanes), largest[v]);
      keep[v] = factors.keep;
      add[v] = factors.add;
      store(sums.largest + v * kLanes, factors.largest);
      store(sums.total + v * kLanes,
            merged(load(sums.total + v * kLanes), total, factors.keep, factors.add));
    }
    for (std::int64_t dim = 0; dim < width_; dim += kSteps) {
      multiply_block<W, kSteps, V>(
          tile_.values + span.begin / W::kPerWord * width_ + dim, 1, width_, weights_, kBlockRows,
          (span.end - span.begin) / W::kPerWord, [&](int i, int v, Floats sum) {
            float* row = sums.values + (dim + i) * kBlockRows + v * kLanes;
            store(row, merged(load(row), sum, keep[v], add[v]));
          });
    }
  }

  // Scores of `span`, kUnseen where a row doesn't see a key; their largest, as exponents.
  template <int V>
  void score(std::int64_t b, const RowSpans<V>& spans, Span span, Floats (&largest)[V]) {
    const std::uint32_t* queries = queries_ + b * num_words_ * kBlockRows;
    Floats highest[V];
    for (int v = 0; v < V; ++v) highest[v] = broadcast(kUnseen);
    for (std::int64_t key = span.begin; key < span.end; key += kSteps) {
      const std::uint32_t* keys =
          tile_.keys + key / kPackedKeys * num_words_ * kPackedKeys + key % kPackedKeys;
      float* scores = scores_ + (key - span.begin) * kBlockRows;
      const bool all_seen = spans.common.begin <= key && key + kSteps <= spans.common.end;
      if (all_seen && !has_scales_ && !exponents_.capped()) {
        multiply_block<W, kSteps, V>(keys, 1, kPackedKeys, queries, kBlockRows, num_words_,
                                     [&](int i, int v, Floats score) {
                                       highest[v] = larger(highest[v], score);
                                       store(scores + i * kBlockRows + v * kLanes, score);
                                     });
        continue;
      }
      multiply_block<W, kSteps, V>(
          keys, 1, kPackedKeys, queries, kBlockRows, num_words_, [&](int i, int v, Floats score) {
            if (has_scales_) score *= broadcast(tile_.key_scales[key + i]);
            if (exponents_.capped()) score = exponents_.cap(score);
            const Ints at = Ints{} + static_cast<std::int32_t>(key + i);
            score = (spans.begin[v] <= at) & (at < spans.end[v]) ? score : broadcast(kUnseen);
            highest[v] = larger(highest[v], score);
            store(scores + i * kBlockRows + v * kLanes, score);
          });
    }
    for (int v = 0; v < V; ++v) largest[v] = exponents_.largest(highest[v]);
  }

  // Turns the scores of one vector of rows into weights; returns their sum.
  Floats weigh(int v, Span span, Floats largest) {
    const Floats unit = exponents_.unit(), base = -largest;
    const float* scores = scores_ + v * kLanes;
    std::uint32_t* weights = weights_ + v * kLanes;
    Floats totals[kLanes] = {};
    for (std::int64_t key = span.begin; key < span.end; key += kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; i += W::kPerWord) {
        Floats parts[W::kPerWord];
#pragma GCC unroll 2
        for (int p = 0; p < W::kPerWord; ++p) {
          parts[p] = W::weight(fused(load(scores + (i + p) * kBlockRows), unit, base));
          totals[i + p] += parts[p];
          if (has_scales_) parts[p] *= broadcast(tile_.value_scales[key + i + p]);
        }
        store_words(weights + i / W::kPerWord * kBlockRows, W::along(parts));
      }
      scores += kLanes * kBlockRows;
      weights += kLanes / W::kPerWord * kBlockRows;
    }
    for (int apart = kLanes / 2; apart > 0; apart /= 2) {
      for (int i = 0; i < apart; ++i) totals[i] += totals[i + apart];
    }
    return totals[0];
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
  const Exponents exponents_;
  const bool has_scales_;
  const std::int64_t group_;
  const std::int64_t d_;
  const std::int64_t num_words_;
  const std::int64_t width_;
  PackedTile tile_;
  std::uint32_t* queries_;  // [blocks][num_words][kBlockRows]
  std::uint32_t* weights_;  // [keys / words][kBlockRows], from the span's first
  float* scores_;           // [keys][kBlockRows], from the span's first
  float* blocks_;           // [blocks][block_size]
  float* zeros_;            // a row
};

}  // namespace tandem
