// Norms, sums and activations on plain pointers, split by rows.
#include "elementwise.h"

#include "norm_rows.h"
#include "thread_pool.h"

namespace tandem {
namespace {

// Elements that one thread computes in about the time in which another one begins.
constexpr std::int64_t kMinElements = 2 * 1024;

// f(row) for all rows.
template <class F>
void for_each_row(std::int64_t rows, std::int64_t width, const F& f) {
  parallel_ranges(rows, kMinElements / width + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) f(r);
  });
}

template <class T>
void norm_row(const TandemNorm& norm, const T* x, T* out, std::int64_t width, float eps) {
  const T* weight = static_cast<const T*>(norm.weight);
  if (norm.bias == nullptr) {
    rms_norm_row(x, weight, out, width, eps);
  } else {
    layer_norm_row(x, weight, static_cast<const T*>(norm.bias), out, width, eps);
  }
}

template <class F, class T>
void activate(bool gated, const T* x, T* out, std::int64_t rows, std::int64_t width) {
  for_each_row(rows, width, [&](std::int64_t r) {
    if (gated) {
      gate_row<F>(x + r * 2 * width, out + r * width, width);
    } else {
      activate_row<F>(x + r * width, out + r * width, width);
    }
  });
}

}  // namespace

void norm_rows(ElementType element, const TandemNorm& norm, const void* x, std::int64_t stride,
               std::int64_t heads, void* out, std::int64_t out_stride, std::int64_t tokens,
               std::int64_t width, float eps) {
  with_element(element, [&](auto* type) {
    using T = Pointee<decltype(type)>;
    for_each_row(tokens, heads * width, [&](std::int64_t t) {
      const T* from = static_cast<const T*>(x) + t * stride;
      T* to = static_cast<T*>(out) + t * out_stride;
      for (std::int64_t h = 0; h < heads; ++h) {
        norm_row(norm, from + h * width, to + h * width, width, eps);
      }
    });
  });
}

void add_norm_rows(ElementType element, void* residual, void* summand, const TandemNorm& post,
                   const TandemNorm& norm, void* out, std::int64_t rows, std::int64_t width,
                   float eps) {
  with_element(element, [&](auto* type) {
    using T = Pointee<decltype(type)>;
    for_each_row(rows, width, [&](std::int64_t r) {
      T* total = static_cast<T*>(residual) + r * width;
      T* added = static_cast<T*>(summand) + r * width;
      if (post.weight != nullptr) norm_row(post, added, added, width, eps);
      T* normed = static_cast<T*>(out) + r * width;
      if (norm.weight != nullptr && norm.bias == nullptr) {
        add_rms_norm_row(total, added, static_cast<const T*>(norm.weight), normed, width, eps);
      } else {
        add_row(total, added, width);
        if (norm.weight != nullptr) norm_row(norm, total, normed, width, eps);
      }
    });
  });
}

void add_rows(ElementType element, void* total, const void* summand, std::int64_t rows,
              std::int64_t width) {
  with_element(element, [&](auto* type) {
    using T = Pointee<decltype(type)>;
    for_each_row(rows, width, [&](std::int64_t r) {
      add_row(static_cast<T*>(total) + r * width, static_cast<const T*>(summand) + r * width,
              width);
    });
  });
}

void scale_rows(ElementType element, void* x, float factor, std::int64_t rows, std::int64_t width) {
  with_element(element, [&](auto* type) {
    using T = Pointee<decltype(type)>;
    for_each_row(rows, width, [&](std::int64_t r) {
      T* row = static_cast<T*>(x) + r * width;
      for_each_vector(width, [&](std::int64_t i, std::int64_t count) {
        put(row + i, take(row + i, count) * factor, count);
      });
    });
  });
}

void activate_rows(ElementType element, Activation activation, bool gated, const void* x, void* out,
                   std::int64_t rows, std::int64_t width) {
  with_element(element, [&](auto* type) {
    using T = Pointee<decltype(type)>;
    const T* from = static_cast<const T*>(x);
    T* to = static_cast<T*>(out);
    switch (activation) {
      case Activation::kSilu:
        return activate<Silu>(gated, from, to, rows, width);
      case Activation::kGelu:
        return activate<Gelu>(gated, from, to, rows, width);
      case Activation::kGeluTanh:
        return activate<GeluTanh>(gated, from, to, rows, width);
    }
  });
}

void softcap_rows(float* scores, std::int64_t rows, std::int64_t width, float cap) {
  for_each_row(rows, width, [&](std::int64_t r) { softcap_row(scores + r * width, width, cap); });
}

}  // namespace tandem

// `element` is an ElementType; strides count elements.
extern "C" {

void tandem_norm(std::int32_t element, const void* weight, const void* bias, const void* x,
                 std::int64_t stride, std::int64_t heads, void* out, std::int64_t tokens,
                 std::int64_t width, float eps) {
  tandem::norm_rows(static_cast<tandem::ElementType>(element), {weight, bias}, x, stride, heads,
                    out, heads * width, tokens, width, eps);
}

// residual += x, then x = RMSNorm(residual).
void tandem_add_rms_norm(std::int32_t element, void* x, void* residual, const void* weight,
                         std::int64_t rows, std::int64_t width, float eps) {
  tandem::add_norm_rows(static_cast<tandem::ElementType>(element), residual, x, {}, {weight, nullptr},
                        x, rows, width, eps);
}

void tandem_activate(std::int32_t element, std::int32_t activation, std::int32_t gated,
                     const void* x, void* out, std::int64_t rows, std::int64_t width) {
  tandem::activate_rows(static_cast<tandem::ElementType>(element),
                        static_cast<tandem::Activation>(activation), gated != 0, x, out, rows,
                        width);
}
}
