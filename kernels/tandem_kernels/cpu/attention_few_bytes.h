// A tile's arithmetic in whole numbers (attention_bytes.h), for a few query rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_bytes.h"
#include "attention_rows.h"
#include "attention_softmax.h"
#include "attention_walk.h"
#include "scratch.h"
#include "word_product.h"

#if defined(TANDEM_BYTE_PRODUCTS)

namespace tandem {

// E elements of queries.
template <class E>
class FewBytes {
 public:
  using Element = E;
  using Value = Int8Value;
  using Reader = TileReader<Int8Value>;

  static std::size_t scratch_bytes(const AttentionCall& call, std::int64_t rows) {
    const std::int64_t num_words = byte_words(call.cache.head_dim);
    return Scratch::measure<std::uint32_t>(padded_rows(rows) * 2 * num_words) +
           Scratch::measure<std::uint32_t>(2 * num_words) +
           Scratch::measure<ByteQuery>(rows) + Scratch::measure<float>(rows) +
           Scratch::measure<std::uint8_t>(rows * 2 * kTile) +
           Scratch::measure<float>(rows * kTile) + 4 * Scratch::measure<float>(kTile) +
           Scratch::measure<Int8Value>(spare_size(call));
  }

  // For at most `rows` rows.
  FewBytes(const AttentionCall& call, std::int64_t rows, Scratch& scratch)
      : exponents_(call.attention),
        d_(call.cache.head_dim),
        num_words_(byte_words(call.cache.head_dim)),
        queries_(scratch.take<std::uint32_t>(padded_rows(rows) * 2 * num_words_)),
        row_(scratch.take<std::uint32_t>(2 * num_words_)),
        rows_(scratch.take<ByteQuery>(rows)),
        largest_(scratch.take<float>(rows)),
        weights_(scratch.take<std::uint8_t>(rows * 2 * kTile)),
        scores_(scratch.take<float>(rows * kTile)),
        key_scales_(scratch.take<float>(kTile)),
        value_exponents_(scratch.take<float>(kTile)),
        value_factors_(scratch.take<float>(kTile)),
        value_inverses_(scratch.take<float>(kTile)),
        spare_(scratch.take<Int8Value>(spare_size(call))) {}

  void load_query(std::int64_t r, const E* from) {
    rows_[r] = ByteQuery::of(from, d_, num_words_, row_);
    std::uint32_t* to = queries_of(r) + r % kScoreRows * 2;
    for (std::int64_t w = 0; w < num_words_; ++w) {
      to[w * kQueryWords] = row_[w];
      to[w * kQueryWords + 1] = row_[num_words_ + w];
    }
  }

  // Of rows 0 .. n with the keys of `span`: exponents, which take in those of the values' scales.
  void score(const Reader& reader, Span span, std::int64_t n, TileWalk& walk) {
    const Runs keys = reader.whole_runs(false, spare_);
    const std::int64_t vectors = (span.end - span.begin) / kLanes;
    walk.use_tile(fetches_, vectors * (kScalesWeight + kScoreWeight * num_words_ / score_columns() +
                                       kWeighWeight * n + kRunWeight * kLanes / kRunKeys));
    load_scales(reader, span);
    for (std::int64_t r = 0; r < n; r += kScoreRows) {
      with_count<kScoreRows>(static_cast<int>(n - r),
                             [&](auto rows) { score_block<rows.value>(keys, span, r); });
    }
  }

  // The row's largest exponent. Keys of `span` outside `own` get the weight 0.
  float mask_and_find_largest(std::int64_t r, Span own, Span span) {
    float* scores = scores_ + r * kTile;
    if (own.begin <= span.begin && span.end <= own.end) return largest_[r];
    if (own.empty()) own = {span.end, span.end};
    for (std::int64_t i = span.begin; i < own.begin; ++i) scores[i] = kUnseen;
    for (std::int64_t i = own.end; i < span.end; ++i) scores[i] = kUnseen;
    Floats largest = broadcast(kUnseen);
    for (std::int64_t i = span.begin; i < span.end; i += kLanes) {
      largest = larger(largest, load(scores + i));
    }
    return largest_lane(largest);
  }

  // Turns a row's exponents into weights; returns their sum.
  float weigh(std::int64_t r, Span span, float row_largest) {
    const float* scores = scores_ + r * kTile;
    std::uint8_t* high = weights_ + r * 2 * kTile;
    std::uint8_t* low = high + kTile;
    const Floats largest = broadcast(row_largest);
    Floats total{};
    for (std::int64_t i = span.begin; i < span.end; i += kLanes) {
      fetches_.step(kWeighWeight);
      const Floats weight = PairWords::weight(load(scores + i) - largest);
      total = fused(weight, load(value_inverses_ + i), total);
      const __m512i whole = whole_weight(weight, load(value_factors_ + i));
      _mm_store_si128(reinterpret_cast<__m128i*>(low + i), _mm512_cvtepi32_epi8(whole));
      _mm_store_si128(reinterpret_cast<__m128i*>(high + i),
                      _mm512_cvtepi32_epi8(_mm512_srli_epi32(whole, 8)));
    }
    return sum_of_lanes(total);
  }

