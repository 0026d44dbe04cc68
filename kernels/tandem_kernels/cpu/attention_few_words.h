// A tile's arithmetic in words (attention_words.h), for a few query rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_rows.h"
#include "attention_softmax.h"
#include "attention_walk.h"
#include "attention_words.h"
#include "scratch.h"
#include "word_product.h"

namespace tandem {

// W words, T elements of the cache, E of queries.
template <class W, class T, class E>
class FewWords {
 public:
  using Element = E;
  using Value = T;

  static std::size_t scratch_bytes(const AttentionCall& call, std::int64_t rows) {
    return Scratch::measure<std::uint32_t>(rows * words_of(call)) +
           Scratch::measure<std::uint32_t>(rows * kTile) + Scratch::measure<float>(rows * kTile) +
           Scratch::measure<float>(kTile);
  }

  // For at most `rows` rows.
  FewWords(const AttentionCall& call, std::int64_t rows, Scratch& scratch)
      : exponents_(call.attention),
        d_(call.cache.head_dim),
        num_words_(words_of(call)),
        width_(padded_width(d_)),
        queries_(scratch.take<std::uint32_t>(rows * num_words_)),
        weights_(scratch.take<std::uint32_t>(rows * kTile)),
        scores_(scratch.take<float>(rows * kTile)),
        value_scales_(scratch.take<float>(kTile)) {}

  void load_query(std::int64_t r, const E* from) {
    for (std::int64_t w = 0; w < num_words_; w += kLanes) {
      store_words(queries_ + r * num_words_ + w, W::words(from, w, d_));
    }
  }

  // Of rows 0 .. n with the keys of `span`.
  void score(const TileReader<T>& reader, Span span, std::int64_t n, TileWalk& walk) {
    const std::int64_t vectors = (span.end - span.begin) / kLanes;
    walk.use_tile(fetches_, vectors * 2 * num_words_);
    for (std::int64_t r = 0; r < n; r += kScoreRows) {
      with_count<kScoreRows>(static_cast<int>(n - r), [&](auto rows) {
        score_block<rows.value>(reader, span, r);
      });
    }
  }

  // The row's largest exponent.
  // Keys of `span` outside `own` get the weight 0.
  float mask_and_find_largest(std::int64_t r, Span own, Span span) {
    float* scores = scores_ + r * kTile;
    if (own.empty()) own = {span.end, span.end};
    for (std::int64_t i = span.begin; i < own.begin; ++i) scores[i] = kUnseen;
    for (std::int64_t i = own.end; i < span.end; ++i) scores[i] = kUnseen;
    Floats highest = broadcast(kUnseen);
    for (std::int64_t i = span.begin; i < span.end; i += kLanes) {
      highest = larger(highest, load(scores + i));
    }
    return exponents_.largest(broadcast(largest_lane(highest)))[0];
  }

  // Turns a row's scores into weights; returns their sum.
  float weigh(std::int64_t r, Span span, float row_largest) {
    const float* scores = scores_ + r * kTile;
    std::uint32_t* weights = weights_ + r * kWeightWords;
    const Floats largest = broadcast(row_largest);
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
    return sum_of_lanes(total);
  }

  // The values of rows 0 .. n in `to`.
  void weigh_values(const TileReader<T>& reader, Span span, std::int64_t n,
                    const RowSums& to) {
    const std::int64_t num_vectors = width_ / kLanes;
    for (std::int64_t r = 0; r < n; r += kBlockRows) {
      with_count<kBlockRows>(static_cast<int>(n - r), [&](auto rows) {
        std::int64_t v = 0;
        for (; v + kGroupVectors <= num_vectors; v += kGroupVectors) {
          values_block<rows.value, kGroupVectors>(reader, span, r, v * kLanes, to);
        }
        for (; v < num_vectors; ++v) {
          values_block<rows.value, 1>(reader, span, r, v * kLanes, to);
        }
      });
    }
  }

 private:
  static constexpr bool kHasScales = TileReader<T>::kHasScales;
  static constexpr int kGroupVectors = kVectorRegisters >= 32 ? 4 : 2;  // of values
  static constexpr int kBlockRows = 4;
  static constexpr int kScoreRows = kVectorRegisters >= 32 ? 8 : 4;
  static constexpr std::int64_t kWeightWords = kTile / W::kPerWord;

  static std::int64_t words_of(const AttentionCall& call) {
    return padded_width((call.cache.head_dim + W::kPerWord - 1) / W::kPerWord);
  }

