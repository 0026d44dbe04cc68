// Attention of a few query rows (decode) that reads keys and values where they lie.
//
//   per tile:  scores     lanes are keys        keys are transposed in registers
//              softmax    row by row
//              values     lanes are dimensions  rows of the cache as they are
//
// While a tile is computed, those after it are fetched, be they of other jobs (attention_walk.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_plan.h"
#include "attention_rows.h"
#include "attention_softmax.h"
#include "attention_walk.h"
#include "attention_words.h"
#include "scratch.h"
#include "word_product.h"

namespace tandem {

// Below as many rows as this, lanes that are rows would mostly be empty (many_rows.h).
constexpr std::int64_t kFewRows = kLanes > 8 ? 8 : kLanes / 2;

template <class W, class T, class E>
class FewRows {
 public:
  FewRows(const AttentionCall& call, Scratch& scratch)
      : call_(call),
        exponents_(call.attention),
        group_(call.group()),
        d_(call.cache.head_dim),
        num_words_(padded_width((d_ + W::kPerWord - 1) / W::kPerWord)),
        width_(padded_width(d_)) {
    const std::int64_t rows = std::max(kFewRows, group_);
    scratch.reset(Scratch::measure<std::uint32_t>(rows * num_words_) +
                  Scratch::measure<std::uint32_t>(rows * kTile) +
                  Scratch::measure<float>(rows * kTile) +
                  2 * Scratch::measure<float>(rows * row_size()) + Scratch::measure<T>(width_) +
                  Scratch::measure<float>(kTile));
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
      for (std::int64_t tile = range.first_tile_of(*job); tile < range.end_tile_of(*job); ++tile) {
        add_tile(*job, tile, walk);
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
  static constexpr int kGroupVectors = kVectorRegisters >= 32 ? 4 : 2;  // of values
  static constexpr int kBlockRows = 4;
  static constexpr int kScoreRows = kVectorRegisters >= 32 ? 8 : 4;
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
      for (std::int64_t w = 0; w < num_words_; w += kLanes) {
        store_words(queries_ + r * num_words_ + w, W::words(from, w, d_));
      }
    }
  }

  void add_tile(const AttentionJob& job, std::int64_t tile, TileWalk& walk) {
    const TileRuns& runs = walk.current();
    const TileReader<T> reader(call_, runs, zeros_);
    const Span keys = runs.keys.widened();
    const std::int64_t n = num_rows(job);
    // Nothing to merge the first tile with
    const bool is_first = tile == job.first_tile && job.partials == nullptr;
    float* sums = is_first ? rows_ : tile_rows_;
    score(reader, keys, n, walk);
    for (std::int64_t r = 0; r < n; ++r) {
      mask_and_find_largest(r, own_keys(job, r, tile), keys, row_sum(sums, r));
    }
    for (std::int64_t r = 0; r < n; ++r) weigh(r, keys, row_sum(sums, r));
    weigh_values(reader, keys, n, sums, walk);
    if (job.partials != nullptr) {
      std::copy_n(tile_rows_, n * row_size(),
                  job.partials + (tile - job.first_tile) * n * row_size());
      return;
    }
    for (std::int64_t r = 0; r < n; ++r) {
      const bool is_empty = own_keys(job, r, tile).empty();
      if (is_first) {
        if (is_empty) clear(rows_ + r * row_size(), 1);
      } else if (!is_empty) {
        merge(row_sum(rows_, r), row_sum(tile_rows_, r), width_);
      }
    }
  }

  Span own_keys(const AttentionJob& job, std::int64_t r, std::int64_t tile) const {
    return call_.seen(job.sequence, job.begin + (group_ == 1 ? r : r / group_), tile);
  }

  void score(const TileReader<T>& reader, Span span, std::int64_t n, TileWalk& walk) {
    for (std::int64_t r = 0; r < n; r += kScoreRows) {
      with_count<kScoreRows>(static_cast<int>(n - r), [&](auto rows) {
        score_block<rows.value>(reader, span, r, walk);
      });
    }
  }

