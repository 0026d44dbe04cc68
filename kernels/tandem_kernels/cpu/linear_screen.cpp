// Rows' bytes by all panels, then those panels in full that may hold a row's largest output.
//
//     pack     a row to 16 bits, as ever, and these to bytes beside it
//     screen   panel by panel: approximate outputs, the most any of them may be, and the least that
//              the row's largest is
//     settle   panel by panel: rows that may reach that least there
#include "linear_screen.h"

#include <cmath>
#include <limits>

#include "linear_activations.h"
#include "linear_tile_rows.h"
#include "scratch.h"
#include "simd_math.h"
#include "thread_pool.h"

namespace tandem {
namespace {

constexpr float kLeast = -std::numeric_limits<float>::max();
// Lengths are rounded up by this; what is rounded on the way to an output, here and in full, is less than
// kRounding |x| |w|.
constexpr float kUp = 1.0f + 1e-4f;
constexpr float kRounding = 1e-5f;
// Rows that are taken at a time, which bounds the working memory.
constexpr std::int64_t kMaxRows = 64;
constexpr std::int64_t kPartsPerThread = 4;
// Words of a panel are four elements of K in this order (linear_weights.cpp), two lanes of a row's.
constexpr int kOrder[4] = {0, 2, 1, 3};
constexpr int kAtOnce = kRowsAtOnce / 2;

// A row as screening multiplies it.
struct ScreenRow {
  float step;   // what 1 of its 16-bit numbers stands for
  float error;  // of an output, for each unit of |w|
};

constexpr std::int64_t kPieceWords = kPieceColumns / 4;

std::int64_t num_pieces(const Layout& layout) { return ceil_div(layout.words, kPieceWords); }

// Where `Layout` has the words of a piece.
std::int64_t piece_at(const Layout& layout, std::int64_t piece) {
  const std::int64_t word = piece * kPieceWords, unit = word / layout.unit_words;
  return layout.words_at(unit) + (word - unit * layout.unit_words) * kWordsBytes;
}

std::int64_t words_of_piece(const Layout& layout, std::int64_t piece) {
  return std::min(kPieceWords, layout.words - piece * kPieceWords);
}

// Rounds the 16-bit numbers of a row to bytes: words of bytes plus 128, and a scale for each piece, all of
// them `stride` apart.
ScreenRow to_bytes(const Layout& layout, const std::uint32_t* packed, std::uint32_t* words,
                   float* scales, std::int64_t stride) {
  const auto* numbers = reinterpret_cast<const std::int16_t*>(packed);
  const float step = bit_cast<float>(packed[layout.x_lanes]);
  float whole = 0.0f, rest = 0.0f;
  for (std::int64_t piece = 0; piece < num_pieces(layout); ++piece) {
    const std::int64_t count = words_of_piece(layout, piece) * 4;
    const std::int16_t* from = numbers + piece * kPieceColumns;
    std::int32_t peak = 1;
    for (std::int64_t i = 0; i < count; ++i) peak = std::max<std::int32_t>(peak, std::abs(from[i]));
    const float scale = static_cast<float>(peak) / 127.0f, inverse = 127.0f / static_cast<float>(peak);
    std::uint8_t bytes[kPieceColumns] = {};
    for (std::int64_t i = 0; i < count; ++i) {
      const float number = from[i], byte = std::nearbyint(number * inverse);
      const float left = number - byte * scale;
      whole += number * number;
      rest += left * left;
      bytes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(byte) + 128);
    }
    for (std::int64_t w = 0; w * 4 < count; ++w) {
      std::uint32_t word = 0;
      for (int i = 0; i < 4; ++i) word |= std::uint32_t{bytes[w * 4 + kOrder[i]]} << (8 * i);
      words[(piece * kPieceWords + w) * stride] = word;
    }
    scales[piece * stride] = scale;
  }
  return {step, step * kUp * (std::sqrt(rest) + kRounding * std::sqrt(whole))};
}

struct ScreenTile {
  const std::uint32_t* x;  // [words][rows]
  const float* x_scales;   // [pieces][rows]
  const ScreenRow* rows;
  const char* panel;
  const std::int16_t* sums;
  const float* lengths;
  float* y;  // row r starts at r * y_stride
  std::int64_t num_rows;
  std::int64_t y_stride;
  std::int64_t columns;
  float* most;   // [rows], of the panel; kLeast where that is below `least`
  float* least;  // [rows], raised to what the panel's largest output is at least
};

template <int R>
void screen_rows(const Layout& layout, const ScreenTile& tile, std::int64_t first) {
  Floats outputs[R][kVectors] = {};
  const std::uint32_t* x = tile.x + first;
  const float* x_scales = tile.x_scales + first;
  const std::int16_t* sums = tile.sums;
  for (std::int64_t piece = 0; piece < num_pieces(layout); ++piece) {
    const char* weight = tile.panel + piece_at(layout, piece);
    Ints ints[R][kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      NarrowShorts narrow;
      std::memcpy(&narrow, sums + v * kLanes, sizeof narrow);
      const Ints start = __builtin_convertvector(narrow, Ints) * -128;
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) ints[r][v] = start;
    }
    for (std::int64_t word = 0; word < words_of_piece(layout, piece); ++word) {
      Words columns[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) columns[v] = load_words(weight + v * sizeof(Words));
      if (first == 0) {  // the next panel, once
        __builtin_prefetch(weight + layout.panel_bytes, 0, 2);
        __builtin_prefetch(weight + layout.panel_bytes + 64, 0, 2);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Words row = spread(x[r]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) ints[r][v] = dot_bytes(ints[r][v], row, columns[v]);
      }
      x += tile.num_rows;
      weight += kWordsBytes;
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const Floats scale = broadcast(x_scales[r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        outputs[r][v] = fused(to_floats(ints[r][v]), scale, outputs[r][v]);
      }
    }
    x_scales += tile.num_rows;
    sums += kPanelColumns;
  }
  const ScaleLoader scale_loader(layout);
  Floats scales[kVectors], lengths[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    scales[v] = scale_loader.load(tile.panel, v);
    lengths[v] = load(tile.lengths + v * kLanes);
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    const std::int64_t at = first + r;
    const ScreenRow& row = tile.rows[at];
    Floats most = broadcast(kLeast), least = broadcast(kLeast);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t count = std::min<std::int64_t>(tile.columns - v * kLanes, kLanes);
      if (count <= 0) continue;
      const Floats output = outputs[r][v] * scales[v] * broadcast(row.step);
      const Floats error = lengths[v] * broadcast(row.error);
      Floats high = output + error, low = output - error;
      float* y = tile.y + at * tile.y_stride + v * kLanes;
      if (count == kLanes) {
        stream(y, output);  // rows lie a multiple of pages apart: in a cache they would evict each other
      } else {
        store_some(y, output, count);
        for (std::int64_t i = count; i < kLanes; ++i) high[i] = low[i] = kLeast;
      }
      most = larger(high, most);
      least = larger(low, least);
    }
    // Few panels reach what an earlier one has: most are done with one comparison.
    if (all_below(most, tile.least[at])) {
      tile.most[at] = kLeast;
    } else {
      tile.most[at] = largest_lane(most);
      tile.least[at] = std::max(tile.least[at], largest_lane(least));
    }
  }
}

