// From logits to tokens, row by row: edits, the choice, log-probabilities of the model's own logits.
#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "sampling_scan.h"
#include "scratch.h"
#include "thread_pool.h"

namespace tandem {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool has_penalties(const SamplingRow& row) {
  return row.repetition_penalty != 1.0f || row.presence_penalty != 0 || row.frequency_penalty != 0;
}

bool may_not_stop(const SamplingRow& row) { return row.position < row.min_tokens; }

bool needs_edits(const SamplingRow& row) {
  return row.num_biases > 0 || has_penalties(row) || row.allowed != nullptr ||
         (may_not_stop(row) && row.num_stops > 0) || row.num_forbidden > 0 || row.num_allowed > 0;
}

void forbid(float* logits, std::int64_t vocab_size, const std::int32_t* ids, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (ids[i] < vocab_size) logits[ids[i]] = kNever;
  }
}

void copy_allowed(const float* logits, std::int64_t vocab_size, const SamplingRow& row,
                  float* copy) {
  if (row.num_allowed == 0) {
    std::copy(logits, logits + vocab_size, copy);
    return;
  }
  std::fill(copy, copy + vocab_size, kNever);
  for (std::int64_t i = 0; i < row.num_allowed; ++i) {
    const std::int32_t id = row.allowed_ids[i];
    if (id < vocab_size) copy[id] = logits[id];
  }
}

void forbid_by_mask(float* logits, std::int64_t vocab_size, const std::uint32_t* allowed) {
  for (std::int64_t begin = 0; begin < vocab_size; begin += 32) {
    const std::uint32_t bits = allowed[begin / 32];
    const std::int64_t count = std::min<std::int64_t>(32, vocab_size - begin);
    if (bits == 0xffffffffu) continue;
    for (std::int64_t i = 0; i < count; ++i) {
      logits[begin + i] = bits >> i & 1 ? logits[begin + i] : kNever;
    }
  }
}

bool any_left(const float* logits, std::int64_t vocab_size) {
  return std::any_of(logits, logits + vocab_size, [](float logit) { return logit != kNever; });
}

// Bias, then penalties, then what is forbidden. Ids outside the vocabulary have no effect.
void edit(float* logits, std::int64_t vocab_size, const SamplingRow& row, bool may_stop) {
  for (std::int64_t i = 0; i < row.num_biases; ++i) {
    if (row.bias_ids[i] < vocab_size) logits[row.bias_ids[i]] += row.biases[i];
  }
  if (has_penalties(row)) {
    for (std::int64_t i = 0; i < row.num_seen; ++i) {
      if (row.seen_ids[i] >= vocab_size) continue;
      float& logit = logits[row.seen_ids[i]];
      const int count = row.seen_counts[i];
      logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
      logit -= static_cast<float>(row.frequency_penalty * count +
                                  row.presence_penalty * static_cast<double>(count > 0));
    }
  }
  if (row.allowed != nullptr) forbid_by_mask(logits, vocab_size, row.allowed);
  if (!may_stop) forbid(logits, vocab_size, row.stop_ids, row.num_stops);
  forbid(logits, vocab_size, row.forbidden_ids, row.num_forbidden);
}

// The row itself, or this thread's edited copy of it.
const float* edited(const float* logits, std::int64_t vocab_size, const SamplingRow& row) {
  if (!needs_edits(row)) return logits;
  static thread_local Scratch scratch;
  scratch.reset(Scratch::measure<float>(vocab_size));
  float* copy = scratch.take<float>(vocab_size);
  copy_allowed(logits, vocab_size, row, copy);
  edit(copy, vocab_size, row, !may_not_stop(row));
  if (row.allowed != nullptr && may_not_stop(row) && !any_left(copy, vocab_size)) {
    // The mask leaves nothing but stopping: `min_tokens` gives way
    copy_allowed(logits, vocab_size, row, copy);
    edit(copy, vocab_size, row, true);
  }
  return copy;
}

// Where one row's results go; `tops` are row.num_top long.
struct Result {
  std::int64_t* token_id;  // -1: the logits have no finite maximum
  float* logprob;
  std::int32_t* top_ids;
  float* top_logprobs;
};

void report(const float* logits, std::int64_t vocab_size, const SamplingRow& row, Result result) {
  const Best best = best_token(logits, vocab_size);
  const double log_sum = log_sum_exp(logits, vocab_size, best.value);
  const auto logprob = [&](std::int64_t id) {
    return static_cast<float>(static_cast<double>(logits[id]) - static_cast<double>(best.value) -
                              log_sum);
  };
  *result.logprob = logprob(*result.token_id);
  const std::int64_t count = std::min<std::int64_t>(row.num_top, vocab_size);
  if (count > 0) top_tokens(logits, vocab_size, count, result.top_ids);
  for (std::int64_t i = 0; i < count; ++i) {
    result.top_logprobs[i] = logprob(result.top_ids[i]);
  }
}

