// A tile's arithmetic in words (attention_words.h), for many query rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_row_spans.h"
#include "attention_rows.h"
#include "attention_softmax.h"
#include "attention_words.h"
#include "scratch.h"
#include "word_product.h"

namespace tandem {

// W words, T elements of the cache, E of queries.
template <class W, class T, class E>
class ManyWords {
 public:
  using Element = E;
  using Value = T;

  static std::size_t scratch_bytes(const AttentionCall& call, std::int64_t blocks) {
    const std::int64_t width = padded_width(call.cache.head_dim);
    return Scratch::measure<std::uint32_t>(words_of(call) * kTile) +
           Scratch::measure<std::uint32_t>(width * kTile) + 2 * Scratch::measure<float>(kTile) +
           Scratch::measure<std::uint32_t>(blocks * words_of(call) * kBlockRows) +
           Scratch::measure<std::uint32_t>(kTile * kBlockRows) +
           Scratch::measure<float>(kTile * kBlockRows);
  }

  // For at most so many blocks of rows.
  ManyWords(const AttentionCall& call, std::int64_t blocks, Scratch& scratch)
      : exponents_(call.attention),
        d_(call.cache.head_dim),
        num_words_(words_of(call)),
        width_(padded_width(d_)),
        keys_(scratch.take<std::uint32_t>(num_words_ * kTile)),
        values_(scratch.take<std::uint32_t>(width_ * kTile)),
        key_scales_(scratch.take<float>(kTile)),
        value_scales_(scratch.take<float>(kTile)),
        queries_(scratch.take<std::uint32_t>(blocks * num_words_ * kBlockRows)),
        weights_(scratch.take<std::uint32_t>(kTile * kBlockRows)),
        scores_(scratch.take<float>(kTile * kBlockRows)) {}

  // Rows first .. first + kLanes.
  void load_queries(const E* const* rows, std::int64_t first) {
    std::uint32_t* to = queries_ + first / kBlockRows * num_words_ * kBlockRows + first % kBlockRows;
    transpose_rows<W>(rows, d_, num_words_, to, kBlockRows);
  }

  // Packs the keys and values of `span`.
  void pack(const TileReader<T>& reader, Span span) {
    for (std::int64_t i = span.begin; i < span.end; i += kLanes) {
      const T* rows[kLanes];
      reader.keys(i, rows);
      std::uint32_t* piece = keys_ + i / kPackedKeys * num_words_ * kPackedKeys;
      transpose_rows<W>(rows, d_, num_words_, piece + i % kPackedKeys, kPackedKeys);
      reader.values(i, rows);
      for (std::int64_t k = 0; k < kLanes; k += W::kPerWord) {
        pack_values(rows + k, values_ + (i + k) / W::kPerWord * width_);
      }
      if (kHasScales) {
        store(key_scales_ + i, reader.key_scales(i));
        store(value_scales_ + i, reader.value_scales(i));
      }
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
          keys_ + key / kPackedKeys * num_words_ * kPackedKeys + key % kPackedKeys;
      float* scores = scores_ + (key - span.begin) * kBlockRows;
      const bool all_seen = spans.common.begin <= key && key + kSteps <= spans.common.end;
      if (all_seen && !kHasScales && !exponents_.capped()) {
        multiply_block<W, kSteps, V>(keys, 1, kPackedKeys, queries, kBlockRows, num_words_,
                                     [&](int i, int v, Floats score) {
                                       highest[v] = larger(highest[v], score);
                                       store(scores + i * kBlockRows + v * kLanes, score);
                                     });
        continue;
      }
      multiply_block<W, kSteps, V>(
          keys, 1, kPackedKeys, queries, kBlockRows, num_words_, [&](int i, int v, Floats score) {
            if (kHasScales) score *= broadcast(key_scales_[key + i]);
            if (exponents_.capped()) score = exponents_.cap(score);
            score = spans.masked(v, key + i, score);
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
          if (kHasScales) parts[p] *= broadcast(value_scales_[key + i + p]);
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

  // f(dim, v, weighted values) for all of them, V vectors of rows.
  template <int V, class F>
  void weigh_values(Span span, const F& f) const {
    for (std::int64_t dim = 0; dim < width_; dim += kSteps) {
      multiply_block<W, kSteps, V>(values_ + span.begin / W::kPerWord * width_ + dim, 1, width_,
                                   weights_, kBlockRows, (span.end - span.begin) / W::kPerWord,
                                   [&](int i, int v, Floats sum) { f(dim + i, v, sum); });
    }
  }

 private:
  static constexpr bool kHasScales = TileReader<T>::kHasScales;
  static constexpr int kSteps = kVectorRegisters >= 32 ? 8 : 4;  // keys or dimensions at a time

  static std::int64_t words_of(const AttentionCall& call) {
    return (call.cache.head_dim + W::kPerWord - 1) / W::kPerWord;
  }

  void pack_values(const T* const* rows, std::uint32_t* to) const {
    for (std::int64_t dim = 0; dim < width_; dim += 2 * kLanes) {
      with_count<2>(static_cast<int>((width_ - dim) / kLanes), [&](auto vectors) {
        Words columns[vectors.value];
        W::template columns<vectors.value>(rows, dim, d_, columns);
        for (int v = 0; v < vectors.value; ++v) store_words(to + dim + v * kLanes, columns[v]);
      });
    }
  }

  const Exponents exponents_;
  const std::int64_t d_;
  const std::int64_t num_words_;
  const std::int64_t width_;
  std::uint32_t* const keys_;    // [kTile / kPackedKeys][num_words][kPackedKeys]
  std::uint32_t* const values_;  // [kTile / words][width]
  float* const key_scales_;      // [kTile], where the cache has scales
  float* const value_scales_;
  std::uint32_t* const queries_;  // [blocks][num_words][kBlockRows]
  std::uint32_t* const weights_;  // [keys / words][kBlockRows], from the span's first
  float* const scores_;           // [keys][kBlockRows], from the span's first
};

}  // namespace tandem
