// Weights into panels, and rows of them back out.
#include <cstring>
#include <vector>

#include "linear_layout.h"
#include "linear_pack.h"
#include "thread_pool.h"

namespace tandem {
namespace {

// Rows of an embedding for one thread: each is a few hundred cache lines from anywhere in memory.
constexpr std::int64_t kMinWeightRows = 16;
// Turns int8 into int8 plus 128, and back, four at a time.
constexpr std::uint32_t kSignBits = 0x80808080u;

// Eight numbers of 0..15, a byte each: numbers i and 4 + i become the nibbles of byte i.
std::uint32_t word_of_nibbles(const std::uint8_t* numbers) {
  std::uint32_t first, second;
  std::memcpy(&first, numbers, sizeof first);
  std::memcpy(&second, numbers + 4, sizeof second);
  return first | second << 4;
}

std::uint8_t nibble_of(std::uint32_t word, std::int64_t element) {
  return word >> (element % 4 * 8 + element / 4 * 4) & 0xf;
}

std::uint32_t swap_middle(std::uint32_t word) {
  return (word & 0xff0000ffu) | (word << 8 & 0x00ff0000u) | (word >> 8 & 0x0000ff00u);
}

class QuantizedPacker {
 public:
  QuantizedPacker(const TandemLinear& linear, const std::uint8_t* values, const float* scales,
                  const float* offsets)
      : linear_(linear),
        layout_(linear),
        values_(values),
        scales_(scales),
        offsets_(offsets),
        groups_(ceil_div(linear.in_features, linear.group_size)),
        bytes_(linear.format == WeightFormat::kW8A8) {}

  std::int64_t panels() const { return layout_.panels; }

  void pack_panel(std::int64_t panel) const {
    const std::int64_t first = panel * kPanelColumns;
    const std::int64_t columns = std::min(kPanelColumns, linear_.out_features - first);
    std::vector<std::uint32_t> rows(static_cast<std::size_t>(columns * layout_.words));
    for (std::int64_t c = 0; c < columns; ++c) {
      write_words(values_ + (first + c) * linear_.in_features, rows.data() + c * layout_.words);
    }
    char* to = static_cast<char*>(const_cast<void*>(linear_.weight)) + panel * layout_.panel_bytes;
    for (std::int64_t u = 0; u < layout_.units; ++u) {
      if (u == 0 || !layout_.one_head) write_head(first, columns, u, to + layout_.head_at(u));
      pack_rows(rows.data() + u * layout_.unit_words, layout_.words * 4, columns,
                layout_.words_of(u) * 4, kPanelColumns,
                reinterpret_cast<std::uint32_t*>(to + layout_.words_at(u)));
    }
  }

 private:
  void write_words(const std::uint8_t* values, std::uint32_t* words) const {
    for (std::int64_t i = 0; i < layout_.words; ++i) {
      std::uint8_t numbers[8] = {};
      const std::int64_t at = i * layout_.per_word;
      const std::int64_t count = std::min(layout_.per_word, linear_.in_features - at);
      if (count == 8) {
        std::memcpy(numbers, values + at, 8);
      } else if (count == 4) {
        std::memcpy(numbers, values + at, 4);
      } else {
        std::memcpy(numbers, values + at, static_cast<std::size_t>(count));
      }
      words[i] = word_of(numbers);
    }
  }

  std::uint32_t word_of(const std::uint8_t* numbers) const {
    if (linear_.format == WeightFormat::kInt4) return word_of_nibbles(numbers);
    std::uint32_t word;
    std::memcpy(&word, numbers, sizeof word);
    return bytes_ ? word ^ kSignBits : swap_middle(word);
  }

  void write_head(std::int64_t first, std::int64_t columns, std::int64_t u, char* head) const {
    const std::int64_t group = u * layout_.unit_words * layout_.per_word / linear_.group_size;
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t at = (first + c) * groups_ + group;
      write_scale(head, c, scales_[at]);
      if (offsets_ != nullptr) write_scale(head + layout_.scales_bytes, c, offsets_[at]);
    }
  }

  void write_scale(char* scales, std::int64_t column, float value) const {
    if (layout_.scales_bytes == kPanelColumns * 2) {
      reinterpret_cast<std::uint16_t*>(scales)[column] = float16_bits(value);
    } else {
      reinterpret_cast<float*>(scales)[column] = value;
    }
  }

