// Working memory of one thread, kept from call to call.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace tandem {

// Hands out pieces of one aligned allocation. Two passes: `measure` the pieces, then take them.
class Scratch {
 public:
  // Forgets all pieces and makes room for `size_bytes` of them.
  void reset(std::size_t size_bytes) {
    used_bytes_ = 0;
    if (size_bytes <= size_bytes_) return;
    size_bytes_ = padded(size_bytes);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, size_bytes_)));
    if (memory_ == nullptr) std::abort();  // as the operating system would when pages run out
  }

  template <class T>
  T* take(std::size_t count) {
    T* piece = reinterpret_cast<T*>(memory_.get() + used_bytes_);
    used_bytes_ += measure<T>(count);
    return piece;
  }

  // What `take` uses up.
  template <class T>
  static std::size_t measure(std::size_t count) {
    return padded(count * sizeof(T));
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  static std::size_t padded(std::size_t size) {
    return (size + kAlignment - 1) / kAlignment * kAlignment;
  }

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_bytes_ = 0;
  std::size_t used_bytes_ = 0;
};

// The calling thread's own. A kernel that holds pieces of it calls no other kernel.
inline Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

}  // namespace tandem
