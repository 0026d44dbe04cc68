// A tile's arithmetic in whole numbers (attention_bytes.h), for many query rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_bytes.h"
#include "attention_row_spans.h"
#include "attention_rows.h"
#include "attention_softmax.h"
#include "scratch.h"
#include "word_product.h"

#if defined(TANDEM_BYTE_PRODUCTS)

namespace tandem {

// E elements of queries.
template <class E>
class ManyBytes {
 public:
  using Element = E;
  using Value = Int8Value;
  using Reader = TileReader<Int8Value>;

  static std::size_t scratch_bytes(const AttentionCall& call, std::int64_t blocks) {
    const std::int64_t num_words = byte_words(call.cache.head_dim);
    return Scratch::measure<std::uint32_t>(num_words * kTile) +
           Scratch::measure<std::uint32_t>(padded_width(call.cache.head_dim) * kQuads) +
           4 * Scratch::measure<float>(kTile) +
           Scratch::measure<std::uint32_t>(blocks * num_words * 2 * kBlockRows) +
           Scratch::measure<QueryVector>(blocks * kBlockVectors) +
           Scratch::measure<std::uint32_t>(kLanes * 2 * num_words) +
           Scratch::measure<std::uint32_t>(kQuads * 2 * kBlockRows) +
           Scratch::measure<float>(kTile * kBlockRows);
  }

  // For at most so many blocks of rows.
  ManyBytes(const AttentionCall& call, std::int64_t blocks, Scratch& scratch)
      : exponents_(call.attention),
        d_(call.cache.head_dim),
        num_words_(byte_words(d_)),
        width_(padded_width(d_)),
        keys_(scratch.take<std::uint32_t>(num_words_ * kTile)),
        values_(scratch.take<std::uint32_t>(width_ * kQuads)),
        key_scales_(scratch.take<float>(kTile)),
        value_exponents_(scratch.take<float>(kTile)),
        value_factors_(scratch.take<float>(kTile)),
        value_inverses_(scratch.take<float>(kTile)),
        queries_(scratch.take<std::uint32_t>(blocks * num_words_ * 2 * kBlockRows)),
        vectors_(scratch.take<QueryVector>(blocks * kBlockVectors)),
        rows_(scratch.take<std::uint32_t>(kLanes * 2 * num_words_)),
        weights_(scratch.take<std::uint32_t>(kQuads * 2 * kBlockRows)),
        scores_(scratch.take<float>(kTile * kBlockRows)) {}

  // Rows first .. first + kLanes.
  void load_queries(const E* const* rows, std::int64_t first) {
    QueryVector& vector = vectors_[first / kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const ByteQuery query = ByteQuery::of(rows[i], d_, num_words_, rows_ + i * 2 * num_words_);
      vector.scales[i] = query.scale;
      vector.high_starts[i] = query.high_start;
      vector.low_starts[i] = query.low_start;
    }
    std::uint32_t* to =
        queries_ + first / kBlockRows * num_words_ * 2 * kBlockRows + first % kBlockRows;
    for (std::int64_t part = 0; part < 2; ++part) {
      for (std::int64_t w = 0; w < num_words_; w += kLanes) {
        Words block[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          block[i] = load_words(rows_ + (i * 2 + part) * num_words_ + w);
        }
        transpose(block);
        for (int i = 0; i < kLanes; ++i) {
          store_words(to + ((w + i) * 2 + part) * kBlockRows, block[i]);
        }
      }
    }
  }

  // Packs the keys and values of `span`.
  void pack(const Reader& reader, Span span) {
    for (std::int64_t i = span.begin; i < span.end; i += kLanes) {
      const Int8Value* rows[kLanes];
      reader.keys(i, rows);
      pack_keys(rows, keys_ + i / kPackedKeys * num_words_ * kPackedKeys + i % kPackedKeys);
      reader.values(i, rows);
      for (std::int64_t k = 0; k < kLanes; k += kBytesPerWord) {
        pack_values(rows + k, values_ + (i + k) / kBytesPerWord * width_);
      }
      const ValueScales scales(reader.value_scales(i));
      store(key_scales_ + i, reader.key_scales(i));
      store(value_exponents_ + i, scales.exponents);
      store(value_factors_ + i, scales.factors);
      store(value_inverses_ + i, scales.inverses);
    }
  }

