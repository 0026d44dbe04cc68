// One token from one row of logits: what is asked for, and the steps of choosing it.
//
// Every function reads one row and nothing else, in an order that follows from its length alone: a
// row's token and log-probabilities are the same in any batch and on any number of threads.
#pragma once

#include <cstdint>

namespace tandem {

// Field by field what sampling.py packs; first what changes from token to token.
struct SamplingRow {
  std::int64_t logits_row;
  const std::int32_t* seen_ids;  // tokens of prompt and output, each once; only with penalties
  const std::int32_t* seen_counts;  // how often each is in the output
  std::int64_t num_seen;
  const std::uint32_t* allowed;  // bit i of word i / 32: token i may be drawn; null: all may
  std::uint32_t choice;
  std::uint32_t position;

  std::uint64_t seed;
  const std::int32_t* bias_ids;
  const float* biases;
  std::int64_t num_biases;
  const std::int32_t* stop_ids;  // forbidden before `min_tokens`
  std::int64_t num_stops;
  const std::int32_t* forbidden_ids;  // never sampled
  std::int64_t num_forbidden;
  const std::int32_t* allowed_ids;  // no others are sampled; none: all are
  std::int64_t num_allowed;
  double top_p;
  double presence_penalty;
  double frequency_penalty;
  float repetition_penalty;
  float temperature;  // 0: greedy
  float min_p;
  std::uint32_t min_tokens;
  std::int32_t top_k;  // 0: the whole vocabulary
  std::int32_t num_top;  // alternatives to report; -1: no log-probabilities at all
};

struct Best {
  float value;
  std::int64_t id;  // the first of equals
  bool finite;  // false with any NaN too
};

Best best_token(const float* logits, std::int64_t vocab_size);

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC'11): a number in [0, 1) with 53 random bits.
double uniform_number(std::uint64_t seed, std::uint32_t choice, std::uint32_t position);

// A token drawn by inverting the cumulative distribution in vocabulary order: a token's weight is
// e^((logit - best) / temperature) if that is at least min_p, and it is among the top_k best, and
// the ones before it in that order have less than top_p of the mass left by the other two.
std::int64_t draw_token(const float* logits, std::int64_t vocab_size, float best,
                        const SamplingRow& row);

// Ids of the `count` <= vocab_size best tokens: higher logit first, then lower id.
void top_tokens(const float* logits, std::int64_t vocab_size, std::int64_t count,
                std::int32_t* ids);

// Log of the sum of e^(logit - best).
double log_sum_exp(const float* logits, std::int64_t vocab_size, float best);

}  // namespace tandem