  // Not inlined, here and below: among other code, GCC keeps the sums in memory.
  template <int R>
  [[gnu::noinline]] void score_block(const TileReader<T>& reader, Span span, std::int64_t first,
                                     TileWalk& walk) {
    std::int64_t key = span.begin;
#if defined(TANDEM_AVX512)
    if constexpr (kIsPlain<W, T>) {
      if (d_ % (kHalf * W::kPerWord) == 0) {
        // Two vectors of keys, as one row's sums are too few to hide how long each takes
        for (; R <= 4 && key + 2 * kLanes <= span.end; key += 2 * kLanes) {
          score_halves<R, 2>(reader, key, first, walk);
        }
        for (; key < span.end; key += kLanes) score_halves<R, 1>(reader, key, first, walk);
      }
    }
#endif
    for (; key < span.end; key += kLanes) score_vector<R>(reader, key, first, walk);
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
                                           std::int64_t first, TileWalk& walk) {
    const T* rows[kLanes];
    reader.keys(key, rows);
    if (first == 0) walk.used(kLanes);
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
                                           std::int64_t first, TileWalk& walk) {
    const T* rows[V][kLanes];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) reader.keys(key + v * kLanes, rows[v]);
    if (first == 0) walk.used(V * kLanes);
    const std::int64_t num_words = d_ / W::kPerWord;
    const std::uint32_t* queries = queries_ + first * num_words_;
    Floats sums[R][V] = {};
    for (std::int64_t w = 0; w < num_words; w += kHalf) {
      Words block[V][kHalf];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) transpose_half(rows[v], w, block[v]);
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

  // Keys of `span` outside `own` get the weight 0.
  void mask_and_find_largest(std::int64_t r, Span own, Span span, RowSum sum) {
    float* scores = scores_ + r * kTile;
    if (own.empty()) own = {span.end, span.end};
    for (std::int64_t i = span.begin; i < own.begin; ++i) scores[i] = kUnseen;
    for (std::int64_t i = own.end; i < span.end; ++i) scores[i] = kUnseen;
    Floats highest = broadcast(kUnseen);
    for (std::int64_t i = span.begin; i < span.end; i += kLanes) {
      highest = larger(highest, load(scores + i));
    }
    *sum.largest = exponents_.largest(broadcast(largest_lane(highest)))[0];
  }

  void weigh(std::int64_t r, Span span, RowSum sum) {
    const float* scores = scores_ + r * kTile;
    std::uint32_t* weights = weights_ + r * kWeightWords;
    const Floats largest = broadcast(*sum.largest);
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
    *sum.total = sum_of_lanes(total);
  }

  void weigh_values(const TileReader<T>& reader, Span span, std::int64_t n, float* to,
                    TileWalk& walk) {
    const std::int64_t num_vectors = width_ / kLanes;
    for (std::int64_t r = 0; r < n; r += kBlockRows) {
      with_count<kBlockRows>(static_cast<int>(n - r), [&](auto rows) {
        std::int64_t v = 0;
        for (; v + kGroupVectors <= num_vectors; v += kGroupVectors) {
          values_block<rows.value, kGroupVectors>(reader, span, r, v * kLanes, to, walk);
        }
        for (; v < num_vectors; ++v) {
          values_block<rows.value, 1>(reader, span, r, v * kLanes, to, walk);
        }
      });
    }
  }

  template <int R, int V>
  [[gnu::noinline]] void values_block(const TileReader<T>& reader, Span span, std::int64_t first,
                                      std::int64_t dim, float* to, TileWalk& walk) {
    Floats sums[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[r][v] = Floats{};
    }
    for (std::int64_t i = span.begin; i < span.end; i += kLanes) {
      const T* rows[kLanes];
      reader.values(i, rows);
      if (first == 0 && dim == 0) walk.used(kLanes);
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
        store(row_sum(to, first + r).values + dim + v * kLanes, sums[r][v]);
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
  std::uint32_t* queries_;  // [rows][num_words], whole vectors
  std::uint32_t* weights_;  // [rows][kWeightWords]
  float* scores_;           // [rows][kTile]
  float* rows_;             // [rows][row_size]
  float* tile_rows_;        // [rows][row_size], of the tile alone
  T* zeros_;
  float* value_scales_;  // [kTile]
};

}  // namespace tandem