template <int R>
void screen_some(const Layout& layout, const ScreenTile& tile, std::int64_t first) {
  if constexpr (R > 0) {
    if (tile.num_rows - first == R) return screen_rows<R>(layout, tile, first);
    screen_some<R - 1>(layout, tile, first);
  }
}

void screen_tile(const Layout& layout, const ScreenTile& tile) {
  std::int64_t row = 0;
  for (; row + kAtOnce <= tile.num_rows; row += kAtOnce) screen_rows<kAtOnce>(layout, tile, row);
  screen_some<kAtOnce - 1>(layout, tile, row);
}

class Screening {
 public:
  Screening(const TandemLinear& linear, const TandemScreen& screen, const char* x,
            std::int64_t x_row_bytes, std::int64_t rows, float* y)
      : linear_(linear),
        layout_(linear),
        screen_(screen),
        rows_(rows),
        parts_(std::min<std::int64_t>(layout_.panels, num_threads() * kPartsPerThread)),
        y_(y) {
    Scratch& scratch = thread_scratch();
    const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    const std::int64_t packed = rows * layout_.x_words(), bytes = rows * layout_.words;
    const std::int64_t scales = rows * num_pieces(layout_);
    const std::int64_t most = rows * layout_.panels, least = rows * parts_;
    scratch.reset(Scratch::measure<std::uint32_t>(count(packed)) +
                  Scratch::measure<std::uint32_t>(count(bytes)) +
                  Scratch::measure<float>(count(scales)) + Scratch::measure<ScreenRow>(count(rows)) +
                  Scratch::measure<float>(count(most)) + Scratch::measure<float>(count(least)) +
                  Scratch::measure<char>(count(tile_room_bytes(layout_))));
    packed_ = scratch.take<std::uint32_t>(count(packed));
    bytes_ = scratch.take<std::uint32_t>(count(bytes));
    scales_ = scratch.take<float>(count(scales));
    screened_ = scratch.take<ScreenRow>(count(rows));
    most_ = scratch.take<float>(count(most));
    least_ = scratch.take<float>(count(least));
    void* room = scratch.take<char>(count(tile_room_bytes(layout_)));
    for (std::int64_t r = 0; r < rows; ++r) {
      pack_tile(linear, layout_, x + r * x_row_bytes, x_row_bytes, 1, room, packed_row(r));
      screened_[r] = to_bytes(layout_, packed_row(r), bytes_ + r, scales_ + r, rows);
    }
  }

