// One step of a decoder of any family in one call: decoder.py of the package above, as structs.
#pragma once

#include <cstdint>

#include "elementwise.h"
#include "layer_cache.h"
#include "linear.h"
#include "linear_screen.h"

namespace tandem {

// Why a step was refused, before it computed anything.
enum class StepError : std::int32_t {
  kNone = 0,
  kTokenId = 1,
  kPosition = 2,
  kRow = 3,
  kScratch = 4,  // it is too small
};

// What a step's time goes into, in the order of `Timings`.
enum class StepWork {
  kEmbedding,
  kNorm,
  kQkv,
  kRopeWrite,
  kAttention,
  kOutput,
  kGateUp,
  kActivation,
  kDown,
  kHead,
  kWaiting,  // for other threads
};
constexpr int kNumStepWork = 11;

}  // namespace tandem

extern "C" {

// Filled by Python (decoder.py beside this file), field by field.
struct TandemDecoderLayer {
  TandemNorm input_norm;
  TandemNorm q_norm;
  TandemNorm k_norm;
  TandemNorm post_attention_norm;
  TandemNorm mlp_norm;  // none: the MLP reads the input norm's result, too
  TandemNorm post_mlp_norm;
  const TandemLinear* qkv;
  const TandemLinear* output;
  const TandemLinear* gate_up;
  const TandemLinear* down;
  const float* cos_sin;  // [max_positions][rotary_dim]
  std::int64_t window;   // 0: none
};

struct TandemDecoder {
  const TandemDecoderLayer* layers;
  TandemNorm final_norm;
  const TandemLinear* embedding_linear;  // whose weight's rows are the embedding; or null, and
  const void* embedding_table;           // [vocab_size][hidden_size]
  const TandemLinear* head;
  const TandemScreen* head_screen;  // or null
  std::int64_t num_layers;
  std::int64_t vocab_size;
  std::int64_t max_positions;
  std::int64_t hidden_size;
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  std::int64_t rotary_dim;
  std::int64_t inner_size;
  std::int64_t logits_size;  // outputs of the head
  float norm_eps;
  float attention_scale;
  float attention_softcap;
  float logits_softcap;
  float embedding_scale;
  std::int32_t gated;
  tandem::Activation activation;
  tandem::ElementType element;
};

struct TandemStep {
  TandemBatch batch;
  const std::int64_t* token_ids;  // [num_tokens]
  std::int64_t num_tokens;
  const TandemLayerCache* const* caches;  // of every layer
  const std::int64_t* rows;               // [num_rows] whose hidden states are wanted; null: all
  std::int64_t num_rows;
  void* hidden;           // [num_rows][hidden_size]
  float* logits;          // [num_rows][logits_size], or null
  // [num_rows], or null. Not 0: only the row's largest logits are wanted; others may be anything below
  const std::uint8_t* only_largest;
  void* scratch;          // 64-byte aligned
  std::int64_t scratch_bytes;
  std::int64_t* timings;  // [kNumStepWork] nanoseconds of this thread, added to; or null
};

// Scratch memory that the step needs with the threads there are now.
std::int64_t tandem_decoder_scratch_bytes(const TandemDecoder* decoder, const TandemStep* step);

// Writes the KV of all tokens, and computes what the wanted rows need. Returns a StepError.
std::int32_t tandem_decoder_step(const TandemDecoder* decoder, const TandemStep* step);

// hidden [rows][hidden_size] -> logits [rows][logits_size].
void tandem_decoder_logits(const TandemDecoder* decoder, const void* hidden, std::int64_t rows,
                           float* logits, std::int64_t* timings);
}
