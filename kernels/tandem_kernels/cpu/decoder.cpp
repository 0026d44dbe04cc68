// A step, from token ids to hidden states and logits.
//
//   few rows    each operation is divided among the threads, one after the other
//   many rows   threads take slabs of rows through all that lies between two attentions:
//
//       | embed > norm > qkv > rope, write |  attention  | output > + > mlp > + > norm > qkv > ... |
//       |    slab by slab, no barrier      | all threads |           slab by slab                  |
//
// Both call the same operations on the same rows, whose bits depend on nothing but the row. In the
// last layer only rows that somebody asked for go on once the KV is written.
#include "decoder.h"

#include <atomic>
#include <cstring>

#include "decoder_memory.h"
#include "decoder_slab.h"
#include "decoder_timer.h"
#include "thread_pool.h"

namespace tandem {
namespace {

// Rows of final norms that are worth a thread.
constexpr std::int64_t kMinNormRows = 16;
// Rows of a head from which on it is screened. Measured on the default model's, Markdown, Zen 4, one
// thread: 0.60 of the time in full with 32 rows, 0.75 with 8, 1.04 with 4, which wait for memory.
constexpr std::int64_t kMinScreened = 5;

class DecoderStep {
 public:
  DecoderStep(const TandemDecoder& decoder, const TandemStep& step, std::int64_t threads)
      : decoder_(decoder),
        step_(step),
        threads_(threads),
        memory_(decoder, step, threads, step.scratch),
        timings_(step.timings),
        work_(decoder, step, memory_, timings_),
        batch_(step.batch),
        num_rows_(step.num_tokens) {}

  void run() {
    over_slabs([&](const Slab& slab) {
      work_.embed(slab);
      work_.before_attention(0, slab);
    });
    for (std::int64_t layer = 0; layer < decoder_.num_layers; ++layer) {
      const bool is_last = layer + 1 == decoder_.num_layers;
      if (is_last && step_.rows != nullptr) keep_wanted_rows();
      if (num_rows_ == 0) return;
      attend(layer);
      over_slabs([&](const Slab& slab) {
        work_.after_attention(layer, slab);
        if (!is_last) work_.before_attention(layer + 1, slab);
      });
    }
    finish();
    if (step_.logits != nullptr) {
      compute_logits(decoder_, step_.hidden, step_.num_rows, step_.only_largest, step_.logits,
                     timings_);
    }
  }

  static void compute_logits(const TandemDecoder& decoder, const void* hidden, std::int64_t rows,
                             const std::uint8_t* only_largest, float* logits,
                             const StepTimings& timings) {
    timings.measure(StepWork::kHead, [&] {
      const std::int64_t row_bytes = decoder.hidden_size * StepMemory::element_size(decoder.element);
      // Neighbouring rows of one kind together
      for (std::int64_t begin = 0, end; begin < rows; begin = end) {
        const auto is_screened = [&](std::int64_t row) {
          return only_largest != nullptr && only_largest[row] != 0;
        };
        for (end = begin + 1; end < rows && is_screened(end) == is_screened(begin);) ++end;
        const char* from = static_cast<const char*>(hidden) + begin * row_bytes;
        float* to = logits + begin * decoder.logits_size;
        if (decoder.head_screen != nullptr && is_screened(begin) && end - begin >= kMinScreened) {
          tandem_linear_largest(decoder.head, decoder.head_screen, from, decoder.hidden_size,
                                end - begin, to);
        } else {
          tandem_linear(decoder.head, from, decoder.hidden_size, end - begin, to);
        }
      }
      if (decoder.logits_softcap != 0.0f) {
        softcap_rows(logits, rows, decoder.logits_size, decoder.logits_softcap);
      }
    });
  }

 private:
  template <class F>
  void over_slabs(const F& f) {
    const Slabs slabs(num_rows_, threads_);
    if (slabs.number == 1) {
      f(Slab{0, num_rows_, memory_.slab(0)});
      return;
    }
    std::atomic<std::int64_t> next{0};
    const auto take_slabs = [&](int part) {
      for (std::int64_t i = next.fetch_add(1); i < slabs.number; i = next.fetch_add(1)) {
        const std::int64_t begin = slabs.begin(i);
        f(Slab{begin, slabs.begin(i + 1) - begin, memory_.slab(part)});
      }
    };
    parallel_parts(static_cast<int>(std::min(threads_, slabs.number)), take_slabs);
  }

  void attend(std::int64_t index) const {
    timings_.measure(StepWork::kAttention, [&] {
      const TandemAttention attention{decoder_.num_heads, decoder_.layers[index].window,
                                      decoder_.attention_scale, decoder_.attention_softcap};
      tandem_paged_attention(&batch_, &attention, step_.caches[index],
                             static_cast<std::int32_t>(decoder_.element), memory_.qkv,
                             work_.qkv_width(), memory_.attended);
    });
  }