  // The values of rows 0 .. n in `to`.
  void weigh_values(const Reader& reader, Span span, std::int64_t n,
                    const RowSums& to) {
    const Runs values = reader.whole_runs(true, spare_);
    for (std::int64_t dim = 0; dim < d_; dim += kVectorBytes) {
      for (std::int64_t r = 0; r < n;) {
        const std::int64_t left = n - r;
        if (left <= kWholeRows) {
          with_count<kWholeRows>(static_cast<int>(left), [&](auto rows) {
            values_block<rows.value, 0, 4>(values, span, r, dim, to);
          });
          break;
        }
        with_count<kSplitRows>(static_cast<int>(left), [&](auto rows) {
          values_block<rows.value, 0, 2>(values, span, r, dim, to);
          values_block<rows.value, 2, 2>(values, span, r, dim, to);
        });
        r += kSplitRows;
      }
    }
  }

 private:
  static constexpr int kScoreRows = 8;
  // How long steps of the work take beside each other, measured
  static constexpr int kScalesWeight = 4;  // a vector of keys
  static constexpr int kScoreWeight = 4;   // a vector of keys, score_columns() words
  static constexpr int kWeighWeight = 1;   // a vector of keys of one row
  static constexpr int kRunWeight = 3;     // the values of a run
  static constexpr std::int64_t kQueryWords = 2 * kScoreRows;
  // Rows whose sums fit the registers: of all four vectors of a row of bytes, of two of them
  static constexpr int kWholeRows = 3;
  static constexpr int kSplitRows = 4;

  static std::int64_t padded_rows(std::int64_t rows) {
    return (rows + kScoreRows - 1) / kScoreRows * kScoreRows;
  }
  // Of the kScoreRows rows that row r is one of.
  std::uint32_t* queries_of(std::int64_t r) const {
    return queries_ + r / kScoreRows * num_words_ * kQueryWords;
  }

  // Words of a key that are transposed at a time.
  std::int64_t score_columns() const {
    return d_ % (kHalf * kBytesPerWord) == 0 ? kHalf : kLanes;
  }

  static std::int64_t spare_size(const AttentionCall& call) {
    return Reader::kSpareRuns * kRunKeys * call.cache.head_dim;
  }

  using Runs = WholeRuns<Int8Value>;

  void load_scales(const Reader& reader, Span span) {
    for (std::int64_t key = span.begin; key < span.end; key += kLanes) {
      fetches_.step(kScalesWeight);
      const ValueScales scales(reader.value_scales(key));
      store(key_scales_ + key, reader.key_scales(key));
      store(value_exponents_ + key, scales.exponents);
      store(value_factors_ + key, scales.factors);
      store(value_inverses_ + key, scales.inverses);
    }
  }

  // Not inlined, here and below: among other code, GCC keeps the sums in memory.
  template <int R>
  [[gnu::noinline]] void score_block(const Runs& keys, Span span, std::int64_t first) {
    std::int64_t key = span.begin;
    if (score_columns() == kHalf) {
      // Two vectors of keys share what a query's words are loaded for
      for (; R <= 3 && key + 2 * kLanes <= span.end; key += 2 * kLanes) {
        score_vectors<R, 2, kHalf>(keys, key, first);
      }
      for (; key < span.end; key += kLanes) score_vectors<R, 1, kHalf>(keys, key, first);
    } else {
      for (; key < span.end; key += kLanes) score_vectors<R, 1, kLanes>(keys, key, first);
    }
    for (int r = 0; r < R; ++r) {
      float* scores = scores_ + (first + r) * kTile;
      const Floats scale = broadcast(rows_[first + r].scale);
      Floats largest = broadcast(kUnseen);
      for (std::int64_t i = span.begin; i < span.end; i += kLanes) {
        const Floats exponents =
            exponents_.of(load(scores + i), scale, load(value_exponents_ + i));
        largest = larger(largest, exponents);
        store(scores + i, exponents);
      }
      largest_[first + r] = largest_lane(largest);
    }
  }

