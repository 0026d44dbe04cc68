// Where a step's time goes, on the thread that called it.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include "decoder.h"
#include "thread_pool.h"

namespace tandem {

class StepTimings {
 public:
  // Adds to `nanoseconds`, [kNumStepWork]; null: measures nothing.
  explicit StepTimings(std::int64_t* nanoseconds)
      : nanoseconds_(nanoseconds), waited_before_(waited_ns()) {}

  ~StepTimings() {
    if (nanoseconds_ == nullptr) return;
    nanoseconds_[static_cast<int>(StepWork::kWaiting)] += waited_ns() - waited_before_;
  }

  StepTimings(const StepTimings&) = delete;
  StepTimings& operator=(const StepTimings&) = delete;

  // f(), and its time under `work`, less what it waited for other threads.
  template <class F>
  void measure(StepWork work, const F& f) const {
    if (nanoseconds_ == nullptr || std::this_thread::get_id() != caller_) return f();
    const std::int64_t waited_before = waited_ns();
    const auto start = std::chrono::steady_clock::now();
    f();
    const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - start;
    nanoseconds_[static_cast<int>(work)] += taken.count() - (waited_ns() - waited_before);
  }

 private:
  std::int64_t* const nanoseconds_;
  const std::int64_t waited_before_;
  const std::thread::id caller_ = std::this_thread::get_id();
};

}  // namespace tandem
