// What tiles of all formats have in common: how rows are taken together, and how sums are stored.
#pragma once

#include <utility>

#include "linear_tile.h"

namespace tandem {

constexpr int kVectors = kPanelColumns / kLanes;
// With 32 wide registers 12 x 2 sums leave room for weights and activations; with 16 narrower ones
// 2 x 4 do.
constexpr int kRowsAtOnce = kVectors == 2 ? static_cast<int>(kMaxTileRows) : 2;

// Adds the bias and stores one vector of row r, column `first` on.
inline void store_sum(const Tile& tile, std::int64_t row, std::int64_t first, Floats sum) {
  const std::int64_t count = std::min<std::int64_t>(tile.columns - first, kLanes);
  if (count <= 0) return;
  const bool whole = count == kLanes;
  if (tile.bias != nullptr) {
    sum += whole ? load(tile.bias + first) : load_some(tile.bias + first, count);
  }
  const std::int64_t at = row * tile.y_stride + first;
  if (tile.y_type == ElementType::kFloat32) {
    float* y = static_cast<float*>(tile.y) + at;
    whole ? store(y, sum) : store_some(y, sum, count);
  } else {
    Bfloat16* y = static_cast<Bfloat16*>(tile.y) + at;
    whole ? store(y, sum) : store_some(y, sum, count);
  }
}

// Vectors of a unit's scales or offsets.
class ScaleLoader {
 public:
  explicit ScaleLoader(const Layout& layout) : half_(layout.scales_bytes == kPanelColumns * 2) {}
  Floats load(const char* scales, int v) const {
    return half_ ? load_float16(reinterpret_cast<const std::uint16_t*>(scales) + v * kLanes)
                 : tandem::load(reinterpret_cast<const float*>(scales) + v * kLanes);
  }

 private:
  bool half_;
};

// Steps through the weights that are wanted soon.
class Prefetcher {
 public:
  explicit Prefetcher(const Tile& tile) : at_(tile.prefetch), step_(tile.prefetch_step) {}
  void operator()() {
    __builtin_prefetch(at_, 0, 2);
    __builtin_prefetch(at_ + 64, 0, 2);
    at_ += step_;
  }
  // For what lies between words.
  void skip(std::int64_t size_bytes) {
    for (std::int64_t line = 0; line < size_bytes; line += 64) {
      __builtin_prefetch(at_ + line, 0, 2);
    }
    at_ += size_bytes * step_ / kWordsBytes;
  }

 private:
  const char* at_;
  std::int64_t step_;
};

// Rows::multiply<R>(layout, tile, first_row) for all rows of a tile, kAtOnce at a time.
template <class Rows, int kAtOnce = kRowsAtOnce>
class TileOf {
 public:
  static void multiply(const Layout& layout, const Tile& tile) {
    std::int64_t row = 0;
    for (; row + kAtOnce <= tile.rows; row += kAtOnce) {
      Rows::template multiply<kAtOnce>(layout, tile, row);
    }
    if constexpr (kAtOnce > 1) {
      if (row < tile.rows) {
        some(std::make_integer_sequence<int, kAtOnce - 1>(), layout, tile, row);
      }
    }
  }

 private:
  template <int... kCounts>
  static void some(std::integer_sequence<int, kCounts...>, const Layout& layout, const Tile& tile,
                   std::int64_t first) {
    static constexpr void (*kByCount[])(const Layout&, const Tile&, std::int64_t) = {
        Rows::template multiply<kCounts + 1>...};
    kByCount[tile.rows - first - 1](layout, tile, first);
  }
};

}  // namespace tandem
