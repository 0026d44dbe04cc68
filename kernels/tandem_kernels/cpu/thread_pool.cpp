// Threads that live as long as the process and sleep while there is nothing to do.
//
//   started by the first run that needs them > take parts > spin a while > sleep > woken by a run
//
// Spinning covers the few microseconds between two kernels of a step. It is bounded on both sides,
// so that whoever needs the core meanwhile gets it.
#include "thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kMaxThreads = 1024;
constexpr std::size_t kCacheLine = 64;

thread_local bool is_in_part = false;
thread_local std::int64_t waited = 0;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// True as soon as `ready` is; false if it wasn't within the time that spinning is worth.
template <class Ready>
bool spin_until(const Ready& ready, Clock::time_point start) {
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      relax();
    }
  } while (Clock::now() < start + kSpin);
  return false;
}

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads) : wanted_(num_threads) {}

  int num_threads() const { return wanted_.load(std::memory_order_relaxed); }
  void set_num_threads(int number) { wanted_.store(std::clamp(number, 1, kMaxThreads)); }

  void run(int num_parts, void (*task)(void*, int), void* context) {
    const int threads = is_in_part ? 1 : std::min(num_threads(), num_parts);
    if (threads <= 1 || busy_.exchange(true, std::memory_order_acquire)) {
      for (int part = 0; part < num_parts; ++part) task(context, part);
      return;
    }
    start_threads(threads);
    task_ = task;
    context_ = context;
    unfinished_.store(num_parts, std::memory_order_relaxed);
    announce(static_cast<std::uint64_t>(num_parts));
    if (!take_parts()) wait_for_others();
    busy_.store(false, std::memory_order_release);
  }

 private:
  // A run is one word: how many parts it has, and which is next. To change the word is to own the
  // part, and a run doesn't end before its owned parts do: so `task_` is read only after that.
  static std::uint64_t num_parts_of(std::uint64_t run) { return run >> 32; }
  static std::uint64_t next_of(std::uint64_t run) { return run & 0xffffffff; }

  bool has_parts() const {
    const std::uint64_t run = run_.load();
    return next_of(run) < num_parts_of(run);
  }

  void start_threads(int threads) {
    if (started_ >= threads) return;
    sigset_t all, before;  // signals are for the threads that handle them
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; started_ < threads; ++started_) {
      std::thread(&ThreadPool::serve, this, started_).detach();
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void announce(std::uint64_t num_parts) {
    run_.store(num_parts << 32);
    // Either a thread about to sleep sees the new run, or we see that it sleeps (both seq_cst)
    if (num_asleep_.load() > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      work_.notify_all();
    }
  }

  void serve(int index) {
    for (;;) {
      wait_for_parts(index);
      // What was announced last is over: the caller may sleep
      if (take_parts() && caller_asleep_.load()) {
        std::lock_guard<std::mutex> lock(mutex_);
        done_.notify_one();
      }
    }
  }

  void wait_for_parts(int index) {
    const auto needed = [&] { return has_parts() && index < num_threads(); };
    if (spin_until(needed, Clock::now())) return;
    std::unique_lock<std::mutex> lock(mutex_);
    num_asleep_.fetch_add(1);
    work_.wait(lock, needed);
    num_asleep_.fetch_sub(1);
  }

  void wait_for_others() {
    const auto start = Clock::now();
    const auto finished = [&] { return unfinished_.load() == 0; };
    if (!spin_until(finished, start)) {
      std::unique_lock<std::mutex> lock(mutex_);
      caller_asleep_.store(true);
      done_.wait(lock, finished);
      caller_asleep_.store(false);
    }
    waited += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  }

  // Runs parts until none is left to begin. True if the last one to end was among them.
  bool take_parts() {
    int taken = 0;
    std::uint64_t run = run_.load();
    while (next_of(run) < num_parts_of(run)) {
      if (!run_.compare_exchange_weak(run, run + 1)) continue;
      is_in_part = true;
      task_(context_, static_cast<int>(next_of(run)));
      is_in_part = false;
      ++taken;
      run = run_.load();
    }
    return taken > 0 && unfinished_.fetch_sub(taken) == taken;
  }

  std::atomic<int> wanted_;
  std::atomic<bool> busy_{false};
  int started_ = 1;  // the caller is thread 0
  void (*task_)(void*, int) = nullptr;
  void* context_ = nullptr;
  // Each on a line of its own: threads that end parts don't disturb those that look for some
  alignas(kCacheLine) std::atomic<std::uint64_t> run_{0};
  alignas(kCacheLine) std::atomic<int> unfinished_{0};
  alignas(kCacheLine) std::atomic<int> num_asleep_{0};
  std::atomic<bool> caller_asleep_{false};
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
};

// Never destroyed: its threads may outlive every destructor.
ThreadPool*& pool() {
  static ThreadPool* instance = [] {
    // A forked child has none of our threads: it starts its own when it needs them
    pthread_atfork(nullptr, nullptr, [] { pool() = new ThreadPool(pool()->num_threads()); });
    return new ThreadPool(1);
  }();
  return instance;
}

}  // namespace

int num_threads() { return is_in_part ? 1 : pool()->num_threads(); }

void run_parts(int num_parts, void (*task)(void* context, int part), void* context) {
  pool()->run(num_parts, task, context);
}

std::int64_t waited_ns() { return waited; }

}  // namespace tandem

extern "C" {

void tandem_set_num_threads(int number) { tandem::pool()->set_num_threads(number); }

int tandem_num_threads() { return tandem::num_threads(); }

void tandem_run_parts(int num_parts, void (*task)(void* context, int part), void* context) {
  tandem::run_parts(num_parts, task, context);
}

// Adds 1 to every item, in ranges of one item and more: the smallest kernel there can be.
void tandem_increment(std::int64_t* items, std::int64_t num_items) {
  tandem::parallel_ranges(num_items, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) items[i] += 1;
  });
}
}
