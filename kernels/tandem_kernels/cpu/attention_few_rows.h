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
        tile_(with_room(call, scratch), max_rows(call), most_heads_of_few(call), scratch),
        all_rows_(scratch.take<float>(most_heads_of_few(call) * max_rows(call) * row_size(call))),
        tile_rows_{scratch.take<float>(max_rows(call) * row_size(call)), row_size(call)},
        zeros_(scratch.take<T>(width_)) {
    std::fill_n(zeros_, width_, T{});
  }

  // Floats that `partials` of a job need for each of its tiles and KV heads.
  static std::int64_t partial_size(const AttentionCall& call) {
    return call.group() * row_size(call);
  }

  // All of the jobs, or some tiles of a shared one into its partials.
  void compute(const TileRange& range) {
    TileWalk walk(call_, range);
    for (const AttentionJob* job = range.first; job != range.end; ++job) {
      for (std::int64_t head = 0; head < job->num_kv_heads; ++head) load_queries(*job, head);
      for (std::int64_t tile = range.first_tile_of(*job); tile < range.end_tile_of(*job); ++tile) {
        for (std::int64_t head = 0; head < job->num_kv_heads; ++head) {
          add_tile(*job, head, tile, walk);
        }
        walk.advance();
      }
      if (job->partials != nullptr) continue;
      for (std::int64_t head = 0; head < job->num_kv_heads; ++head) finish(*job, head);
    }
  }

  // Merges the partials of a job that several parts computed.
  void merge_partials(const AttentionJob& job) {
    const std::int64_t n = num_rows(job);
    for (std::int64_t head = 0; head < job.num_kv_heads; ++head) {
      const RowSums rows = rows_of(head);
      clear(rows, 0, n);
      for (std::int64_t tile = 0; tile < job.num_tiles(); ++tile) {
        const RowSums partials = partials_of(job, head, job.first_tile + tile);
        for (std::int64_t r = 0; r < n; ++r) merge(rows.row(r), partials.row(r), width_);
      }
      finish(job, head);
    }
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
    const std::int64_t heads = most_heads_of_few(call);
    scratch.reset(Tile::scratch_bytes(call, rows, heads) +
                  Scratch::measure<float>(heads * rows * row_size(call)) +
                  Scratch::measure<float>(rows * row_size(call)) +
                  Scratch::measure<T>(padded_width(call.cache.head_dim)));
    return call;
  }

  std::int64_t num_rows(const AttentionJob& job) const { return (job.end - job.begin) * group_; }

  RowSums rows_of(std::int64_t head) const {
    const std::int64_t row_size = tile_rows_.row_size;
    return {all_rows_ + head * max_rows(call_) * row_size, row_size};
  }

  RowSums partials_of(const AttentionJob& job, std::int64_t head, std::int64_t tile) const {
    const std::int64_t index = (tile - job.first_tile) * job.num_kv_heads + head;
    return {job.partials + index * partial_size(call_), tile_rows_.row_size};
  }

  void clear(const RowSums& rows, std::int64_t first, std::int64_t n) const {
    std::fill_n(rows.row(first).largest, n * rows.row_size, 0.0f);
    for (std::int64_t r = first; r < first + n; ++r) *rows.row(r).largest = kUnseen;
  }

  std::int64_t query_head(const AttentionJob& job, std::int64_t head, std::int64_t r) const {
    return (job.kv_head + head) * group_ + r % group_;
  }

  // Row r = token x group + head, as in the tensor.
  void load_queries(const AttentionJob& job, std::int64_t head) {
    const E* q = static_cast<const E*>(call_.q);
    tile_.select(head);
    for (std::int64_t r = 0; r < num_rows(job); ++r) {
      const std::int64_t token = job.begin + r / group_;
      tile_.load_query(r, q + token * call_.q_stride + query_head(job, head, r) * d_);
    }
  }

  void add_tile(const AttentionJob& job, std::int64_t head, std::int64_t tile, TileWalk& walk) {
    const TileRuns& runs = walk.current();
    const TileReader<T> reader(call_, runs, head, zeros_);
    const Span keys = runs.keys.widened();
    const std::int64_t n = num_rows(job);
    const RowSums rows = rows_of(head);
    // Nothing to merge the first tile with
    const bool is_first = tile == job.first_tile && job.partials == nullptr;
    const RowSums& sums = is_first ? rows : tile_rows_;
    tile_.select(head);
    tile_.score(reader, keys, n, walk);
    for (std::int64_t r = 0; r < n; ++r) {
      *sums.row(r).largest = tile_.mask_and_find_largest(r, own_keys(job, r, tile), keys);
    }
    for (std::int64_t r = 0; r < n; ++r) {
      *sums.row(r).total = tile_.weigh(r, keys, *sums.row(r).largest);
    }
    tile_.weigh_values(reader, keys, n, sums, walk);
    if (job.partials != nullptr) {
      std::copy_n(tile_rows_.begin, n * tile_rows_.row_size,
                  partials_of(job, head, tile).begin);
      return;
    }
    for (std::int64_t r = 0; r < n; ++r) {
      const bool is_empty = own_keys(job, r, tile).empty();
      if (is_first) {
        if (is_empty) clear(rows, r, 1);
      } else if (!is_empty) {
        merge(rows.row(r), tile_rows_.row(r), width_);
      }
    }
  }

  Span own_keys(const AttentionJob& job, std::int64_t r, std::int64_t tile) const {
    return call_.seen(job.sequence, job.begin + (group_ == 1 ? r : r / group_), tile);
  }

  void finish(const AttentionJob& job, std::int64_t head) const {
    E* out = static_cast<E*>(call_.out);
    for (std::int64_t r = 0; r < num_rows(job); ++r) {
      const RowSum row = rows_of(head).row(r);
      const std::int64_t token = job.begin + r / group_;
      E* to = out + (token * call_.attention.num_heads + query_head(job, head, r)) * d_;
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
  float* const all_rows_;  // [KV heads][rows][row_size]
  const RowSums tile_rows_;  // of the tile alone
  T* const zeros_;
};

}  // namespace tandem
