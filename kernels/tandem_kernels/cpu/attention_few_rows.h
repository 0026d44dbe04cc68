// Attention of a few query rows (decode) that reads keys and values where they lie.
//
//   per tile:  scores     lanes are keys        keys are transposed in registers
//              softmax    row by row
//              values     lanes are dimensions  rows of the cache as they are
//
// While a tile is computed, those after it are fetched, be they of other jobs (attention_walk.h).
// What a tile is computed with is another's: attention_few_words.h, attention_few_bytes.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_plan.h"
#include "attention_rows.h"
#include "attention_softmax.h"
#include "attention_walk.h"
#include "scratch.h"

namespace tandem {

// Below as many rows as this, lanes that are rows would mostly be empty (many_rows.h).
constexpr std::int64_t kFewRows = kLanes > 8 ? 8 : kLanes / 2;

template <class Tile>
class FewRows {
 public:
  using T = typename Tile::Value;
  using E = typename Tile::Element;

  FewRows(const AttentionCall& call, Scratch& scratch)
      : call_(call),
        group_(call.group()),
        d_(call.cache.head_dim),
        width_(padded_width(d_)),
        tile_(with_room(call, scratch), max_rows(call), scratch),
        rows_{scratch.take<float>(max_rows(call) * row_size(call)), row_size(call)},
        tile_rows_{scratch.take<float>(max_rows(call) * row_size(call)), row_size(call)},
        zeros_(scratch.take<T>(width_)) {
    std::fill_n(zeros_, width_, T{});
  }

  // Floats that `partials` of a job need for each of its tiles.
  static std::int64_t partial_size(const AttentionCall& call) {
    return call.group() * row_size(call);
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
    const RowSums partials{job.partials, rows_.row_size};
    clear(0, n);
    for (std::int64_t tile = 0; tile < job.num_tiles(); ++tile) {
      for (std::int64_t r = 0; r < n; ++r) {
        merge(rows_.row(r), partials.row(tile * n + r), width_);
      }
    }
    finish(job);
  }

 private:
  static std::int64_t row_size(const AttentionCall& call) {
    return padded_width(call.cache.head_dim) + RowSums::kHeader;
  }
  static std::int64_t max_rows(const AttentionCall& call) {
    return std::max(kFewRows, call.group());
  }

  static const AttentionCall& with_room(const AttentionCall& call, Scratch& scratch) {
    const std::int64_t rows = max_rows(call);
    scratch.reset(Tile::scratch_bytes(call, rows) +
                  2 * Scratch::measure<float>(rows * row_size(call)) +
                  Scratch::measure<T>(padded_width(call.cache.head_dim)));
    return call;
  }

  std::int64_t num_rows(const AttentionJob& job) const { return (job.end - job.begin) * group_; }

  void clear(std::int64_t first, std::int64_t n) const {
    std::fill_n(rows_.row(first).largest, n * rows_.row_size, 0.0f);
    for (std::int64_t r = first; r < first + n; ++r) *rows_.row(r).largest = kUnseen;
  }

  // Row r = token x group + head, as in the tensor.
  void load_queries(const AttentionJob& job) {
    const E* q = static_cast<const E*>(call_.q);
    for (std::int64_t r = 0; r < num_rows(job); ++r) {
      const std::int64_t token = job.begin + r / group_, head = job.kv_head * group_ + r % group_;
      tile_.load_query(r, q + token * call_.q_stride + head * d_);
    }
  }

  void add_tile(const AttentionJob& job, std::int64_t tile, TileWalk& walk) {
    const TileRuns& runs = walk.current();
    const TileReader<T> reader(call_, runs, zeros_);
    const Span keys = runs.keys.widened();
    const std::int64_t n = num_rows(job);
    // Nothing to merge the first tile with
    const bool is_first = tile == job.first_tile && job.partials == nullptr;
    const RowSums& sums = is_first ? rows_ : tile_rows_;
    tile_.score(reader, keys, n, walk);
    for (std::int64_t r = 0; r < n; ++r) {
      *sums.row(r).largest = tile_.mask_and_find_largest(r, own_keys(job, r, tile), keys);
    }
    for (std::int64_t r = 0; r < n; ++r) {
      *sums.row(r).total = tile_.weigh(r, keys, *sums.row(r).largest);
    }
    tile_.weigh_values(reader, keys, n, sums);
    if (job.partials != nullptr) {
      std::copy_n(tile_rows_.begin, n * tile_rows_.row_size,
                  job.partials + (tile - job.first_tile) * n * tile_rows_.row_size);
      return;
    }
    for (std::int64_t r = 0; r < n; ++r) {
      const bool is_empty = own_keys(job, r, tile).empty();
      if (is_first) {
        if (is_empty) clear(r, 1);
      } else if (!is_empty) {
        merge(rows_.row(r), tile_rows_.row(r), width_);
      }
    }
  }

  Span own_keys(const AttentionJob& job, std::int64_t r, std::int64_t tile) const {
    return call_.seen(job.sequence, job.begin + (group_ == 1 ? r : r / group_), tile);
  }

  void finish(const AttentionJob& job) const {
    E* out = static_cast<E*>(call_.out);
    for (std::int64_t r = 0; r < num_rows(job); ++r) {
      const RowSum row = rows_.row(r);
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
  const std::int64_t group_;
  const std::int64_t d_;
  const std::int64_t width_;
  Tile tile_;
  const RowSums rows_;
  const RowSums tile_rows_;  // of the tile alone
  T* const zeros_;
};

}  // namespace tandem
