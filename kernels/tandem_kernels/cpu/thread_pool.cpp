// Threads that live as long as the process and sleep while there is nothing to do.
//
//   started by the first run that needs them > spin a while > sleep > woken by a run > parts > spin
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

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kMaxThreads = 1024;
constexpr std::uint64_t kThreadBits = 16;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// True as soon as `ready` is; false if it wasn't within the time that spinning is worth.
template <class Ready>
bool spin_until(const Ready& ready) {
  const auto give_up = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < give_up);
  return false;
}

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads) : wanted_(num_threads) {}

  int num_threads() const { return wanted_.load(std::memory_order_relaxed); }
  void set_num_threads(int number) { wanted_.store(std::clamp(number, 1, kMaxThreads)); }

  void run(int num_parts, void (*task)(void*, int), void* context) {
    const int threads = std::min(num_threads(), num_parts);
    if (threads <= 1 || busy_.exchange(true, std::memory_order_acquire)) {
      for (int part = 0; part < num_parts; ++part) task(context, part);
      return;
    }
    start_threads(threads);
    task_ = task;
    context_ = context;
    num_parts_ = num_parts;
    unfinished_.store(threads - 1);
    announce(threads);
    run_share(0, threads);
    wait_for_others();
    busy_.store(false, std::memory_order_release);
  }

 private:
  // A run is announced by one word, its number and how many threads it is for: a thread that isn't
  // among them never reads what the next run may already be writing.
  static std::uint64_t threads_of(std::uint64_t run) { return run & ((1u << kThreadBits) - 1); }

  void start_threads(int threads) {
    if (started_ >= threads) return;
    sigset_t all, before;  // signals are for the threads that handle them
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; started_ < threads; ++started_) {
      std::thread(&ThreadPool::serve, this, started_, run_.load()).detach();
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void announce(int threads) {
    const std::uint64_t number = (run_.load() >> kThreadBits) + 1;
    run_.store((number << kThreadBits) | static_cast<std::uint64_t>(threads));
    // Either a thread about to sleep sees the new run, or we see that it sleeps (both seq_cst)
    if (num_asleep_.load() > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      work_.notify_all();
    }
  }

  void serve(int index, std::uint64_t seen) {
    for (;;) {
      seen = next_run(seen);
      const int threads = static_cast<int>(threads_of(seen));
      if (index >= threads) continue;
      run_share(index, threads);
      if (unfinished_.fetch_sub(1) == 1 && caller_asleep_.load()) {
        std::lock_guard<std::mutex> lock(mutex_);
        done_.notify_one();
      }
    }
  }

  std::uint64_t next_run(std::uint64_t seen) {
    const auto announced = [&] { return run_.load() != seen; };
    if (!spin_until(announced)) {
      std::unique_lock<std::mutex> lock(mutex_);
      num_asleep_.fetch_add(1);
      work_.wait(lock, announced);
      num_asleep_.fetch_sub(1);
    }
    return run_.load();
  }

  void wait_for_others() {
    const auto finished = [&] { return unfinished_.load() == 0; };
    if (spin_until(finished)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    caller_asleep_.store(true);
    done_.wait(lock, finished);
    caller_asleep_.store(false);
  }

  void run_share(int index, int threads) {
    for (int part = index; part < num_parts_; part += threads) task_(context_, part);
  }

  std::atomic<int> wanted_;
  std::atomic<bool> busy_{false};
  int started_ = 1;  // the caller is thread 0
  void (*task_)(void*, int) = nullptr;
  void* context_ = nullptr;
  int num_parts_ = 0;
  std::atomic<std::uint64_t> run_{0};
  std::atomic<int> unfinished_{0};
  std::atomic<int> num_asleep_{0};
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

int num_threads() { return pool()->num_threads(); }

void run_parts(int num_parts, void (*task)(void* context, int part), void* context) {
  pool()->run(num_parts, task, context);
}

}  // namespace tandem

extern "C" {

void tandem_set_num_threads(int number) { tandem::pool()->set_num_threads(number); }

int tandem_num_threads() { return tandem::num_threads(); }

// Adds 1 to every item, in ranges of one item and more: the smallest kernel there can be.
void tandem_increment(std::int64_t* items, std::int64_t num_items) {
  tandem::parallel_ranges(num_items, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) items[i] += 1;
  });
}
}
