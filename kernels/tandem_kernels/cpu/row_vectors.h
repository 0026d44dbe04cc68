// A row of float32 or bfloat16 as vectors, the last of which may be short.
#pragma once

#include <cstdint>
#include <type_traits>

#include "linear_tile.h"
#include "simd.h"

namespace tandem {

// f(i, count) for all elements of a row: count is kLanes but for the last few.
template <class F>
inline void for_each_vector(std::int64_t width, const F& f) {
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) f(i, static_cast<std::int64_t>(kLanes));
  if (i < width) f(i, width - i);
}

template <class T>
inline Floats take(const T* from, std::int64_t count) {
  return count == kLanes ? load(from) : load_some(from, count);
}

template <class T>
inline void put(T* to, Floats values, std::int64_t count) {
  if (count == kLanes) {
    store(to, values);
  } else {
    store_some(to, values, count);
  }
}

// f(null pointer of the type that `element` names).
template <class F>
inline void with_element(ElementType element, const F& f) {
  if (element == ElementType::kFloat32) {
    f(static_cast<float*>(nullptr));
  } else {
    f(static_cast<Bfloat16*>(nullptr));
  }
}

template <class Pointer>
using Pointee = std::remove_pointer_t<Pointer>;

}  // namespace tandem
