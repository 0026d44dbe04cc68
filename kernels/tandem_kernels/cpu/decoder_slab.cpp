// A layer's operations in order; decoder.py of the package above has them as formulas.
#include "decoder_slab.h"

#include <cstring>

namespace tandem {

void SlabWork::embed(const Slab& slab) const {
  const std::int64_t hidden = decoder_.hidden_size;
  char* residual = at(memory_.residual, slab.begin, hidden);
  timings_.measure(StepWork::kEmbedding, [&] {
    const std::int64_t* ids = step_.token_ids + slab.begin;
    if (decoder_.embedding_linear != nullptr) {
      tandem_linear_weight_rows(decoder_.embedding_linear, ids, slab.rows, residual);
    } else {
      const std::int64_t bytes = hidden * StepMemory::element_size(decoder_.element);
      const char* table = static_cast<const char*>(decoder_.embedding_table);
      for (std::int64_t r = 0; r < slab.rows; ++r) {
        std::memcpy(residual + r * bytes, table + ids[r] * bytes, static_cast<std::size_t>(bytes));
      }
    }
    if (decoder_.embedding_scale != 1.0f) {
      scale_rows(decoder_.element, residual, decoder_.embedding_scale, slab.rows, hidden);
    }
  });
  timings_.measure(StepWork::kNorm, [&] {
    norm_rows(decoder_.element, decoder_.layers[0].input_norm, residual, hidden, 1, slab.memory.x,
              hidden, slab.rows, hidden, decoder_.norm_eps);
  });
}

void SlabWork::before_attention(std::int64_t index, const Slab& slab) const {
  const TandemDecoderLayer& layer = decoder_.layers[index];
  const std::int64_t width = qkv_width(), d = decoder_.head_dim;
  char* q = at(memory_.qkv, slab.begin, width);
  char* k = at(q, 1, decoder_.num_heads * d);
  char* v = at(k, 1, decoder_.num_kv_heads * d);
  multiply(StepWork::kQkv, layer.qkv, slab.memory.x, decoder_.hidden_size, slab.rows, q);
  timings_.measure(StepWork::kNorm, [&] {
    const auto norm = [&](const TandemNorm& weights, char* heads, std::int64_t number) {
      if (weights.weight == nullptr) return;
      norm_rows(decoder_.element, weights, heads, width, number, heads, width, slab.rows, d,
                decoder_.norm_eps);
    };
    norm(layer.q_norm, q, decoder_.num_heads);
    norm(layer.k_norm, k, decoder_.num_kv_heads);
  });
  timings_.measure(StepWork::kRopeWrite, [&] {
    TandemBatch batch = step_.batch;
    batch.positions += slab.begin;
    batch.slot_mapping += slab.begin;
    tandem_rope_write_kv(&batch, step_.caches[index], static_cast<std::int32_t>(decoder_.element),
                         q, width, decoder_.num_heads, k, width, v, width, layer.cos_sin,
                         decoder_.rotary_dim, slab.rows);
  });
}

void SlabWork::after_attention(std::int64_t index, const Slab& slab) const {
  const TandemDecoderLayer& layer = decoder_.layers[index];
  const ElementType element = decoder_.element;
  const std::int64_t hidden = decoder_.hidden_size, rows = slab.rows;
  const std::int64_t attended = decoder_.num_heads * decoder_.head_dim;
  const float eps = decoder_.norm_eps;
  const SlabMemory& memory = slab.memory;
  char* residual = at(memory_.residual, slab.begin, hidden);
  const bool is_last = index + 1 == decoder_.num_layers;
  const TandemNorm next = is_last ? TandemNorm{} : decoder_.layers[index + 1].input_norm;

  multiply(StepWork::kOutput, layer.output, at(memory_.attended, slab.begin, attended), attended,
           rows, memory.summand);
  if (layer.mlp_norm.weight != nullptr) {
    timings_.measure(StepWork::kNorm, [&] {
      add_norm_rows(element, residual, memory.summand, layer.post_attention_norm, layer.mlp_norm,
                    memory.x, rows, hidden, eps);
    });
    mlp(layer, slab, memory.summand);
    timings_.measure(StepWork::kNorm, [&] {
      add_norm_rows(element, residual, memory.summand, layer.post_mlp_norm, next, memory.x, rows,
                    hidden, eps);
    });
    return;
  }
  timings_.measure(StepWork::kNorm, [&] {  // once more: x of another slab may have taken its place
    norm_rows(element, layer.input_norm, residual, hidden, 1, memory.x, hidden, rows, hidden, eps);
  });
  mlp(layer, slab, memory.parallel);
  timings_.measure(StepWork::kNorm, [&] {
    add_rows(element, memory.summand, memory.parallel, rows, hidden);
    add_norm_rows(element, residual, memory.summand, {}, next, memory.x, rows, hidden, eps);
  });
}

void SlabWork::mlp(const TandemDecoderLayer& layer, const Slab& slab, void* out) const {
  const SlabMemory& memory = slab.memory;
  multiply(StepWork::kGateUp, layer.gate_up, memory.x, decoder_.hidden_size, slab.rows,
           memory.gate_up);
  timings_.measure(StepWork::kActivation, [&] {
    activate_rows(decoder_.element, decoder_.activation, decoder_.gated != 0, memory.gate_up,
                  memory.inner, slab.rows, decoder_.inner_size);
  });
  multiply(StepWork::kDown, layer.down, memory.inner, decoder_.inner_size, slab.rows, out);
}

void SlabWork::multiply(StepWork work, const TandemLinear* linear, const void* x,
                        std::int64_t width, std::int64_t rows, void* out) const {
  timings_.measure(work, [&] { tandem_linear(linear, x, width, rows, out); });
}

}  // namespace tandem
