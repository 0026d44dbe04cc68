// Copies KV blocks between the pool and contiguous staging, and from block to block.
//
//   block     [runs][run_stride]     the first run_bytes of each run are copied: some heads of each
//   staging   [blocks][runs][run_bytes]                                       layer's keys or values
//
// What is written is read much later, if by this core at all: it goes past the caches, which saves
// reading the lines that are overwritten.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "simd.h"
#include "thread_pool.h"

namespace tandem {
namespace {

// Bytes that one thread copies in about the time in which another one wakes.
constexpr std::int64_t kMinBytes = 256 * 1024;

#if defined(__x86_64__)
constexpr std::int64_t kLineBytes = 64;

// `to` is aligned.
inline void stream_line(char* to, const char* from) {
#if defined(TANDEM_AVX512)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
#else
  for (std::int64_t i = 0; i < kLineBytes; i += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), bytes);
  }
#endif
}

void copy_past_caches(char* to, const char* from, std::int64_t size) {
  const std::int64_t unaligned = -reinterpret_cast<std::intptr_t>(to) & (kLineBytes - 1);
  const std::int64_t head = std::min(unaligned, size);
  std::memcpy(to, from, static_cast<std::size_t>(head));
  std::int64_t i = head;
  for (; i + kLineBytes <= size; i += kLineBytes) {
    stream_line(to + i, from + i);
  }
  std::memcpy(to + i, from + i, static_cast<std::size_t>(size - i));
}

void finish_copies() { _mm_sfence(); }
#else
void copy_past_caches(char* to, const char* from, std::int64_t size) {
  std::memcpy(to, from, static_cast<std::size_t>(size));
}

void finish_copies() {}
#endif

struct Runs {
  std::int64_t number;
  std::int64_t stride;
  std::int64_t size;

  std::int64_t packed_size() const { return number * size; }
};

void copy_runs(char* to, std::int64_t to_stride, const char* from, std::int64_t from_stride,
               const Runs& runs) {
  for (std::int64_t r = 0; r < runs.number; ++r) {
    copy_past_caches(to + r * to_stride, from + r * from_stride, runs.size);
  }
}

template <class Copy>
void for_each_block(std::int64_t num_blocks, std::int64_t block_bytes, const Copy& copy) {
  parallel_ranges(num_blocks, kMinBytes / block_bytes + 1,
                  [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) copy(i);
    finish_copies();
  });
}

}  // namespace
}  // namespace tandem

// `pool` points at the first byte to be copied of block 0; sizes and strides are bytes.
extern "C" {

// On the caller's thread alone: it packs for the network while the compute threads are at work.
void tandem_pack_blocks(const char* pool, std::int64_t block_stride, const std::int64_t* blocks,
                        std::int64_t num_blocks, std::int64_t num_runs, std::int64_t run_stride,
                        std::int64_t run_bytes, char* staging) {
  const tandem::Runs runs{num_runs, run_stride, run_bytes};
  for (std::int64_t i = 0; i < num_blocks; ++i) {
    tandem::copy_runs(staging + i * runs.packed_size(), runs.size,
                      pool + blocks[i] * block_stride, runs.stride, runs);
  }
  tandem::finish_copies();
}

// All different.
void tandem_unpack_blocks(char* pool, std::int64_t block_stride, const std::int64_t* blocks,
                          std::int64_t num_blocks, std::int64_t num_runs, std::int64_t run_stride,
                          std::int64_t run_bytes, const char* staging) {
  const tandem::Runs runs{num_runs, run_stride, run_bytes};
  tandem::for_each_block(num_blocks, runs.packed_size(), [&](std::int64_t i) {
    tandem::copy_runs(pool + blocks[i] * block_stride, runs.stride,
                      staging + i * runs.packed_size(), runs.size, runs);
  });
}

// pairs [num_pairs][2], source and target; no target is a source or another pair's target.
void tandem_copy_blocks(char* pool, std::int64_t block_stride, const std::int64_t* pairs,
                        std::int64_t num_pairs) {
  tandem::for_each_block(num_pairs, block_stride, [&](std::int64_t i) {
    tandem::copy_past_caches(pool + pairs[2 * i + 1] * block_stride,
                             pool + pairs[2 * i] * block_stride, block_stride);
  });
}
}