  // Not inlined, here and below: among other code, GCC keeps the sums in memory.
  template <int R>
  [[gnu::noinline]] void score_block(const TileReader<T>& reader, Span span,
                                     std::int64_t first) {
    std::int64_t key = span.begin;
#if defined(TANDEM_AVX512)
    if constexpr (kIsPlain<W, T>) {
      if (d_ % (kHalf * W::kPerWord) == 0) {
        // Two vectors of keys, as one row's sums are too few to hide how long each takes
        for (; R <= 4 && key + 2 * kLanes <= span.end; key += 2 * kLanes) {
          score_halves<R, 2>(reader, key, first);
        }
        for (; key < span.end; key += kLanes) score_halves<R, 1>(reader, key, first);
      }
    }
#endif
    for (; key < span.end; key += kLanes) score_vector<R>(reader, key, first);
    float* scores = scores_ + first * kTile;
    if (!exponents_.capped()) return;
    for (int r = 0; r < R; ++r) {
      for (std::int64_t i = span.begin; i < span.end; i += kLanes) {
        store(scores + r * kTile + i, exponents_.cap(load(scores + r * kTile + i)));
      }
    }
  }

  template <int R>
  [[gnu::always_inline]] void score_vector(const TileReader<T>& reader, std::int64_t key,
                                           std::int64_t first) {
    const T* rows[kLanes];
    reader.keys(key, rows);
    if (first == 0) fetches_.step(num_words_);
    const std::uint32_t* queries = queries_ + first * num_words_;
    Floats sums[R] = {};
    for (std::int64_t w = 0; w < num_words_; w += kLanes) {
      Words block[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) block[i] = W::words(rows[i], w, d_);
      transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const Words word = queries[r * num_words_ + w + i] + Words{};
          sums[r] = W::multiply_add(sums[r], word, block[i]);
        }
      }
    }
    if (kHasScales) {
      const Floats scales = reader.key_scales(key);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[r] *= scales;
      if (first == 0) store(value_scales_ + key, reader.value_scales(key));
    }
    float* scores = scores_ + first * kTile + key;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) store(scores + r * kTile, sums[r]);
  }

#if defined(TANDEM_AVX512)
  // The same for V vectors of plain keys whose words are a multiple of kHalf.
  template <int R, int V>
  [[gnu::always_inline]] void score_halves(const TileReader<T>& reader, std::int64_t key,
                                           std::int64_t first) {
    const T* rows[V][kLanes];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) reader.keys(key + v * kLanes, rows[v]);
    const std::int64_t num_words = d_ / W::kPerWord, step = num_words_ * kHalf / num_words;
    const std::uint32_t* queries = queries_ + first * num_words_;
    Floats sums[R][V] = {};
    for (std::int64_t w = 0; w < num_words; w += kHalf) {
      Words block[V][kHalf];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        transpose_half(rows[v], w, block[v]);
        if (first == 0) fetches_.step(step);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kHalf; ++i) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const Words word = queries[r * num_words_ + w + i] + Words{};
#pragma GCC unroll 2
          for (int v = 0; v < V; ++v) sums[r][v] = W::multiply_add(sums[r][v], word, block[v][i]);
        }
      }
    }
    float* scores = scores_ + first * kTile + key;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) store(scores + r * kTile + v * kLanes, sums[r][v]);
    }
  }
#endif

  template <int R, int V>
  [[gnu::noinline]] void values_block(const TileReader<T>& reader, Span span, std::int64_t first,
                                      std::int64_t dim, const RowSums& to) {
    // Keys and their values are asked for in steps that weigh the same: about as long as each other
    const std::int64_t step = first == 0 && dim == 0 ? 2 * num_words_ * W::kPerWord / kLanes : 0;
    Floats sums[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] = Floats{};
    }
    for (std::int64_t i = span.begin; i < span.end; i += kLanes) {
      const T* rows[kLanes];
      reader.values(i, rows);
      const std::uint32_t* weights = weights_ + first * kWeightWords + i / W::kPerWord;
#pragma GCC unroll 2
      for (int k = 0; k < kLanes / W::kPerWord; ++k) {
        Words columns[V];
        W::template columns<V>(rows + k * W::kPerWord, dim, d_, columns);
        if (step > 0 && k % 2 == 0) fetches_.step(step);
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
        store(to.row(first + r).values + dim + v * kLanes, sums[r][v]);
      }
    }
  }

  const Exponents exponents_;
  const std::int64_t d_;
  const std::int64_t num_words_;
  const std::int64_t width_;
  std::uint32_t* const queries_;  // [rows][num_words], whole vectors
  std::uint32_t* const weights_;  // [rows][kWeightWords]
  float* const scores_;           // [rows][kTile]
  float* const value_scales_;     // [kTile]
  // Values of one byte take longer to turn into words than to read
  FetchSteps<kHasScales ? 2 : 1> fetches_;
};

}  // namespace tandem
