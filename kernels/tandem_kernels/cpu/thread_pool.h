// The process's compute threads, which all kernels share.
//
//   caller  --parts-->  [caller | thread 1 | thread 2 ...] each takes the next part  --all done-->
//
// Work is split by ranges that follow from its size and the number of threads alone; who computes
// a range is whoever is free, so a thread that another process keeps from its core holds up only
// the part it has begun. Whatever a kernel computes for one item must not depend on the range it is
// in: so bits never depend on the number of threads. With one thread, or while another caller has
// the threads, all parts run inline: a caller never waits for another one.
//
// Adding a kernel: put `name.cpp` (and `name.h`) into this folder, export `extern "C"` functions
// named `tandem_...` that take plain pointers and numbers, and split them with `parallel_ranges`.
// build.py compiles every *.cpp here; library.py says how Python calls them.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem {

// Threads that would run parts for this caller, itself included; 1 within a part, whose own parts
// run inline.
int num_threads();

// Calls task(context, part) for every part in [0, num_parts) and returns when all have ended.
// Parts are begun in order. Tasks must not throw; a task that calls this runs its parts inline.
void run_parts(int num_parts, void (*task)(void* context, int part), void* context);

// Nanoseconds that the calling thread has waited at the ends of its runs, ever.
std::int64_t waited_ns();

// task(part) for every part in [0, num_parts).
template <class Task>
void parallel_parts(int num_parts, const Task& task) {
  auto call = [](void* context, int part) { (*static_cast<const Task*>(context))(part); };
  run_parts(num_parts, call, const_cast<Task*>(&task));
}

// task(begin, end) on contiguous ranges that cover [0, num_items), one for each thread; fewer
// where ranges would have less than `min_items`, below which waking a thread doesn't pay.
template <class Task>
void parallel_ranges(std::int64_t num_items, std::int64_t min_items, const Task& task) {
  const std::int64_t affordable = std::max<std::int64_t>(1, num_items / min_items);
  const std::int64_t parts = affordable == 1 ? 1 : std::min<std::int64_t>(num_threads(), affordable);
  if (parts == 1) {
    task(std::int64_t{0}, num_items);
    return;
  }
  parallel_parts(static_cast<int>(parts), [&](int part) {
    task(num_items * part / parts, num_items * (part + 1) / parts);
  });
}

}  // namespace tandem