  // V vectors of keys, `Columns` words of each at a time.
  template <int R, int V, int Columns>
  [[gnu::always_inline]] void score_vectors(const Runs& keys, std::int64_t key,
                                            std::int64_t first) {
    const std::int64_t num_words = (d_ + kBytesPerWord - 1) / kBytesPerWord;
    Ints high[R][V], low[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        high[r][v] = Ints{} + rows_[first + r].high_start;
        low[r][v] = Ints{} + rows_[first + r].low_start;
      }
    }
    const Int8Value* const* runs = keys.of + key / kRunKeys;
    for (std::int64_t w = 0; w < num_words; w += Columns) {
      Words block[V][Columns];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        load_columns(runs[2 * v], runs[2 * v + 1], w, block[v]);
        if (first == 0) fetches_.step(kScoreWeight);
      }
      const std::uint32_t* query = queries_of(first) + w * kQueryWords;
#pragma GCC unroll 16
      for (int i = 0; i < Columns; ++i) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) block[v][i] ^= kFlipSigns;
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const Words highs = query[i * kQueryWords + r * 2] + Words{};
          const Words lows = query[i * kQueryWords + r * 2 + 1] + Words{};
#pragma GCC unroll 2
          for (int v = 0; v < V; ++v) {
            high[r][v] = add_products(high[r][v], block[v][i], highs);
            low[r][v] = add_products(low[r][v], block[v][i], lows);
          }
        }
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      const Floats scales = load(key_scales_ + key + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        store(scores_ + (first + r) * kTile + key + v * kLanes,
              ByteSums{high[r][v], low[r][v]}.value() * scales);
      }
    }
  }

  [[gnu::always_inline]] void load_columns(const Int8Value* front, const Int8Value* back,
                                           std::int64_t w, Words (&columns)[kHalf]) const {
    const Int8Value* rows[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      rows[i] = front + i * d_;
      rows[8 + i] = back + i * d_;
    }
    transpose_half(rows, w, columns);
  }
  [[gnu::always_inline]] void load_columns(const Int8Value* front, const Int8Value* back,
                                           std::int64_t w, Words (&columns)[kLanes]) const {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      columns[i] = bit_cast<Words>(row_bytes(front + i * d_, w * kBytesPerWord, d_));
      columns[8 + i] = bit_cast<Words>(row_bytes(back + i * d_, w * kBytesPerWord, d_));
    }
    transpose(columns);
  }

  // Vectors First .. First + V of four that kVectorBytes elements from `dim` on fill.
  template <int R, int First, int V>
  [[gnu::noinline]] void values_block(const Runs& values, Span span, std::int64_t first,
                                      std::int64_t dim, const RowSums& to) {
    Ints high[R][V], low[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) high[r][v] = low[r][v] = Ints{};
    }
    const bool fetches = first == 0 && dim == 0 && First == 0;
    const __mmask64 kept = d_ - dim >= kVectorBytes ? ~__mmask64{0} : (__mmask64{1} << (d_ - dim)) - 1;
    for (std::int64_t key = span.begin; key < span.end; key += kRunKeys) {
      if (fetches) fetches_.step(kRunWeight);
      const Int8Value* run = values.of[key / kRunKeys] + dim;
      const std::uint8_t* weights = weights_ + first * 2 * kTile + key;
#pragma GCC unroll 2
      for (int k = 0; k < kRunKeys; k += kBytesPerWord) {
        const auto row = [&](int i) { return _mm512_maskz_loadu_epi8(kept, run + (k + i) * d_); };
        Words columns[V];
        interleave<First>(row(0), row(1), row(2), row(3), columns);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const Words highs = word_at(weights + r * 2 * kTile + k) + Words{};
          const Words lows = word_at(weights + (r * 2 + 1) * kTile + k) + Words{};
#pragma GCC unroll 8
          for (int v = 0; v < V; ++v) {
            high[r][v] = add_products(high[r][v], highs, columns[v]);
            low[r][v] = add_products(low[r][v], lows, columns[v]);
          }
        }
      }
    }
    const std::int64_t width = std::min(padded_width(d_) - dim, kVectorBytes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        store_quarters(ByteSums{high[r][v], low[r][v]}.value(), First + v, width,
                       to.row(first + r).values + dim);
      }
    }
  }

  static std::uint32_t word_at(const std::uint8_t* bytes) {
    std::uint32_t word;
    std::memcpy(&word, bytes, sizeof word);
    return word;
  }

  const Exponents exponents_;
  const std::int64_t d_;
  const std::int64_t num_words_;
  std::uint32_t* const queries_;  // [rows / kScoreRows][num_words][kScoreRows][high, low]
  std::uint32_t* const row_;      // [high, low][num_words]
  ByteQuery* const rows_;         // [rows]
  float* const largest_;          // [rows], exponents of the tile
  std::uint8_t* const weights_;   // [rows][high, low][kTile]
  float* const scores_;           // [rows][kTile]
  float* const key_scales_;       // [kTile], as the next three
  float* const value_exponents_;
  float* const value_factors_;
  float* const value_inverses_;
  Int8Value* const spare_;
  FetchSteps<1> fetches_;
};

}  // namespace tandem
#endif