  // A sequence goes on from its first wanted row: its queries remain the last of its context.
  void keep_wanted_rows() {
    std::int64_t* places = memory_.places;
    std::fill_n(places, step_.num_tokens, 0);
    for (std::int64_t i = 0; i < step_.num_rows; ++i) places[step_.rows[i]] = 1;
    num_rows_ = 0;
    memory_.kept_starts[0] = 0;
    for (std::int64_t s = 0; s < batch_.num_sequences; ++s) {
      std::int64_t row = batch_.query_starts[s];
      const std::int64_t end = batch_.query_starts[s + 1];
      while (row < end && places[row] == 0) ++row;
      for (; row < end; ++row) {
        places[row] = num_rows_;
        memory_.kept[num_rows_++] = row;
      }
      memory_.kept_starts[s + 1] = static_cast<std::int32_t>(num_rows_);
    }
    batch_.query_starts = memory_.kept_starts;
    close_up(memory_.residual, decoder_.hidden_size, decoder_.hidden_size);
    close_up(memory_.qkv, work_.qkv_width(), decoder_.num_heads * decoder_.head_dim);
  }

  // Moves the first `size` elements of kept rows up to each other.
  void close_up(char* rows, std::int64_t width, std::int64_t size) const {
    const std::int64_t bytes = StepMemory::element_size(decoder_.element);
    for (std::int64_t i = 0; i < num_rows_; ++i) {
      if (memory_.kept[i] == i) continue;
      std::memcpy(rows + i * width * bytes, rows + memory_.kept[i] * width * bytes,
                  static_cast<std::size_t>(size * bytes));
    }
  }

  void finish() const {
    const std::int64_t hidden = decoder_.hidden_size;
    const std::int64_t row_bytes = hidden * StepMemory::element_size(decoder_.element);
    const auto norm = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = step_.rows == nullptr ? i : memory_.places[step_.rows[i]];
        norm_rows(decoder_.element, decoder_.final_norm, memory_.residual + row * row_bytes, hidden,
                  1, static_cast<char*>(step_.hidden) + i * row_bytes, hidden, 1, hidden,
                  decoder_.norm_eps);
      }
    };
    timings_.measure(StepWork::kNorm,
                     [&] { parallel_ranges(step_.num_rows, kMinNormRows, norm); });
  }

  const TandemDecoder& decoder_;
  const TandemStep& step_;
  const std::int64_t threads_;
  const StepMemory memory_;
  const StepTimings timings_;
  const SlabWork work_;
  TandemBatch batch_;
  std::int64_t num_rows_;  // of the layer under way
};

bool all_below(const std::int64_t* numbers, std::int64_t count, std::int64_t limit) {
  return std::all_of(numbers, numbers + count,
                     [&](std::int64_t number) { return number >= 0 && number < limit; });
}

std::int64_t scratch_bytes(const TandemDecoder& decoder, const TandemStep& step,
                           std::int64_t threads) {
  return StepMemory(decoder, step, threads, nullptr).size_bytes();
}

StepError check(const TandemDecoder& decoder, const TandemStep& step, std::int64_t threads) {
  if (!all_below(step.token_ids, step.num_tokens, decoder.vocab_size)) return StepError::kTokenId;
  if (!all_below(step.batch.positions, step.num_tokens, decoder.max_positions)) {
    return StepError::kPosition;
  }
  if (step.rows != nullptr && !all_below(step.rows, step.num_rows, step.num_tokens)) {
    return StepError::kRow;
  }
  if (step.scratch_bytes < scratch_bytes(decoder, step, threads)) return StepError::kScratch;
  return StepError::kNone;
}

}  // namespace
}  // namespace tandem

extern "C" {

std::int64_t tandem_decoder_scratch_bytes(const TandemDecoder* decoder, const TandemStep* step) {
  return tandem::scratch_bytes(*decoder, *step, tandem::num_threads());
}

std::int32_t tandem_decoder_step(const TandemDecoder* decoder, const TandemStep* step) {
  const std::int64_t threads = tandem::num_threads();
  const tandem::StepError error = tandem::check(*decoder, *step, threads);
  if (error == tandem::StepError::kNone) tandem::DecoderStep(*decoder, *step, threads).run();
  return static_cast<std::int32_t>(error);
}

void tandem_decoder_logits(const TandemDecoder* decoder, const void* hidden, std::int64_t rows,
                           float* logits, std::int64_t* timings) {
  tandem::DecoderStep::compute_logits(*decoder, hidden, rows, nullptr, logits,
                                      tandem::StepTimings(timings));
}
}
