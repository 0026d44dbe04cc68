// What happens to some consecutive rows between two attentions.
#pragma once

#include "decoder_memory.h"
#include "decoder_timer.h"

namespace tandem {

// Rows [begin, begin + rows) of the step, and memory for what they need within a layer.
struct Slab {
  std::int64_t begin;
  std::int64_t rows;
  SlabMemory memory;
};

// Each call is divided among the threads, or runs inline where the caller is a part itself.
class SlabWork {
 public:
  SlabWork(const TandemDecoder& decoder, const TandemStep& step, const StepMemory& memory,
           const StepTimings& timings)
      : decoder_(decoder), step_(step), memory_(memory), timings_(timings) {}

  // Tokens > residual > the first layer's input norm in the slab's x.
  void embed(const Slab& slab) const;
  // x > q, k, v > queries and cache that attention reads.
  void before_attention(std::int64_t layer, const Slab& slab) const;
  // Attended values > residual > the next layer's input norm in x, unless this is the last one.
  void after_attention(std::int64_t layer, const Slab& slab) const;

  std::int64_t qkv_width() const {
    return (decoder_.num_heads + 2 * decoder_.num_kv_heads) * decoder_.head_dim;
  }

 private:
  void mlp(const TandemDecoderLayer& layer, const Slab& slab, void* out) const;
  void multiply(StepWork work, const TandemLinear* linear, const void* x, std::int64_t width,
                std::int64_t rows, void* out) const;
  // Row `row` of a piece of memory with so many elements a row.
  char* at(char* memory, std::int64_t row, std::int64_t width) const {
    return memory + row * width * StepMemory::element_size(decoder_.element);
  }

  const TandemDecoder& decoder_;
  const TandemStep& step_;
  const StepMemory& memory_;
  const StepTimings& timings_;
};

}  // namespace tandem
