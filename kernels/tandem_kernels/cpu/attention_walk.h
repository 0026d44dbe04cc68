// The order in which decode reads the cache, and fetching what comes next in it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention_plan.h"
#include "attention_rows.h"

namespace tandem {

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

// Memory to be asked for while a tile is computed, a little at every step. All inline: a call would
// make a loop's sums leave their registers.
class FetchSteps {
 public:
  // Forgets what is left.
  void clear() { num_pieces_ = next_ = 0; }

  void add(const char* run, std::int64_t run_bytes, const Bfloat16* scales) {
    for (std::int64_t i = 0; i < run_bytes; i += kPieceBytes) {
      // Longer runs are cut: so much is enough for them
      if (num_pieces_ == kMostPieces) return;
      pieces_[num_pieces_++] = {run + i, scales == nullptr ? run : static_cast<const void*>(scales)};
    }
  }

  // What all steps weigh together, by the time that passes between one and the next.
  void divide(std::int64_t total_weight) {
    due_ = 0;
    due_per_weight_ = num_pieces_ * kWhole / total_weight;
  }

  [[gnu::always_inline]] void step(std::int64_t weight) {
    due_ += weight * due_per_weight_;
    for (; due_ >= kWhole && next_ < num_pieces_; due_ -= kWhole, ++next_) {
      const Piece& piece = pieces_[next_];
      __builtin_prefetch(piece.from, 0, 2);
      __builtin_prefetch(piece.from + 64, 0, 2);
      __builtin_prefetch(piece.from + 128, 0, 2);
      __builtin_prefetch(piece.from + 192, 0, 2);
      __builtin_prefetch(piece.beside, 0, 2);
    }
  }

 private:
  static constexpr std::int64_t kPieceBytes = 256;
  static constexpr std::int64_t kMostPieces = 512;
  static constexpr std::int64_t kWhole = 1 << 16;

  struct Piece {
    const char* from;
    const void* beside;  // the scales
  };

  std::int64_t num_pieces_ = 0, next_ = 0;
  std::int64_t due_ = 0, due_per_weight_ = 0;  // pieces x kWhole
  Piece pieces_[kMostPieces];
};

// Walks over the tiles of a range and asks for memory some way ahead. Runs of a paged cache are too
// short for the hardware to see where they lead, so what lies side by side is asked for one after
// the other: of each block the keys of all heads of the job, then their values.
class TileWalk {
 public:
  TileWalk(const AttentionCall& call, const TileRange& range)
      : call_(call),
        range_(range),
        job_(range.first),
        tile_(range.first_tile_of(*range.first)),
        run_bytes_(kRunKeys * call.cache.head_dim * value_bytes(call.cache.type)),
        block_runs_(call.cache.block_size / kRunKeys),
        wanted_lead_(kAheadBytes / run_bytes_ * kRunKeys) {
    find_tile();
    prefetch(kFirstRuns);
  }

  const TileRuns& current() const { return places_[current_ % kPlaces].runs; }

  // On to the next tile.
  void advance() {
    if (++current_ == found_) find_tile();
  }

  // To be told whenever `num_keys` keys of a head of the current tile, or their values, are about to
  // be read.
  void used(std::int64_t num_keys) {
    lead_ -= num_keys;
    // At most twice as fast as what is used up, so that requests don't queue
    prefetch(2 * num_keys / kRunKeys);
  }

  // The same for all keys of a head and their values: sets what to fetch in steps that weigh so much.
  void use_tile(FetchSteps& steps, std::int64_t total_weight) {
    const Span keys = current().keys.widened();
    const std::int64_t used = 2 * (keys.end - keys.begin);
    lead_ -= used;
    steps.clear();
    fetch(2 * used / kRunKeys, [&](const char* run, const Bfloat16* scales) {
      steps.add(run, run_bytes_, scales);
    });
    steps.divide(total_weight);
  }

