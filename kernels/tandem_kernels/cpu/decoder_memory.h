// The memory of one step: what all its rows keep from layer to layer, and what a slab needs within.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "decoder.h"

namespace tandem {

// Rows of a slab: its activations stay in a core's second-level cache, while all of a layer's
// weights pass through it.
constexpr std::int64_t kMaxSlabRows = 96;
// From this many rows a thread on, threads take slabs; below, they divide each operation.
constexpr std::int64_t kMinRowsPerThread = 32;

// How the rows of a step are divided.
struct Slabs {
  std::int64_t rows;
  std::int64_t number;  // 1: all rows at once, every operation divided among the threads

  Slabs(std::int64_t num_rows, std::int64_t threads) : rows(num_rows), number(1) {
    if (num_rows < kMinRowsPerThread * threads || num_rows <= kMaxSlabRows / 2) return;
    // As many for each thread
    const std::int64_t rounds = ceil_div(num_rows, kMaxSlabRows * threads);
    number = std::min(num_rows, rounds * threads);
  }

  std::int64_t begin(std::int64_t slab) const { return rows * slab / number; }

 private:
  static std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
};

// Rows of activations within a layer.
struct SlabMemory {
  char* x;         // [rows][hidden]
  char* summand;   // [rows][hidden]
  char* parallel;  // [rows][hidden], where the layers are parallel
  char* gate_up;   // [rows][inner, or 2 * inner]
  char* inner;     // [rows][inner]
};

class StepMemory {
 public:
  // Lays the memory out from `start`; null: only measures.
  StepMemory(const TandemDecoder& decoder, const TandemStep& step, std::int64_t threads,
             void* start)
      : start_(static_cast<char*>(start)) {
    const std::int64_t num_tokens = step.num_tokens;
    const std::int64_t bytes = element_size(decoder.element), hidden = decoder.hidden_size * bytes;
    const std::int64_t inner = decoder.inner_size * bytes;
    const std::int64_t heads = decoder.num_heads * decoder.head_dim * bytes;
    const std::int64_t kv_heads = decoder.num_kv_heads * decoder.head_dim * bytes;
    residual = take<char>(num_tokens * hidden);
    qkv = take<char>(num_tokens * (heads + 2 * kv_heads));
    attended = take<char>(num_tokens * heads);
    kept = take<std::int64_t>(num_tokens);
    places = take<std::int64_t>(num_tokens);
    kept_starts = take<std::int32_t>(step.batch.num_sequences + 1);
    // Slabs are no larger, and what isn't cut has fewer rows than these together
    const std::int64_t rows = std::min(num_tokens, kMaxSlabRows) * threads;
    slab_.x = take<char>(rows * hidden);
    slab_.summand = take<char>(rows * hidden);
    slab_.parallel = take<char>(rows * hidden);
    slab_.gate_up = take<char>(rows * (decoder.gated ? 2 : 1) * inner);
    slab_.inner = take<char>(rows * inner);
    slab_rows_ = std::min(num_tokens, kMaxSlabRows);
    hidden_ = hidden;
    gate_up_ = (decoder.gated ? 2 : 1) * inner;
    inner_ = inner;
  }

  std::int64_t size_bytes() const { return used_; }

  // The memory of the `index`th slab under way; the first one's is followed by the others'.
  SlabMemory slab(std::int64_t index) const {
    const std::int64_t row = index * slab_rows_;
    return {slab_.x + row * hidden_, slab_.summand + row * hidden_, slab_.parallel + row * hidden_,
            slab_.gate_up + row * gate_up_, slab_.inner + row * inner_};
  }

  static std::int64_t element_size(ElementType element) {
    return element == ElementType::kFloat32 ? 4 : 2;
  }

  char* residual;             // [T][hidden]
  char* qkv;                  // [T][(heads + 2 kv_heads) * head_dim]
  char* attended;             // [T][heads * head_dim]
  std::int64_t* kept;         // [T] rows that the last layer goes on with
  std::int64_t* places;       // [T] where among them a row is
  std::int32_t* kept_starts;  // [num_sequences + 1] their query_starts

 private:
  static constexpr std::int64_t kAlignment = 64;

  template <class T>
  T* take(std::int64_t count) {
    const std::int64_t at = used_;
    used_ += (count * static_cast<std::int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment *
             kAlignment;
    return start_ == nullptr ? nullptr : reinterpret_cast<T*>(start_ + at);
  }

  char* const start_;
  std::int64_t used_ = 0;
  SlabMemory slab_{};
  std::int64_t slab_rows_ = 0;
  std::int64_t hidden_ = 0, gate_up_ = 0, inner_ = 0;  // bytes of a row
};

}  // namespace tandem