  // Exponents of `span`, kUnseen where a row doesn't see a key, and their largest. They take in
  // those of the values' scales.
  template <int V>
  void score(std::int64_t b, const RowSpans<V>& spans, Span span, Floats (&largest)[V]) {
    const std::uint32_t* queries = queries_ + b * num_words_ * 2 * kBlockRows;
    const QueryVector* vectors = vectors_ + b * kBlockVectors;
    ByteSums starts[V];
    for (int v = 0; v < V; ++v) {
      starts[v] = {vectors[v].high_starts, vectors[v].low_starts};
      largest[v] = broadcast(kUnseen);
    }
    const std::int64_t depth = (d_ + kBytesPerWord - 1) / kBytesPerWord;
    for (std::int64_t key = span.begin; key < span.end; key += kSteps) {
      const std::uint32_t* keys =
          keys_ + key / kPackedKeys * num_words_ * kPackedKeys + key % kPackedKeys;
      float* scores = scores_ + (key - span.begin) * kBlockRows;
      const bool all_seen = spans.common.begin <= key && key + kSteps <= spans.common.end;
      multiply<V, true>(keys, 1, kPackedKeys, queries, depth, starts,
                        [&](int i, int v, Floats product) {
                          Floats score = exponents_.of(product * broadcast(key_scales_[key + i]),
                                                       vectors[v].scales,
                                                       broadcast(value_exponents_[key + i]));
                          if (!all_seen) score = spans.masked(v, key + i, score);
                          largest[v] = larger(largest[v], score);
                          store(scores + i * kBlockRows + v * kLanes, score);
                        });
    }
  }

  // Turns the exponents of one vector of rows into weights; returns their sum.
  Floats weigh(int v, Span span, Floats largest) {
    const float* scores = scores_ + v * kLanes;
    std::uint32_t* weights = weights_ + v * kLanes;
    Floats totals[kLanes] = {};
    for (std::int64_t key = span.begin; key < span.end; key += kLanes) {
#pragma GCC unroll 4
      for (int i = 0; i < kLanes; i += kBytesPerWord) {
        __m512i wholes[kBytesPerWord];
#pragma GCC unroll 4
        for (int k = 0; k < kBytesPerWord; ++k) {
          const Floats weight = PairWords::weight(load(scores + (i + k) * kBlockRows) - largest);
          totals[i + k] = fused(weight, broadcast(value_inverses_[key + i + k]), totals[i + k]);
          wholes[k] = whole_weight(weight, broadcast(value_factors_[key + i + k]));
        }
        store_weights(wholes, weights + i / kBytesPerWord * 2 * kBlockRows);
      }
      scores += kLanes * kBlockRows;
      weights += kLanes / kBytesPerWord * 2 * kBlockRows;
    }
    for (int apart = kLanes / 2; apart > 0; apart /= 2) {
      for (int i = 0; i < apart; ++i) totals[i] += totals[i + apart];
    }
    return totals[0];
  }

  // f(dim, v, weighted values) for all of them, V vectors of rows.
  template <int V, class F>
  void weigh_values(Span span, const F& f) const {
    const ByteSums zeros[V] = {};
    for (std::int64_t dim = 0; dim < width_; dim += kSteps) {
      multiply<V, false>(values_ + span.begin / kBytesPerWord * width_ + dim, 1, width_, weights_,
                         (span.end - span.begin) / kBytesPerWord, zeros,
                         [&](int i, int v, Floats sum) { f(dim + i, v, sum); });
    }
  }

 private:
  static constexpr std::int64_t kQuads = kTile / kBytesPerWord;
  static constexpr int kSteps = 4;  // keys or dimensions at a time

  struct QueryVector {
    Floats scales;
    Ints high_starts, low_starts;
  };