  void run() const {
    parallel_parts(static_cast<int>(parts_), [&](int part) { screen(part); });
    for (std::int64_t part = 1; part < parts_; ++part) {
      const float* least = least_ + part * rows_;
      for (std::int64_t r = 0; r < rows_; ++r) least_[r] = std::max(least_[r], least[r]);
    }
    parallel_parts(static_cast<int>(parts_), [&](int part) { settle(part); });
  }

 private:
  std::uint32_t* packed_row(std::int64_t r) const { return packed_ + r * layout_.x_words(); }

  const char* panel_at(std::int64_t panel) const {
    return static_cast<const char*>(linear_.weight) + panel * layout_.panel_bytes;
  }

  std::int64_t columns_of(std::int64_t panel) const {
    return std::min(kPanelColumns, linear_.out_features - panel * kPanelColumns);
  }

  void screen(std::int64_t part) const {
    float* least = least_ + part * rows_;
    std::fill_n(least, rows_, kLeast);
    const Range panels = share(layout_.panels, part, parts_);
    for (std::int64_t panel = panels.begin; panel < panels.end; ++panel) {
      const std::int64_t column = panel * kPanelColumns;
      screen_tile(layout_, {bytes_, scales_, screened_, panel_at(panel),
                            screen_.sums + column * num_pieces(layout_), screen_.lengths + column,
                            y_ + column, rows_, linear_.out_features, columns_of(panel),
                            most_ + panel * rows_, least});
    }
    finish_streams();
  }

  bool is_wanted(std::int64_t panel, std::int64_t r) const {
    return !(most_[panel * rows_ + r] < least_[r]);
  }

