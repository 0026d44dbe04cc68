// Cuts a batch into jobs, and jobs into equal shares for threads.
#include "attention_plan.h"

#include <algorithm>

#include "attention_words.h"

namespace tandem {
namespace {

// Packing a tile costs as much as computing some eight rows with it.
constexpr std::int64_t kPackingRows = 8;
// A thread is woken for no less: some four tiles of one decode row, about 10 us.
constexpr std::int64_t kMinCost = 4 * (kPackingRows + 3);

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

AttentionPlan::AttentionPlan(const AttentionShape& shape, int num_threads) {
  for (std::int64_t s = 0; s < shape.num_sequences; ++s) add_sequence(shape, s);
  const std::int64_t affordable = std::max<std::int64_t>(1, total_cost_ / kMinCost);
  num_parts_ = static_cast<int>(std::min<std::int64_t>(num_threads, affordable));
}

void AttentionPlan::add_sequence(const AttentionShape& shape, std::int64_t s) {
  const std::int64_t step = job_tokens(shape.group());
  for (std::int64_t head = 0; head < shape.num_kv_heads; ++head) {
    for (std::int64_t begin = shape.query_starts[s]; begin < shape.query_starts[s + 1];
         begin += step) {
      AttentionJob job{};
      job.sequence = s;
      job.kv_head = head;
      job.begin = begin;
      job.end = std::min<std::int64_t>(begin + step, shape.query_starts[s + 1]);
      job.first_tile = shape.first_key(shape.position(s, job.begin)) / kTile;
      job.end_tile = shape.position(s, job.end - 1) / kTile + 1;
      job.cost_begin = total_cost_;
      job.cost_of_tile = (job.end - job.begin) * shape.group() + kPackingRows;
      total_cost_ += job.cost();
      jobs_.push_back(job);
    }
  }
}

std::vector<JobShare> AttentionPlan::shares(int part) const {
  std::vector<JobShare> all;
  for (const AttentionJob& job : jobs_) {
    const JobShare tiles = share(job, part);
    if (tiles.begin < tiles.end) all.push_back(tiles);
  }
  return all;
}

// The tiles of `job` that `part` computes; may be none.
JobShare AttentionPlan::share(const AttentionJob& job, int part) const {
  const std::int64_t begin = cut(part) - job.cost_begin, end = cut(part + 1) - job.cost_begin;
  if (!job.can_be_cut()) {
    const bool starts_here = begin <= 0 && 0 < end;
    return {&job, job.first_tile, starts_here ? job.end_tile : job.first_tile};
  }
  // A tile belongs where it starts
  const auto tile_at = [&](std::int64_t cost) {
    const std::int64_t tiles = ceil_div(std::max<std::int64_t>(cost, 0), job.cost_of_tile);
    return std::min(job.first_tile + tiles, job.end_tile);
  };
  return {&job, tile_at(begin), tile_at(end)};
}

void AttentionPlan::keep_partials(std::int64_t floats_per_tile) {
  std::vector<std::size_t> offsets;
  std::size_t size = 0;
  std::vector<AttentionJob*> cut_jobs;
  for (AttentionJob& job : jobs_) {
    bool is_cut = false;
    for (int part = 1; part < num_parts_; ++part) {
      is_cut |= job.cost_begin < cut(part) && cut(part) < job.cost_begin + job.cost();
    }
    if (!is_cut || !job.can_be_cut()) continue;
    cut_jobs.push_back(&job);
    offsets.push_back(size);
    size += static_cast<std::size_t>((job.end_tile - job.first_tile) * floats_per_tile);
  }
  partials_.resize(size);
  for (std::size_t i = 0; i < cut_jobs.size(); ++i) {
    cut_jobs[i]->partials = partials_.data() + offsets[i];
  }
}

}  // namespace tandem
