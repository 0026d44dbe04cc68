// Who computes what:
//
//     x > blocks of rows > pack (and quantise) a block once, side by side into tiles
//       > parts: chunk of rows that fits a core's cache x range of panels > panel by panel > tiles
//
// Parts are more than threads and follow from sizes and the number of threads alone: a thread that
// another process holds up leaves the rest to the others.
#include "linear.h"

#include "linear_activations.h"
#include "linear_tile.h"
#include "scratch.h"
#include "thread_pool.h"

namespace tandem {

TileFunctions tile_functions(const TandemLinear& linear) {
  const bool offsets = linear.has_offsets != 0;
  switch (linear.format) {
    case WeightFormat::kPlain:
      return {linear.type == ElementType::kFloat32 ? float32_tile() : bfloat16_tile()};
    case WeightFormat::kInt4: return nibbles_tiles(offsets);
    case WeightFormat::kW8A8: return {bytes_tile()};
    default: return shorts_tiles(offsets);
  }
}

namespace {

// Packed rows that are kept at a time: enough that weights are read again from memory seldom.
constexpr std::int64_t kBlockBytes = 4 * 1024 * 1024;
// Packed rows of a part, which leave half of a usual second-level cache to a panel.
constexpr std::int64_t kChunkBytes = 384 * 1024;
constexpr std::int64_t kPartsPerThread = 4;
// Multiply-adds of words below which another thread's waking costs more than it takes off.
constexpr std::int64_t kMinWork = 128 * 1024;
// Weights of a part, so that starting to read them is a small share of reading them.
constexpr std::int64_t kMinPartBytes = 64 * 1024;
// Numbers of x that one thread packs sooner than another wakes.
constexpr std::int64_t kMinPacked = 16 * 1024;
// How far a lone tile fetches ahead, into the next panel at last: memory's latency at full rate.
constexpr std::int64_t kPrefetchBytes = 8192;
// Rows up to which a lone tile leaves that to the core itself, which then runs ahead far enough. On
// Zen 4, fetching made a step with 1 row 8-12 % slower in bfloat16, w8a8 and int8, with 4 rows 5 %;
// not fetching, one with 8 rows 13 %.
constexpr std::int64_t kMaxUnfetchedRows = 4;

// Tiles that use a panel, from which on it pays to widen it once.
constexpr std::int64_t kMinWideTiles = 3;

// Apart from other kernels' working memory: they may hold theirs while they call a linear.
Scratch& tile_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

Scratch& wide_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

class Product {
 public:
  Product(const TandemLinear& linear, const void* x, std::int64_t x_stride, void* y)
      : linear_(linear),
        layout_(linear),
        functions_(tile_functions(linear)),
        x_(static_cast<const char*>(x)),
        x_row_bytes_(x_stride * element_bytes(linear.type)),
        y_(static_cast<char*>(y)) {}

  void compute(std::int64_t rows) const {
    const std::int64_t fitting = kBlockBytes / (layout_.x_words() * 4);
    const std::int64_t blocks = ceil_div(rows, std::max(fitting, kMaxTileRows));
    for (std::int64_t b = 0; b < blocks; ++b) compute_block(share(rows, b, blocks));
  }

 private:
  // A block's rows from `begin` on, in `count` tiles of about equal height: 13 are 6 + 7.
  struct Tiles {
    Range rows;
    std::int64_t count;
    std::uint32_t* packed;
    Range of(std::int64_t tile) const {
      const Range part = share(rows.size(), tile, count);
      return {rows.begin + part.begin, rows.begin + part.end};
    }
  };

  void compute_block(Range rows) const {
    const std::int64_t packed_words = rows.size() * layout_.x_words();
    Scratch& scratch = tile_scratch();
    scratch.reset(Scratch::measure<std::uint32_t>(static_cast<std::size_t>(packed_words)));
    const Tiles tiles{rows, ceil_div(rows.size(), kMaxTileRows),
                      scratch.take<std::uint32_t>(static_cast<std::size_t>(packed_words))};
    pack(tiles);
    multiply(tiles);
  }

  std::uint32_t* packed_tile(const Tiles& tiles, std::int64_t tile) const {
    return tiles.packed + (tiles.of(tile).begin - tiles.rows.begin) * layout_.x_words();
  }

  void pack(const Tiles& tiles) const {
    const std::int64_t numbers = linear_.in_features * kMaxTileRows;
    const std::int64_t tiles_at_least = std::max<std::int64_t>(1, kMinPacked / numbers);
    parallel_ranges(tiles.count, tiles_at_least, [&](std::int64_t begin, std::int64_t end) {
      static thread_local Scratch room;
      room.reset(static_cast<std::size_t>(tile_room_bytes(layout_)));
      for (std::int64_t t = begin; t < end; ++t) {
        const Range rows = tiles.of(t);
        pack_tile(linear_, layout_, x_ + rows.begin * x_row_bytes_, x_row_bytes_, rows.size(),
                  room.take<char>(0), packed_tile(tiles, t));
      }
    });
  }

