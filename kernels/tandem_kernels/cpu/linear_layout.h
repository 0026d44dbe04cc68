// How weights lie once they are packed, and rows of x before they are multiplied.
//
//     word    four bytes along K: 1 float32, 2 bfloat16, 4 int8 or 8 int4
//     unit    the words that share a scale   [scales 32][offsets 32][words][32]
//             (of w8a8, the words of a piece of x; the scales lie before the first unit only)
//     panel   32 output columns              [units]        so a panel is read from front to end
//     lane    four bytes of a row of x: 1 float32, 2 bfloat16, 2 int16 or 4 int8
//     tile    1 to 12 rows of x              [lanes][rows][scales][rows][sums of units][rows]
//
// Plain weights are one unit without scales. K is padded with zeros to whole words.
#pragma once

#include <algorithm>
#include <cstdint>

#include "linear.h"
#include "linear_dot.h"

namespace tandem {

constexpr std::int64_t kPanelColumns = 32;
constexpr std::int64_t kMaxTileRows = 12;
constexpr std::int64_t kWordsBytes = kPanelColumns * 4;
// So many products of an int8 and a 16-bit activation stay within an int32.
constexpr std::int64_t kMaxUnit = 512;
// Columns whose activations share a scale in w8a8: an outlier coarsens no more than its piece.
constexpr std::int64_t kPieceColumns = 64;

struct Range {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t size() const { return end - begin; }
};

// Part `part` of `parts` about equal ones.
inline Range share(std::int64_t items, std::int64_t part, std::int64_t parts) {
  return {items * part / parts, items * (part + 1) / parts};
}

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr std::int64_t element_bytes(ElementType type) {
  return type == ElementType::kFloat32 ? 4 : 2;
}

struct Layout {
  explicit Layout(const TandemLinear& linear);

  std::int64_t per_word;    // elements of K
  std::int64_t words;       // along K
  std::int64_t unit_words;  // of every unit but the last, which may be shorter
  std::int64_t units;
  std::int64_t scales_bytes;  // of a unit's scales or offsets
  std::int64_t head_bytes;    // of a unit before its words
  bool one_head;              // the panel has one, not each unit
  std::int64_t panel_bytes;
  std::int64_t panels;
  std::int64_t x_lanes;
  std::int64_t x_scales;  // of a row: for int8 one, for int4 and w8a8 one for each unit
  std::int64_t x_sums;    // of a row: one for each unit with an offset, and of w8a8
  std::int64_t x_words() const { return x_lanes + x_scales + x_sums; }  // of a packed row
  // Within a panel.
  std::int64_t unit_bytes() const { return head_bytes + unit_words * kWordsBytes; }
  std::int64_t head_at(std::int64_t unit) const { return one_head ? 0 : unit * unit_bytes(); }
  std::int64_t words_at(std::int64_t unit) const {
    return one_head ? head_bytes + unit * unit_words * kWordsBytes : head_at(unit) + head_bytes;
  }
  std::int64_t words_of(std::int64_t unit) const {
    return std::min(unit_words, words - unit * unit_words);
  }
};

inline Layout::Layout(const TandemLinear& linear) {
  const bool plain = linear.format == WeightFormat::kPlain;
  const bool nibbles = linear.format == WeightFormat::kInt4;
  const bool bytes = linear.format == WeightFormat::kW8A8;
  per_word = plain ? 4 / element_bytes(linear.type) : nibbles ? 8 : 4;
  words = ceil_div(linear.in_features, per_word);
  const std::int64_t together =
      bytes ? kPieceColumns : std::min<std::int64_t>(linear.group_size, kMaxUnit);
  unit_words = plain ? words : ceil_div(together, per_word);
  units = ceil_div(words, unit_words);
  scales_bytes = plain ? 0 : kPanelColumns * (linear.half_scales != 0 ? 2 : 4);
  head_bytes = scales_bytes * (linear.has_offsets != 0 ? 2 : 1);
  one_head = bytes;
  panel_bytes = (one_head ? 1 : units) * head_bytes + words * kWordsBytes;
  panels = ceil_div(linear.out_features, kPanelColumns);
  x_lanes = words * (plain || bytes ? 1 : 2);
  x_scales = plain ? 0 : nibbles || bytes ? units : 1;
  x_sums = linear.has_offsets != 0 || bytes ? units : 0;
}

}  // namespace tandem
