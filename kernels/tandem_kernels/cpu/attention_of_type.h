// Attention over a cache of one type. Each type is compiled in a file of its own, all at once.
#pragma once

#include <type_traits>

#include "attention_few_bytes.h"
#include "attention_few_rows.h"
#include "attention_few_words.h"
#include "attention_many_bytes.h"
#include "attention_many_rows.h"
#include "attention_many_words.h"
#include "attention_plan.h"
#include "thread_pool.h"

namespace tandem {

// Few computes a tile for few rows, Many for many of them.
template <class Few, class Many>
class Attention {
 public:
  explicit Attention(const AttentionCall& call) : call_(call) {}

  void run(AttentionPlan& plan) const {
    plan.make(call_, num_threads(), FewRows<Few>::partial_size(call_));
    const AttentionJob* jobs = plan.jobs().data();
    parallel_parts(static_cast<int>(plan.parts().size()), [&](int i) {
      const AttentionPart& part = plan.parts()[static_cast<std::size_t>(i)];
      compute({jobs + part.first, jobs + part.end, part.first_tile, part.end_tile});
    });
    if (!plan.has_partials()) return;
    FewRows<Few> rows(call_, thread_scratch());
    for (const AttentionJob& job : plan.jobs()) {
      if (job.partials != nullptr) rows.merge_partials(job);
    }
  }

 private:
  bool is_few(const AttentionJob& job) const {
    return (job.end - job.begin) * call_.group() <= kFewRows || job.partials != nullptr;
  }

  // Neighbouring jobs of one kind follow each other without a pause.
  void compute(const TileRange& range) const {
    for (const AttentionJob* job = range.first; job != range.end;) {
      const bool few = is_few(*job);
      const AttentionJob* next = job;
      while (next != range.end && is_few(*next) == few) ++next;
      if (few) {
        FewRows<Few>(call_, thread_scratch())
            .compute({job, next, range.first_tile, range.end_tile});
      } else {
        ManyRows<Many> rows(call_, thread_scratch());
        for (; job != next; ++job) rows.compute(*job);
      }
      job = next;
    }
  }

  const AttentionCall& call_;
};

#if defined(TANDEM_PAIR_WORDS)
using Bfloat16Words = PairWords;
#else
using Bfloat16Words = FloatWords;
#endif

template <class Few, class Many>
void attend(const AttentionCall& call) {
  // The caller's own, kept from call to call
  static thread_local AttentionPlan plan;
  Attention<Few, Many>(call).run(plan);
}

template <class W, class T, class E>
void attend_in_words(const AttentionCall& call) {
  attend<FewWords<W, T, E>, ManyWords<W, T, E>>(call);
}

// bfloat16 queries meet bfloat16 words, unless the cache is finer than that, or whole numbers.
template <class T>
void attend_as(const AttentionCall& call) {
  using Finer = std::conditional_t<std::is_same_v<T, float>, FloatWords, Bfloat16Words>;
  if (call.element == ElementType::kFloat32) return attend_in_words<FloatWords, T, float>(call);
#if defined(TANDEM_BYTE_PRODUCTS)
  if constexpr (std::is_same_v<T, Int8Value>) {
    return attend<FewBytes<Bfloat16>, ManyBytes<Bfloat16>>(call);
  }
#endif
  attend_in_words<Finer, T, Bfloat16>(call);
}

}  // namespace tandem
