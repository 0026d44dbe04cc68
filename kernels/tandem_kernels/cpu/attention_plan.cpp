// Cuts a batch into jobs, and jobs into parts for threads.
#include "attention_plan.h"

#include <algorithm>

namespace tandem {
namespace {

// Costs count rows of one tile. Reading and packing a tile costs as much as some eight of them.
constexpr std::int64_t kReadingRows = 8;
// No part is smaller: some four tiles of one decode row, about 10 us.
constexpr std::int64_t kMinPart = 4 * (kReadingRows + 3);
// Parts of a thread: what one of them is late, the others make up for.
constexpr std::int64_t kPartsPerThread = 8;

}  // namespace

void AttentionPlan::make(const AttentionCall& call, int num_threads,
                         std::int64_t floats_per_tile) {
  jobs_.clear();
  parts_.clear();
  num_partials_ = 0;
  std::int64_t total = 0;
  for (std::int64_t s = 0; s < call.batch.num_sequences; ++s) total += add_jobs(call, s);
  if (jobs_.empty()) return;
  if (num_threads == 1 || total < 2 * kMinPart) {
    parts_.push_back({0, static_cast<std::int64_t>(jobs_.size()), 0, 0, total});
    return;
  }
  add_parts(std::max(kMinPart, total / (num_threads * kPartsPerThread)));
  std::stable_sort(parts_.begin(), parts_.end(),
                   [](const AttentionPart& a, const AttentionPart& b) { return a.cost > b.cost; });
  if (num_partials_ > 0) place_partials(floats_per_tile);
}

// Returns what they cost.
std::int64_t AttentionPlan::add_jobs(const AttentionCall& call, std::int64_t s) {
  const std::int64_t step = job_tokens(call.group()), last = call.batch.query_starts[s + 1];
  std::int64_t total = 0;
  for (std::int64_t head = 0; head < call.cache.num_kv_heads; ++head) {
    for (std::int64_t begin = call.batch.query_starts[s]; begin < last; begin += step) {
      const std::int64_t end = std::min(begin + step, last);
      const std::int64_t first_tile = call.first_key(call.position(s, begin)) / kTile;
      const std::int64_t end_tile = call.position(s, end - 1) / kTile + 1;
      const std::int64_t cost = (end_tile - first_tile) * ((end - begin) * call.group() + kReadingRows);
      jobs_.push_back({s, head, begin, end, first_tile, end_tile, cost, nullptr});
      total += cost;
    }
  }
  return total;
}

// Neighbouring jobs share a part until it costs `target`; long ones are cut where they can be.
void AttentionPlan::add_parts(std::int64_t target) {
  AttentionPart open{};
  const auto close = [&](std::int64_t next) {
    if (open.cost > 0) parts_.push_back(open);
    open = {next, next, 0, 0, 0};
  };
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(jobs_.size()); ++i) {
    const AttentionJob& job = jobs_[i];
    if (job.can_be_cut() && job.num_tiles() > 1 && job.cost > 2 * target) {
      close(i + 1);
      share(i, target);
      continue;
    }
    if (open.cost + job.cost > target) close(i);
    open.end = i + 1;
    open.cost += job.cost;
  }
  close(0);
}

void AttentionPlan::share(std::int64_t index, std::int64_t target) {
  const AttentionJob& job = jobs_[index];
  const std::int64_t tile_cost = job.cost / job.num_tiles();
  const std::int64_t step = std::max<std::int64_t>(1, target / tile_cost);
  for (std::int64_t tile = job.first_tile; tile < job.end_tile; tile += step) {
    const std::int64_t end = std::min(tile + step, job.end_tile);
    parts_.push_back({index, index + 1, tile, end, (end - tile) * tile_cost});
  }
  num_partials_ += job.num_tiles();
}

void AttentionPlan::place_partials(std::int64_t floats_per_tile) {
  const std::size_t size = static_cast<std::size_t>(num_partials_ * floats_per_tile);
  if (partials_.size() < size) partials_.resize(size);
  float* place = partials_.data();
  for (const AttentionPart& part : parts_) {
    AttentionJob& job = jobs_[part.first];
    if (part.first_tile == part.end_tile || job.partials != nullptr) continue;
    job.partials = place;
    place += job.num_tiles() * floats_per_tile;
  }
}

}  // namespace tandem
