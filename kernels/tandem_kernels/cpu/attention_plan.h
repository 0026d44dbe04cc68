// How one call of attention is divided: jobs, tiles of jobs, and parts that threads take.
//
//   job   = some consecutive queries of one sequence x all query heads of one KV head
//   part  = some jobs, or some tiles of a decode job; longest first, so that threads end together
//
// The results of a decode job's tiles are kept apart where parts share the job, and merged after
// all parts have ended, in the order of the tiles as ever: cuts never show in the result.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_call.h"

namespace tandem {

struct AttentionJob {
  std::int64_t sequence;
  std::int64_t kv_head;
  std::int64_t begin, end;  // query rows
  std::int64_t first_tile, end_tile;
  std::int64_t cost;
  float* partials;  // set where parts share the job: [tiles][partial size]

  bool can_be_cut() const { return end - begin == 1; }
  std::int64_t num_tiles() const { return end_tile - first_tile; }
  // The keys of `tile` that some of its queries see.
  Span read(const AttentionCall& call, std::int64_t tile) const {
    return {call.seen(sequence, begin, tile).begin, call.seen(sequence, end - 1, tile).end};
  }
};

// Jobs first .. end of the plan; of a single one, perhaps only some tiles.
struct AttentionPart {
  std::int64_t first, end;
  std::int64_t first_tile, end_tile;  // of a shared job
  std::int64_t cost;
};

// Kept from call to call, so that planning allocates nothing.
class AttentionPlan {
 public:
  // `floats_per_tile` is what a shared job's partials need for each of its tiles.
  void make(const AttentionCall& call, int num_threads, std::int64_t floats_per_tile);

  const std::vector<AttentionJob>& jobs() const { return jobs_; }
  const std::vector<AttentionPart>& parts() const { return parts_; }
  bool has_partials() const { return num_partials_ > 0; }

 private:
  std::int64_t add_jobs(const AttentionCall& call, std::int64_t s);
  void add_parts(std::int64_t target);
  void share(std::int64_t job, std::int64_t target);
  void place_partials(std::int64_t floats_per_tile);

  std::vector<AttentionJob> jobs_;
  std::vector<AttentionPart> parts_;
  std::vector<float> partials_;
  std::int64_t num_partials_ = 0;  // tiles
};

// Query rows (tokens x heads) of a job: enough that packing its keys costs little (under 1 %), few
// enough that their sums stay in the second-level cache beside a tile (400 kB with heads of 128).
constexpr std::int64_t kJobRows = 384;

inline std::int64_t job_tokens(std::int64_t group) {
  return group >= kJobRows ? 1 : kJobRows / group;
}

}  // namespace tandem