 private:
  // What memory delivers while it answers: measured with pieces of 2 kB, 80 kB or more ahead reach 25 GB/s
  // on one core, 16 kB 20 GB/s and none 12 GB/s (Zen 4).
  static constexpr std::int64_t kAheadBytes = 96 * 1024;
  static constexpr std::int64_t kFirstRuns = 8;
  static constexpr std::int64_t kPlaces = 8;  // tiles known at a time

  struct Place {
    TileRuns runs;
    std::int64_t num_heads;
  };

  void prefetch(std::int64_t num_runs) {
    fetch(num_runs, [&](const char* run, const Bfloat16* scales) {
      for (std::int64_t i = 0; i < run_bytes_; i += 64) __builtin_prefetch(run + i, 0, 2);
      if (scales != nullptr) __builtin_prefetch(scales, 0, 2);
    });
  }

  // ask(run, its scales) for up to so many runs.
  template <class Ask>
  void fetch(std::int64_t num_runs, const Ask& ask) {
    for (; num_runs > 0 && lead_ < wanted_lead_ + whole_lead_; --num_runs) {
      if (fetched_ == found_ && (found_ == current_ + kPlaces || !find_tile())) return;
      const Place& place = places_[fetched_ % kPlaces];
      const std::int64_t end = (place.runs.keys.end + kRunKeys - 1) / kRunKeys;
      if (block_end_ == 0) begin_place(place.runs.keys.begin / kRunKeys, end, place.num_heads);
      ask(place.runs.run_of(call_.cache, run_, head_, values_),
          place.runs.scales_of(call_.cache, run_, head_, values_));
      lead_ += kRunKeys;
      if (++run_ < block_end_) continue;
      run_ = block_begin_;
      if (is_first()) {
        // As it is read
        values_ = !values_;
        if (values_ || ++head_ < place.num_heads) continue;
      } else {
        if (++head_ < place.num_heads) continue;
        head_ = 0;
        values_ = !values_;
        if (values_) continue;
      }
      head_ = 0;
      run_ = block_begin_ = block_end_;
      block_end_ = std::min(block_end_ + block_runs_, end);
      if (run_ < end) continue;
      // Keys are used in whole vectors, runs or not
      const Span used = place.runs.keys.widened();
      const std::int64_t read = end - place.runs.keys.begin / kRunKeys;
      lead_ += 2 * place.num_heads * (used.end - used.begin - read * kRunKeys);
      block_end_ = 0;
      ++fetched_;
    }
  }

  bool is_first() const { return fetched_ == 0; }

  void begin_place(std::int64_t first, std::int64_t end, std::int64_t num_heads) {
    run_ = block_begin_ = first;
    block_end_ = is_first() ? end : std::min((first / block_runs_ + 1) * block_runs_, end);
    // A tile is used by heads, and asked for by blocks
    whole_lead_ = 2 * kTile * num_heads;
  }

  // Locates the tile after the one that was found last; false if there is none.
  bool find_tile() {
    if (job_ == range_.end) return false;
    Place& place = places_[found_ % kPlaces];
    place.runs.locate(call_, job_->sequence, job_->kv_head, tile_, job_->read(call_, tile_));
    place.num_heads = job_->num_kv_heads;
    ++found_;
    if (++tile_ < range_.end_tile_of(*job_)) return true;
    if (++job_ != range_.end) tile_ = range_.first_tile_of(*job_);
    return true;
  }

  const AttentionCall& call_;
  const TileRange range_;
  // The tile to be found next
  const AttentionJob* job_;
  std::int64_t tile_;
  const std::int64_t run_bytes_;
  const std::int64_t block_runs_;
  const std::int64_t wanted_lead_;  // keys or values
  std::int64_t whole_lead_ = 0;     // keys and values of the tile that is fetched
  Place places_[kPlaces];
  // Tiles, counted from the first
  std::int64_t current_ = 0, found_ = 0, fetched_ = 0;
  // What is fetched next of tile `fetched_`; block_end_ is 0 before the first
  std::int64_t run_ = 0, block_begin_ = 0, block_end_ = 0;  // runs
  std::int64_t head_ = 0;
  bool values_ = false;
  std::int64_t lead_ = 0;  // keys or values asked for and not yet used
};

}  // namespace tandem
