// How one call of attention is divided: jobs, tiles of jobs, and which thread computes which.
//
//   job = some consecutive queries of one sequence x all query heads of one KV head
//   costs   |--job 0--|-job 1-|----job 2 (long)----| ...     laid end to end, cut evenly
//   threads |------ 0 -----|------ 1 ------|------ 2 ------|
//
// A decode job may be cut between tiles: its tiles' results are then kept apart and merged after
// all threads have ended, in the order of the tiles as ever. So cuts never show in the result.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

// The batch of interface.py's AttentionMeta, and the shapes that go with it.
struct AttentionShape {
  const std::int32_t* query_starts;
  const std::int32_t* context_lens;
  const std::int32_t* block_tables;
  std::int64_t num_sequences;
  std::int64_t table_width;
  std::int64_t window;  // 0: none
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  std::int64_t block_size;
  std::int64_t block_stride;  // elements of a cache from one block to the next
  std::int64_t head_stride;   // and from one KV head to the next

  std::int64_t group() const { return num_heads / num_kv_heads; }
  // Where query row `row` of sequence `s` stands in its context.
  std::int64_t position(std::int64_t s, std::int64_t row) const {
    return context_lens[s] - query_starts[s + 1] + row;
  }
  // The first key that the query at `position` sees.
  std::int64_t first_key(std::int64_t position) const {
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
};

struct AttentionJob {
  std::int64_t sequence;
  std::int64_t kv_head;
  std::int64_t begin, end;  // query rows
  std::int64_t first_tile, end_tile;
  std::int64_t cost_begin, cost_of_tile;
  float* partials = nullptr;  // set where threads share the job: [tiles][partial_size]

  bool can_be_cut() const { return end - begin == 1; }
  std::int64_t cost() const { return (end_tile - first_tile) * cost_of_tile; }
};

// Some tiles of a job, at least one.
struct JobShare {
  const AttentionJob* job;
  std::int64_t begin, end;
};

class AttentionPlan {
 public:
  AttentionPlan(const AttentionShape& shape, int num_threads);

  const std::vector<AttentionJob>& jobs() const { return jobs_; }
  int num_parts() const { return num_parts_; }
  bool has_partials() const { return !partials_.empty(); }
  // What `part` computes.
  std::vector<JobShare> shares(int part) const;
  // Gives the jobs that are cut memory for their tiles' results.
  void keep_partials(std::int64_t floats_per_tile);

 private:
  void add_sequence(const AttentionShape& shape, std::int64_t s);
  JobShare share(const AttentionJob& job, int part) const;
  std::int64_t cut(int part) const { return total_cost_ * part / num_parts_; }

  std::vector<AttentionJob> jobs_;
  std::vector<float> partials_;
  std::int64_t total_cost_ = 0;
  int num_parts_ = 1;
};

// Query rows (tokens x heads) of a job: enough to pay for packing its keys, few enough for caches.
constexpr std::int64_t kJobRows = 192;

inline std::int64_t job_tokens(std::int64_t group) {
  return group >= kJobRows ? 1 : kJobRows / group;
}

}  // namespace tandem
