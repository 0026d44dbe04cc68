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

// Memory to be asked for while a tile is computed, a little at every step: kLines cache lines at a
// time, one where reading takes longest, as loads that come between wait for what was asked for at
// once. All inline: a call would make a loop's sums leave their registers.
template <int kLines>
class FetchSteps {
 public:
  // Of so many runs at most.
  static constexpr std::int64_t kMostRuns = 4 * kTile / kRunKeys;

  // Forgets what is left. From now on runs are as long as this.
  void clear(std::int64_t run_bytes) {
    run_bytes_ = run_bytes;
    num_runs_ = next_ = line_ = 0;
  }

  void add(const TileRuns& tile, const TandemLayerCache& cache, Span runs, bool values) {
    const std::int64_t delta = values ? tile.delta : 0;
    for (std::int64_t run = runs.begin; run < runs.end; ++run) {
      const char* from = tile.runs[run] + delta;
      const void* beside = tile.scales_of(cache, run, values);
      runs_[num_runs_++] = {from, beside == nullptr ? from : beside};
    }
  }

  // What all steps weigh together, by the time that passes between one and the next.
  void divide(std::int64_t total_weight) {
    due_ = 0;
    const std::int64_t pieces = (run_bytes_ + kLines * kLineBytes - 1) / (kLines * kLineBytes);
    due_per_weight_ = num_runs_ * pieces * kWhole / total_weight;
  }

  [[gnu::always_inline]] void step(std::int64_t weight) {
    due_ += weight * due_per_weight_;
    for (; due_ >= kWhole && next_ < num_runs_; due_ -= kWhole) {
      const Run& run = runs_[next_];
      if (line_ == 0) __builtin_prefetch(run.beside, 0, 2);
#pragma GCC unroll 2
      for (int i = 0; i < kLines; ++i) __builtin_prefetch(run.from + line_ + i * kLineBytes, 0, 2);
      line_ += kLines * kLineBytes;
      if (line_ >= run_bytes_) {
        line_ = 0;
        ++next_;
      }
    }
  }

 private:
  static constexpr std::int64_t kLineBytes = 64;
  static constexpr std::int64_t kWhole = 1 << 16;

  struct Run {
    const char* from;
    const void* beside;  // the scales
  };

  std::int64_t run_bytes_ = 0, num_runs_ = 0;
  std::int64_t next_ = 0, line_ = 0;           // a run, and how many bytes of it were asked for
  std::int64_t due_ = 0, due_per_weight_ = 0;  // pieces x kWhole
  Run runs_[kMostRuns];
};

// Walks over the tiles of a range and asks for memory some way ahead, tile by tile first all keys,
// then all values. Runs of a paged cache are too short for the hardware to see where they lead.
class TileWalk {
 public:
  TileWalk(const AttentionCall& call, const TileRange& range)
      : call_(call),
        range_(range),
        job_(range.first),
        tile_(range.first_tile_of(*range.first)),
        run_bytes_(kRunKeys * call.cache.head_dim * value_bytes(call.cache.type)),
        wanted_lead_(kAheadBytes / run_bytes_ * kRunKeys) {
    find_tile();
    prefetch(kFirstRuns);
  }

  const TileRuns& current() const { return places_[current_ % kPlaces]; }

  // On to the next tile.
  void advance() {
    if (++current_ == found_) find_tile();
  }

  // To be told before the keys of the current tile and their values are read: sets what to ask for while
  // it is computed, in steps that weigh so much together. At most twice as much as the tile uses up.
  template <class Steps>
  void use_tile(Steps& steps, std::int64_t total_weight) {
    const Span keys = current().keys.widened();
    const std::int64_t used = 2 * (keys.end - keys.begin);
    lead_ -= used;
    steps.clear(run_bytes_);
    fetch(2 * used / kRunKeys, [&](const TileRuns& tile, Span runs, bool values) {
      steps.add(tile, call_.cache, runs, values);
    });
    steps.divide(total_weight);
  }

 private:
  // What memory delivers while it answers: measured with pieces of 2 kB, 80 kB or more ahead reach 25 GB/s
  // on one core, 16 kB 20 GB/s and none 12 GB/s (Zen 4).
  static constexpr std::int64_t kAheadBytes = 128 * 1024;
  static constexpr std::int64_t kFirstRuns = 8;
  static constexpr std::int64_t kPlaces = 8;  // tiles known at a time

  void prefetch(std::int64_t num_runs) {
    fetch(num_runs, [&](const TileRuns& tile, Span runs, bool values) {
      for (std::int64_t run = runs.begin; run < runs.end; ++run) {
        tile.prefetch(call_.cache, run, run_bytes_, values);
      }
    });
  }

  // ask(tile, runs, whether of values) for up to so many runs.
  template <class Ask>
  void fetch(std::int64_t num_runs, const Ask& ask) {
    while (num_runs > 0 && lead_ < wanted_lead_) {
      if (fetched_ == found_ && (found_ == current_ + kPlaces || !find_tile())) return;
      const TileRuns& place = places_[fetched_ % kPlaces];
      const std::int64_t first = place.keys.begin / kRunKeys + runs_fetched_;
      const std::int64_t end = (place.keys.end + kRunKeys - 1) / kRunKeys;
      const std::int64_t wanted = (wanted_lead_ - lead_ + kRunKeys - 1) / kRunKeys;
      const std::int64_t number = std::min({num_runs, wanted, end - first});
      ask(place, Span{first, first + number}, values_);
      num_runs -= number;
      lead_ += number * kRunKeys;
      runs_fetched_ += number;
      if (first + number < end) continue;
      // Keys are used in whole vectors, runs or not
      const Span used = place.keys.widened();
      lead_ += used.end - used.begin - runs_fetched_ * kRunKeys;
      runs_fetched_ = 0;
      if (values_) ++fetched_;
      values_ = !values_;
    }
  }

  // Locates the tile after the one that was found last; false if there is none.
  bool find_tile() {
    if (job_ == range_.end) return false;
    places_[found_ % kPlaces].locate(call_, job_->sequence, job_->kv_head, tile_,
                                     job_->read(call_, tile_));
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
  const std::int64_t wanted_lead_;  // keys or values
  TileRuns places_[kPlaces];
  // Tiles, counted from the first
  std::int64_t current_ = 0, found_ = 0, fetched_ = 0;
  // Of the keys of tile `fetched_`, or of its values
  std::int64_t runs_fetched_ = 0;
  bool values_ = false;
  std::int64_t lead_ = 0;  // keys or values asked for and not yet used
};

}  // namespace tandem