void sample(const float* logits, std::int64_t vocab_size, const SamplingRow& row, Result result) {
  const float* used = edited(logits, vocab_size, row);
  const Best best = best_token(used, vocab_size);
  *result.token_id = -1;
  if (!best.finite) return;
  const bool greedy = row.temperature == 0.0f || row.top_k == 1;
  *result.token_id = greedy ? best.id : draw_token(used, vocab_size, best.value, row);
  if (row.num_top >= 0) report(logits, vocab_size, row, result);
}

}  // namespace

Best best_token(const float* logits, std::int64_t vocab_size) {
  float best = kNever;
  std::int64_t begin = 0;  // of the block with the best token
  Ints bad{};
  bool has_nan = false;
  for (std::int64_t b = 0; b < vocab_size; b += kVocabBlock) {
    const std::int64_t end = std::min(vocab_size, b + kVocabBlock);
    Floats largest = broadcast(kNever);
    std::int64_t i = b;
    for (; i + kLanes <= end; i += kLanes) {
      const Floats values = load(logits + i);
      largest = larger(largest, values);
      bad |= values != values;
    }
    float block_best = largest_lane(largest);
    for (; i < end; ++i) {
      block_best = logits[i] > block_best ? logits[i] : block_best;
      has_nan = has_nan || logits[i] != logits[i];
    }
    if (block_best > best) {
      best = block_best;
      begin = b;
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) has_nan = has_nan || bad[lane] != 0;
  if (has_nan || !std::isfinite(best)) return {best, 0, false};
  std::int64_t id = begin;
  while (logits[id] != best) ++id;
  return {best, id, true};
}

double uniform_number(std::uint64_t seed, std::uint32_t choice, std::uint32_t position) {
  constexpr std::uint64_t kMultipliers[] = {0xD2511F53u, 0xCD9E8D57u};
  constexpr std::uint32_t kWeyl[] = {0x9E3779B9u, 0xBB67AE85u};
  std::uint32_t counter[] = {position, choice, 0, 0};
  std::uint32_t key[] = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t left = kMultipliers[0] * counter[0], right = kMultipliers[1] * counter[2];
    counter[0] = static_cast<std::uint32_t>(right >> 32) ^ counter[1] ^ key[0];
    counter[1] = static_cast<std::uint32_t>(right);
    counter[2] = static_cast<std::uint32_t>(left >> 32) ^ counter[3] ^ key[1];
    counter[3] = static_cast<std::uint32_t>(left);
    key[0] += kWeyl[0];
    key[1] += kWeyl[1];
  }
  const std::uint64_t bits = static_cast<std::uint64_t>(counter[0] >> 5) << 26 | counter[1] >> 6;
  return static_cast<double>(bits) * 0x1p-53;
}

void top_tokens(const float* logits, std::int64_t vocab_size, std::int64_t count,
                std::int32_t* ids) {
  static thread_local Scratch scratch;
  scratch.reset(Scratch::measure<std::uint64_t>(count));
  std::uint64_t* best = scratch.take<std::uint64_t>(count);  // a heap, its smallest in front
  for (std::int64_t i = 0; i < count; ++i) best[i] = order_key(logits[i], i);
  std::make_heap(best, best + count, std::greater<>());
  float threshold = logits[id_of(best[0])];
  for_each_reaching(logits + count, vocab_size - count, threshold, [&](std::int64_t i) {
    const std::uint64_t key = order_key(logits[count + i], count + i);
    if (key < best[0]) return;
    std::pop_heap(best, best + count, std::greater<>());
    best[count - 1] = key;
    std::push_heap(best, best + count, std::greater<>());
    threshold = logits[id_of(best[0])];
  });
  std::sort(best, best + count, std::greater<>());
  for (std::int64_t i = 0; i < count; ++i) ids[i] = static_cast<std::int32_t>(id_of(best[i]));
}

double log_sum_exp(const float* logits, std::int64_t vocab_size, float best) {
  const Weigh weigh(best, 1.0f);
  ExactSum sum;
  std::int64_t i = 0;
  for (; i + kLanes <= vocab_size; i += kLanes) sum.add(weigh(load(logits + i)));
  for (; i < vocab_size; ++i) sum.add(weigh(logits[i]));
  return std::log(sum.total());
}

}  // namespace tandem

// logits [R, vocab_size] with rows `stride` apart; token_ids and logprobs [n]; top_ids and
// top_logprobs [n, max_top].
extern "C" void tandem_sample(const float* logits, std::int64_t stride, std::int64_t vocab_size,
                              const tandem::SamplingRow* rows, std::int64_t num_rows,
                              std::int64_t* token_ids, float* logprobs, std::int32_t* top_ids,
                              float* top_logprobs, std::int64_t max_top) {
  tandem::parallel_ranges(num_rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const tandem::Result result{token_ids + i, logprobs + i, top_ids + i * max_top,
                                  top_logprobs + i * max_top};
      tandem::sample(logits + rows[i].logits_row * stride, vocab_size, rows[i], result);
    }
  });
}