  // The first of [begin, end) that some row wants in full; `end` if there is none.
  std::int64_t next_wanted(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      for (std::int64_t r = 0; r < rows_; ++r) {
        if (is_wanted(panel, r)) return panel;
      }
    }
    return end;
  }

  // A panel comes from memory once, for all rows that want it, while the one before is multiplied.
  void settle(std::int64_t part) const {
    const TileFunction multiply = tile_functions(linear_).multiply;
    const Range panels = share(layout_.panels, part, parts_);
    std::int64_t next;
    for (std::int64_t panel = next_wanted(panels.begin, panels.end); panel < panels.end; panel = next) {
      next = next_wanted(panel + 1, panels.end);
      const std::int64_t column = panel * kPanelColumns;
      for (std::int64_t r = 0; r < rows_; ++r) {
        if (!is_wanted(panel, r)) continue;
        multiply(layout_, {packed_row(r), panel_at(panel), nullptr, nullptr,
                           y_ + r * linear_.out_features + column, 1, linear_.out_features,
                           columns_of(panel), ElementType::kFloat32, panel_at(next), kWordsBytes});
      }
    }
  }

  const TandemLinear& linear_;
  const Layout layout_;
  const TandemScreen& screen_;
  const std::int64_t rows_;
  const std::int64_t parts_;
  float* const y_;
  std::uint32_t* packed_;  // [rows][x_words]
  std::uint32_t* bytes_;   // [words][rows]
  float* scales_;          // [pieces][rows]
  ScreenRow* screened_;    // [rows]
  float* most_;            // [panels][rows]
  float* least_;           // [parts][rows]; before `settle` the first part's become those of all
};

}  // namespace
}  // namespace tandem

extern "C" {

std::int32_t tandem_linear_can_screen(const TandemLinear* linear) {
  return linear->format == tandem::WeightFormat::kInt8 && linear->has_offsets == 0 &&
         linear->group_size >= linear->in_features && linear->bias == nullptr &&
         linear->y_type == tandem::ElementType::kFloat32;
}

std::int64_t tandem_linear_screen_sums(const TandemLinear* linear) {
  const tandem::Layout layout(*linear);
  return layout.panels * tandem::num_pieces(layout) * tandem::kPanelColumns;
}

std::int64_t tandem_linear_screen_lengths(const TandemLinear* linear) {
  return tandem::Layout(*linear).panels * tandem::kPanelColumns;
}

void tandem_linear_make_screen(const TandemLinear* linear, std::int16_t* sums, float* lengths) {
  using namespace tandem;
  const Layout layout(*linear);
  const std::int64_t pieces = num_pieces(layout);
  const auto make = [&](std::int64_t panel, std::int64_t column) {
    const char* at = static_cast<const char*>(linear->weight) + panel * layout.panel_bytes;
    const float scale = linear->half_scales != 0
                            ? float16_value(reinterpret_cast<const std::uint16_t*>(at)[column])
                            : reinterpret_cast<const float*>(at)[column];
    std::int64_t squares = 0;
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      const auto* numbers = reinterpret_cast<const std::int8_t*>(at + piece_at(layout, piece));
      std::int32_t sum = 0;
      for (std::int64_t word = 0; word < words_of_piece(layout, piece); ++word) {
        for (int i = 0; i < 4; ++i) {
          const std::int32_t number = numbers[word * kWordsBytes + column * 4 + i];
          sum += number;
          squares += number * number;
        }
      }
      sums[(panel * pieces + piece) * kPanelColumns + column] = static_cast<std::int16_t>(sum);
    }
    lengths[panel * kPanelColumns + column] =
        std::abs(scale) * std::sqrt(static_cast<float>(squares)) * kUp;
  };
  parallel_ranges(layout.panels, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      for (std::int64_t column = 0; column < kPanelColumns; ++column) make(panel, column);
    }
  });
}

void tandem_linear_largest(const TandemLinear* linear, const TandemScreen* screen, const void* x,
                           std::int64_t x_stride, std::int64_t rows, float* y) {
  using namespace tandem;
  const std::int64_t row_bytes = x_stride * element_bytes(linear->type);
  for (std::int64_t begin = 0; begin < rows; begin += kMaxRows) {
    Screening(*linear, *screen, static_cast<const char*>(x) + begin * row_bytes, row_bytes,
              std::min(kMaxRows, rows - begin), y + begin * linear->out_features)
        .run();
  }
}
}