  // As multiply_block (word_product.h), where b has two words: sums of the high and the low bytes.
  // One of the operands has bytes without signs.
  template <int V, bool RowsHaveNoSigns, class Finish>
  [[gnu::always_inline]] static void multiply(const std::uint32_t* a, std::int64_t a_stride,
                                              std::int64_t a_step, const std::uint32_t* b,
                                              std::int64_t depth, const ByteSums (&starts)[V],
                                              const Finish& finish) {
    Ints high[kSteps][V], low[kSteps][V];
#pragma GCC unroll 4
    for (int r = 0; r < kSteps; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) {
        high[r][v] = starts[v].high;
        low[r][v] = starts[v].low;
      }
    }
    for (std::int64_t k = 0; k < depth; ++k) {
      Words highs[V], lows[V];
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) {
        highs[v] = load_words(b + 2 * k * kBlockRows + v * kLanes);
        lows[v] = load_words(b + (2 * k + 1) * kBlockRows + v * kLanes);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kSteps; ++r) {
        const Words row = a[k * a_step + r * a_stride] + Words{};
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) {
          high[r][v] = RowsHaveNoSigns ? add_products(high[r][v], row, highs[v])
                                       : add_products(high[r][v], highs[v], row);
          low[r][v] = RowsHaveNoSigns ? add_products(low[r][v], row, lows[v])
                                      : add_products(low[r][v], lows[v], row);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kSteps; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) finish(r, v, ByteSums{high[r][v], low[r][v]}.value());
    }
  }

  void pack_keys(const Int8Value* const* rows, std::uint32_t* to) const {
    for (std::int64_t w = 0; w < num_words_; w += kLanes) {
      Words block[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        block[i] = bit_cast<Words>(row_bytes(rows[i], w * kBytesPerWord, d_));
      }
      transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        store_words(to + (w + i) * kPackedKeys, block[i] ^ kFlipSigns);
      }
    }
  }

  // Four rows; their bytes 0, 2, 1, 3 side by side, as in weights.
  void pack_values(const Int8Value* const* rows, std::uint32_t* to) const {
    for (std::int64_t dim = 0; dim < width_; dim += kVectorBytes) {
      Words columns[4];
      interleave<0>(row_bytes(rows[0], dim, d_), row_bytes(rows[2], dim, d_),
                       row_bytes(rows[1], dim, d_), row_bytes(rows[3], dim, d_), columns);
      const std::int64_t width = std::min(width_ - dim, kVectorBytes);
      for (int v = 0; v < 4; ++v) store_quarters(columns[v], v, width, to + dim);
    }
  }

  static void store_weights(const __m512i (&wholes)[4], std::uint32_t* to) {
    constexpr std::uint32_t kOdd16 = 0xaaaaaaaa;
    constexpr std::uint64_t kOdd8 = 0xaaaaaaaaaaaaaaaa;
    const __m512i front =
        _mm512_mask_blend_epi16(kOdd16, wholes[0], _mm512_slli_epi32(wholes[1], 16));
    const __m512i back =
        _mm512_mask_blend_epi16(kOdd16, wholes[2], _mm512_slli_epi32(wholes[3], 16));
    store_words(to, bit_cast<Words>(_mm512_mask_blend_epi8(kOdd8, _mm512_srli_epi16(front, 8), back)));
    store_words(to + kBlockRows,
                bit_cast<Words>(_mm512_mask_blend_epi8(kOdd8, front, _mm512_slli_epi16(back, 8))));
  }

  const Exponents exponents_;
  const std::int64_t d_;
  const std::int64_t num_words_;  // of a head, whole vectors
  const std::int64_t width_;
  std::uint32_t* const keys_;    // [kTile / kPackedKeys][num_words][kPackedKeys]
  std::uint32_t* const values_;  // [kQuads][width]
  float* const key_scales_;      // [kTile], as the next three
  float* const value_exponents_;
  float* const value_factors_;
  float* const value_inverses_;
  std::uint32_t* const queries_;  // [blocks][num_words][high, low][kBlockRows]
  QueryVector* const vectors_;    // [blocks][kBlockVectors]
  std::uint32_t* const rows_;     // [kLanes][high, low][num_words]
  std::uint32_t* const weights_;  // [quads][high, low][kBlockRows], from the span's first
  float* const scores_;           // [keys][kBlockRows], from the span's first
};

}  // namespace tandem
#endif
