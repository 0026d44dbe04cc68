// Drawing one token: weights, what the filters leave, and the inverted cumulative distribution.
//
// Without top_k and top_p two passes do. With them the tokens that can matter are gathered first,
// those above a threshold that is lowered until they are enough, and the border between kept and
// dropped is found among them by selection (Hoare's FIND), by number and by mass: nothing is sorted.
#include <functional>

#include "sampling.h"
#include "sampling_scan.h"
#include "scratch.h"

namespace tandem {
namespace {

// Weights down to which tokens are gathered, relative to the best one's, until they are enough.
constexpr float kThresholds[] = {0x1p-4f, 0x1p-8f, 0x1p-13f, 0x1p-20f, 0x1p-149f};

struct Weights {
  float* of;  // [vocab_size]; 0 where min_p drops the token
  double* block_sums;
  std::int64_t vocab_size;

  std::int64_t num_blocks() const { return num_vocab_blocks(vocab_size); }
  double total() const {
    double total = 0;
    for (std::int64_t b = 0; b < num_blocks(); ++b) total += block_sums[b];
    return total;
  }
};

void fill(const Weights& weights, const float* logits, const Weigh& weigh, float min_p) {
  const Floats least = broadcast(min_p);
  for (std::int64_t b = 0; b < weights.num_blocks(); ++b) {
    const std::int64_t end = std::min(weights.vocab_size, (b + 1) * kVocabBlock);
    ExactSum sum;
    std::int64_t i = b * kVocabBlock;
    for (; i + kLanes <= end; i += kLanes) {
      const Floats all = weigh(load(logits + i));
      const Floats kept = all >= least ? all : Floats{};
      store(weights.of + i, kept);
      sum.add(kept);
    }
    for (; i < end; ++i) {
      const float all = weigh(logits[i]);
      weights.of[i] = all >= min_p ? all : 0.0f;
      sum.add(weights.of[i]);
    }
    weights.block_sums[b] = sum.total();
  }
}

// The first i of `size` whose cumulative weight exceeds `target`; if rounding hides it, the last one
// with any weight. weight_of(i) >= 0, and some are positive.
template <class WeightOf>
std::int64_t invert(std::int64_t size, double target, const WeightOf& weight_of) {
  double cumulative = 0;
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    const float weight = weight_of(i);
    if (weight == 0.0f) continue;
    last = i;
    cumulative += static_cast<double>(weight);
    if (cumulative > target) return i;
  }
  return last;
}

std::int64_t draw_from_all(const Weights& weights, double number) {
  const double target = number * weights.total();
  double before = 0, cumulative = 0;
  std::int64_t block = 0;  // the last one with any weight, where rounding hides the right one
  for (std::int64_t b = 0; b < weights.num_blocks() && !(cumulative > target); ++b) {
    if (weights.block_sums[b] == 0) continue;
    block = b;
    before = cumulative;
    cumulative += weights.block_sums[b];
  }
  const std::int64_t begin = block * kVocabBlock;
  const std::int64_t size = std::min(kVocabBlock, weights.vocab_size - begin);
  const float* from = weights.of + begin;
  return begin + invert(size, target - before, [from](std::int64_t i) { return from[i]; });
}

// The tokens that the filters may keep.
struct Candidates {
  std::uint64_t* in_order;  // keys by id
  std::uint64_t* selected;  // the same keys; the kept ones come to the front
  std::int64_t count;
};

struct Filter {
  std::int64_t top_k;
  double top_p;
  bool has_top_k;
};

double mass_of(const Weights& weights, const std::uint64_t* keys, std::int64_t count) {
  double mass = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    mass += static_cast<double>(weights.of[id_of(keys[i])]);
  }
  return mass;
}

// Gathers until the filters' borders lie among the candidates.
void gather(const Weights& weights, const float* logits, const Filter& filter,
            Candidates& candidates) {
  const double wanted = filter.top_p * weights.total();
  for (const float threshold : kThresholds) {
    candidates.count = 0;
    for_each_reaching(weights.of, weights.vocab_size, threshold, [&](std::int64_t i) {
      candidates.in_order[candidates.count++] = order_key(logits[i], i);
    });
    const bool enough =
        filter.has_top_k
            ? candidates.count >= filter.top_k
            : mass_of(weights, candidates.in_order, candidates.count) >= wanted;
    if (enough) break;
  }
  std::copy(candidates.in_order, candidates.in_order + candidates.count, candidates.selected);
}

// The smallest key of those with less than `limit` of mass before them, among the first `count`
// selected ones; the largest of all is always one of them.
std::uint64_t nucleus_border(const Weights& weights, std::uint64_t* keys, std::int64_t count,
                             double limit) {
  std::int64_t low = 0, high = count;  // the border's rank is in [low, high)
  double before = 0;                   // mass of the ranks below `low`
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    std::nth_element(keys + low, keys + middle, keys + high, std::greater<>());
    const double mass = mass_of(weights, keys + low, middle - low);
    if (before + mass < limit) {
      before += mass;
      low = middle;
    } else {
      high = middle;
    }
  }
  return keys[low];
}

std::uint64_t border_of(const Weights& weights, const Filter& filter, Candidates& candidates) {
  std::int64_t kept = candidates.count;
  std::uint64_t border = 0;
  if (filter.has_top_k && filter.top_k < kept) {
    kept = filter.top_k;
    std::uint64_t* last = candidates.selected + kept - 1;
    std::nth_element(candidates.selected, last, candidates.selected + candidates.count,
                     std::greater<>());
    border = *last;
  }
  if (filter.top_p >= 1) return border;
  // With top_k the mass is what it left: of candidates alone, however many were looked at
  const double total =
      filter.has_top_k ? mass_of(weights, candidates.selected, kept) : weights.total();
  return nucleus_border(weights, candidates.selected, kept, filter.top_p * total);
}

std::int64_t draw_among(const Weights& weights, const Candidates& candidates, std::uint64_t border,
                        double number) {
  const auto weight_of = [&](std::int64_t i) {
    const std::uint64_t key = candidates.in_order[i];
    return key >= border ? weights.of[id_of(key)] : 0.0f;
  };
  double total = 0;
  for (std::int64_t i = 0; i < candidates.count; ++i) total += static_cast<double>(weight_of(i));
  return id_of(candidates.in_order[invert(candidates.count, number * total, weight_of)]);
}

}  // namespace

std::int64_t draw_token(const float* logits, std::int64_t vocab_size, float best,
                        const SamplingRow& row) {
  static thread_local Scratch scratch;
  const std::int64_t num_blocks = num_vocab_blocks(vocab_size);
  scratch.reset(Scratch::measure<float>(vocab_size) + Scratch::measure<double>(num_blocks) +
                2 * Scratch::measure<std::uint64_t>(vocab_size));
  const Weights weights{scratch.take<float>(vocab_size), scratch.take<double>(num_blocks),
                        vocab_size};
  fill(weights, logits, Weigh(best, row.temperature), row.min_p);
  const double number = uniform_number(row.seed, row.choice, row.position);
  const Filter filter{row.top_k, row.top_p, row.top_k > 0 && row.top_k < vocab_size};
  if (!filter.has_top_k && filter.top_p >= 1) return draw_from_all(weights, number);
  Candidates candidates{scratch.take<std::uint64_t>(vocab_size),
                        scratch.take<std::uint64_t>(vocab_size), 0};
  gather(weights, logits, filter, candidates);
  return draw_among(weights, candidates, border_of(weights, filter, candidates), number);
}

}  // namespace tandem