  const TandemLinear& linear_;
  const Layout layout_;
  const std::uint8_t* values_;
  const float* scales_;
  const float* offsets_;
  const std::int64_t groups_;
  const bool bytes_;  // in the order of K, plus 128
};

class WeightRow {
 public:
  WeightRow(const TandemLinear& linear, const Layout& layout, std::int64_t row)
      : linear_(linear),
        layout_(layout),
        panel_(static_cast<const char*>(linear.weight) +
               row / kPanelColumns * layout.panel_bytes),
        column_(row % kPanelColumns) {}

  void write(char* out) const {
    const std::int64_t row_bytes = linear_.in_features * element_bytes(linear_.type);
    if (linear_.format == WeightFormat::kPlain) {
      return unpack_row(panel_, kPanelColumns, column_, row_bytes, out);
    }
    for (std::int64_t u = 0; u < layout_.units; ++u) write_unit(u, out);
  }

 private:
  void write_unit(std::int64_t u, char* out) const {
    const char* head = panel_ + layout_.head_at(u);
    const float scale = scale_at(head);
    const float offset = linear_.has_offsets != 0 ? scale_at(head + layout_.scales_bytes) : 0.0f;
    const auto* words = reinterpret_cast<const std::uint32_t*>(panel_ + layout_.words_at(u));
    const std::int64_t first = u * layout_.unit_words * layout_.per_word;
    const std::int64_t end =
        std::min(linear_.in_features, first + layout_.unit_words * layout_.per_word);
    for (std::int64_t i = first; i < end; ++i) {
      const std::int64_t word = (i - first) / layout_.per_word;
      put(out, i, number(words[word * kPanelColumns + column_], i % layout_.per_word) * scale +
                      offset);
    }
  }

  float scale_at(const char* scales) const {
    return layout_.scales_bytes == kPanelColumns * 2
               ? float16_value(reinterpret_cast<const std::uint16_t*>(scales)[column_])
               : reinterpret_cast<const float*>(scales)[column_];
  }

  float number(std::uint32_t word, std::int64_t element) const {
    if (linear_.format == WeightFormat::kInt4) return nibble_of(word, element);
    const std::uint32_t in_order =
        linear_.format == WeightFormat::kW8A8 ? word ^ kSignBits : swap_middle(word);
    return static_cast<std::int8_t>(in_order >> (8 * element) & 0xff);
  }

  void put(char* out, std::int64_t i, float value) const {
    if (linear_.type == ElementType::kFloat32) {
      reinterpret_cast<float*>(out)[i] = value;
    } else {
      store_some(reinterpret_cast<Bfloat16*>(out) + i, broadcast(value), 1);
    }
  }

  const TandemLinear& linear_;
  const Layout& layout_;
  const char* const panel_;
  const std::int64_t column_;
};

}  // namespace
}  // namespace tandem

extern "C" {

std::int64_t tandem_linear_packed_bytes(const TandemLinear* linear) {
  const tandem::Layout layout(*linear);
  return layout.panels * layout.panel_bytes;
}

void tandem_linear_pack(const TandemLinear* linear, const void* weight) {
  const tandem::Layout layout(*linear);
  const std::int64_t row_bytes = linear->in_features * tandem::element_bytes(linear->type);
  tandem::parallel_ranges(layout.panels, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t row = panel * tandem::kPanelColumns;
      char* packed = static_cast<char*>(const_cast<void*>(linear->weight));
      tandem::pack_rows(static_cast<const char*>(weight) + row * row_bytes, row_bytes,
                        std::min(tandem::kPanelColumns, linear->out_features - row), row_bytes,
                        tandem::kPanelColumns,
                        reinterpret_cast<std::uint32_t*>(packed + panel * layout.panel_bytes));
    }
  });
}

void tandem_linear_pack_quantized(const TandemLinear* linear, const std::uint8_t* values,
                                  const float* scales, const float* offsets) {
  const tandem::QuantizedPacker packer(*linear, values, scales, offsets);
  tandem::parallel_ranges(packer.panels(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) packer.pack_panel(panel);
  });
}

std::int32_t tandem_linear_weight_rows(const TandemLinear* linear, const std::int64_t* indices,
                                       std::int64_t num_indices, void* out) {
  const auto exists = [&](std::int64_t i) { return i >= 0 && i < linear->out_features; };
  if (!std::all_of(indices, indices + num_indices, exists)) return 0;
  const tandem::Layout layout(*linear);
  const std::int64_t row_bytes = linear->in_features * tandem::element_bytes(linear->type);
  const auto copy = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      tandem::WeightRow(*linear, layout, indices[i])
          .write(static_cast<char*>(out) + i * row_bytes);
    }
  };
  tandem::parallel_ranges(num_indices, tandem::kMinWeightRows, copy);
  return 1;
}
}
