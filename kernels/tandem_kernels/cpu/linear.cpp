// Who computes what:
//
//     few rows     threads divide the panels, each packs all rows     weights are read once
//     many rows    threads divide the rows                            rows are packed once
//
// and each thread: block of rows that fits its cache > pack it into tiles > panel by panel > tiles.
#include "linear.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "linear_pack.h"
#include "thread_pool.h"

namespace tandem {
namespace {

// From this many rows on, a thread's arithmetic hides that every thread reads all weights.
constexpr std::int64_t kRowsPerThread = 48;
// A block of packed rows, which leaves half of a usual second-level cache to a panel.
constexpr std::int64_t kBlockBytes = 512 * 1024;
// Multiply-adds of lanes below which another thread's waking costs more than it takes off.
constexpr std::int64_t kMinWork = 128 * 1024;
// How far a lone tile fetches ahead, into the next panel at last: memory's latency at full rate.
constexpr std::int64_t kPrefetchBytes = 8192;
constexpr std::int64_t kLaneBytes = kPanelColumns * 4;
// Rows of an embedding for one thread: each is a few hundred cache lines from anywhere in memory.
constexpr std::int64_t kMinWeightRows = 16;

struct Range {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t size() const { return end - begin; }
};

Range share(std::int64_t items, std::int64_t part, std::int64_t parts) {
  return {items * part / parts, items * (part + 1) / parts};
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct FreeWords {
  void operator()(std::uint32_t* words) const { std::free(words); }
};

// This thread's room for packed rows: grows, and lives as long as the thread.
std::uint32_t* scratch(std::int64_t words) {
  static thread_local std::unique_ptr<std::uint32_t, FreeWords> room;
  static thread_local std::int64_t size = 0;
  if (size < words) {
    const std::int64_t bytes = ceil_div(words * 4, 64) * 64;
    room.reset(static_cast<std::uint32_t*>(std::aligned_alloc(64, bytes)));
    size = words;
  }
  return room.get();
}

TileFunction tile_function(const TandemLinear& linear) {
  const TileFunctions fastest = linear.portable ? TileFunctions{} : avx512_tiles();
  if (linear.type == ElementType::kFloat32) {
    return fastest.float32 != nullptr ? fastest.float32 : portable_tiles().float32;
  }
  return fastest.bfloat16 != nullptr ? fastest.bfloat16 : portable_tiles().bfloat16;
}

class Product {
 public:
  Product(const TandemLinear& linear, const void* x, std::int64_t x_stride, void* y)
      : linear_(linear),
        multiply_(tile_function(linear)),
        x_(static_cast<const char*>(x)),
        x_row_bytes_(x_stride * element_bytes(linear.type)),
        y_(static_cast<char*>(y)),
        lanes_(num_lanes(linear.type, linear.in_features)),
        panels_(ceil_div(linear.out_features, kPanelColumns)) {}

  void compute(std::int64_t rows) const {
    const std::int64_t work = rows * lanes_ * linear_.out_features;
    const std::int64_t threads = std::clamp<std::int64_t>(work / kMinWork, 1, num_threads());
    const bool by_rows = rows >= kRowsPerThread * threads;
    parallel_parts(static_cast<int>(threads), [&](int part) {
      const Range all_rows{0, rows}, all_panels{0, panels_};
      if (by_rows) {
        compute_part(share(rows, part, threads), all_panels);
      } else {
        compute_part(all_rows, share(panels_, part, threads));
      }
    });
  }

 private:
  void compute_part(Range rows, Range panels) const {
    const std::int64_t fitting = kBlockBytes / (lanes_ * 4) / kMaxTileRows * kMaxTileRows;
    const std::int64_t block_rows = std::max(fitting, kMaxTileRows);
    for (std::int64_t begin = rows.begin; begin < rows.end; begin += block_rows) {
      compute_block({begin, std::min(begin + block_rows, rows.end)}, panels);
    }
  }

  // Tiles are of about equal height: 13 rows are 6 + 7, not 12 + 1.
  void compute_block(Range rows, Range panels) const {
    const std::int64_t tiles = ceil_div(rows.size(), kMaxTileRows);
    std::uint32_t* packed = scratch(rows.size() * lanes_);
    for (std::int64_t t = 0; t < tiles; ++t) {
      const Range tile = share(rows.size(), t, tiles);
      pack_rows(x_ + (rows.begin + tile.begin) * x_row_bytes_, x_row_bytes_, tile.size(),
                linear_.type, linear_.in_features, tile.size(), packed + tile.begin * lanes_);
    }
    for (std::int64_t panel = panels.begin; panel < panels.end; ++panel) {
      for (std::int64_t t = 0; t < tiles; ++t) {
        const Range tile = share(rows.size(), t, tiles);
        multiply_(tile_at({rows.begin + tile.begin, rows.begin + tile.end}, panel,
                          packed + tile.begin * lanes_, wanted_soon(panel, t, tiles)));
      }
    }
  }

  struct Prefetch {
    const char* begin;
    std::int64_t step;
  };

  // A lone tile reads its panel from memory: it fetches that a little ahead. Of several tiles all
  // but the first find it in the cache, so each fetches its share of the next panel.
  Prefetch wanted_soon(std::int64_t panel, std::int64_t t, std::int64_t tiles) const {
    const auto* weight = reinterpret_cast<const char*>(linear_.weight);
    const std::int64_t panel_bytes = lanes_ * kLaneBytes;
    if (tiles == 1) return {weight + panel * panel_bytes + kPrefetchBytes, kLaneBytes};
    return {weight + (panel + 1) * panel_bytes + t * panel_bytes / tiles, kLaneBytes / tiles};
  }

  Tile tile_at(Range rows, std::int64_t panel, const std::uint32_t* packed,
               Prefetch prefetch) const {
    const std::int64_t column = panel * kPanelColumns;
    const std::int64_t at = rows.begin * linear_.out_features + column;
    return {packed, linear_.weight + panel * lanes_ * kPanelColumns,
            linear_.bias == nullptr ? nullptr : linear_.bias + column,
            y_ + at * element_bytes(linear_.y_type), lanes_, rows.size(), linear_.out_features,
            std::min(kPanelColumns, linear_.out_features - column), linear_.y_type,
            prefetch.begin, prefetch.step};
  }

  const TandemLinear& linear_;
  const TileFunction multiply_;
  const char* const x_;
  const std::int64_t x_row_bytes_;
  char* const y_;
  const std::int64_t lanes_;
  const std::int64_t panels_;
};

}  // namespace
}  // namespace tandem

extern "C" {

std::int64_t tandem_linear_packed_bytes(std::int32_t type, std::int64_t out_features,
                                        std::int64_t in_features) {
  const auto element = static_cast<tandem::ElementType>(type);
  const std::int64_t panels = tandem::ceil_div(out_features, tandem::kPanelColumns);
  return panels * tandem::num_lanes(element, in_features) * tandem::kPanelColumns * 4;
}

void tandem_linear_pack(std::int32_t type, const void* weight, std::int64_t out_features,
                        std::int64_t in_features, void* packed) {
  const auto element = static_cast<tandem::ElementType>(type);
  const std::int64_t row_bytes = in_features * tandem::element_bytes(element);
  const std::int64_t panel_words =
      tandem::num_lanes(element, in_features) * tandem::kPanelColumns;
  const std::int64_t panels = tandem::ceil_div(out_features, tandem::kPanelColumns);
  tandem::parallel_ranges(panels, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t row = panel * tandem::kPanelColumns;
      tandem::pack_rows(static_cast<const char*>(weight) + row * row_bytes, row_bytes,
                        std::min(tandem::kPanelColumns, out_features - row), element, in_features,
                        tandem::kPanelColumns,
                        static_cast<std::uint32_t*>(packed) + panel * panel_words);
    }
  });
}

void tandem_linear(const TandemLinear* linear, const void* x, std::int64_t x_stride,
                   std::int64_t rows, void* y) {
  tandem::Product(*linear, x, x_stride, y).compute(rows);
}

std::int32_t tandem_linear_weight_rows(const TandemLinear* linear, const std::int64_t* indices,
                                       std::int64_t num_indices, void* out) {
  const auto exists = [&](std::int64_t i) { return i >= 0 && i < linear->out_features; };
  if (!std::all_of(indices, indices + num_indices, exists)) return 0;
  const std::int64_t lanes = tandem::num_lanes(linear->type, linear->in_features);
  const std::int64_t row_bytes = linear->in_features * tandem::element_bytes(linear->type);
  const auto copy = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t panel = indices[i] / tandem::kPanelColumns;
      tandem::unpack_row(linear->weight + panel * lanes * tandem::kPanelColumns,
                         tandem::kPanelColumns, indices[i] % tandem::kPanelColumns, linear->type,
                         linear->in_features, static_cast<char*>(out) + i * row_bytes);
    }
  };
  tandem::parallel_ranges(num_indices, tandem::kMinWeightRows, copy);
  return 1;
}
}