  void multiply(const Tiles& tiles) const {
    const std::int64_t bytes = tiles.rows.size() * layout_.x_words() * 4;
    const std::int64_t chunks = std::min(ceil_div(bytes, kChunkBytes), tiles.count);
    const std::int64_t ranges = panel_ranges(tiles.rows.size(), chunks);
    parallel_parts(static_cast<int>(chunks * ranges), [&](int part) {
      multiply_part(tiles, share(tiles.count, part / ranges, chunks),
                    share(layout_.panels, part % ranges, ranges));
    });
  }

  // Into how many ranges the panels are divided, for each chunk of rows.
  std::int64_t panel_ranges(std::int64_t rows, std::int64_t chunks) const {
    if (num_threads() == 1) return 1;
    const std::int64_t work = rows * layout_.x_lanes * linear_.out_features;
    const std::int64_t bytes = layout_.panels * layout_.panel_bytes;
    const std::int64_t wanted = ceil_div(num_threads() * kPartsPerThread, chunks);
    const std::int64_t threads = std::min<std::int64_t>(num_threads(), work / kMinWork);
    const std::int64_t worthwhile = std::max(threads, std::max(work / kMinWork, bytes / kMinPartBytes));
    return std::clamp<std::int64_t>(std::min(wanted, worthwhile), 1, layout_.panels);
  }

  void multiply_part(const Tiles& tiles, Range chunk, Range panels) const {
    std::uint32_t* wide = nullptr;
    if (functions_.widen != nullptr && chunk.size() >= kMinWideTiles) {
      Scratch& scratch = wide_scratch();
      scratch.reset(static_cast<std::size_t>(layout_.x_lanes * kWordsBytes));
      wide = scratch.take<std::uint32_t>(0);
    }
    const TileFunction multiply = wide == nullptr ? functions_.multiply : functions_.multiply_wide;
    for (std::int64_t panel = panels.begin; panel < panels.end; ++panel) {
      if (wide != nullptr) functions_.widen(layout_, panel_at(panel), wide);
      for (std::int64_t t = chunk.begin; t < chunk.end; ++t) {
        Tile tile = tile_at(tiles.of(t), panel, packed_tile(tiles, t),
                            wanted_soon(panel, t - chunk.begin, chunk.size(), tiles.rows.size()));
        tile.wide = wide;
        multiply(layout_, tile);
      }
    }
  }

  const char* panel_at(std::int64_t panel) const {
    return static_cast<const char*>(linear_.weight) + panel * layout_.panel_bytes;
  }

  struct Prefetch {
    const char* begin;
    std::int64_t step;
  };

  // A lone tile reads its panel from memory: it fetches that a little ahead, or nothing but what it
  // reads already. Of several tiles all but the first find it in the cache, so each fetches its
  // share of the next panel.
  Prefetch wanted_soon(std::int64_t panel, std::int64_t t, std::int64_t tiles,
                       std::int64_t rows) const {
    const std::int64_t ahead = rows <= kMaxUnfetchedRows ? 0 : kPrefetchBytes;
    if (tiles == 1) return {panel_at(panel) + ahead, kWordsBytes};
    return {panel_at(panel) + layout_.panel_bytes * (tiles + t) / tiles, kWordsBytes / tiles};
  }

  Tile tile_at(Range rows, std::int64_t panel, const std::uint32_t* packed,
               Prefetch prefetch) const {
    const std::int64_t column = panel * kPanelColumns;
    const std::int64_t at = rows.begin * linear_.out_features + column;
    return {packed,
            panel_at(panel),
            nullptr,
            linear_.bias == nullptr ? nullptr : linear_.bias + column,
            y_ + at * element_bytes(linear_.y_type),
            rows.size(),
            linear_.out_features,
            std::min(kPanelColumns, linear_.out_features - column),
            linear_.y_type,
            prefetch.begin,
            prefetch.step};
  }

  const TandemLinear& linear_;
  const Layout layout_;
  const TileFunctions functions_;
  const char* const x_;
  const std::int64_t x_row_bytes_;
  char* const y_;
};

}  // namespace
}  // namespace tandem

extern "C" void tandem_linear(const TandemLinear* linear, const void* x, std::int64_t x_stride,
                              std::int64_t rows, void* y) {
  tandem::Product(*linear, x, x_stride, y).compute(rows);
}
