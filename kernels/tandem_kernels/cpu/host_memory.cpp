// Makes pages present before anybody writes to them.
//
// On a native thread that gives way to all others and knows nothing of Python: a thread of low
// priority that waits for its core while it holds Python's lock keeps everybody else waiting. For
// the same reason it writes to the pages instead of asking for them (MADV_POPULATE_WRITE): that
// holds the lock of the whole address space, which every allocation may need.
#include <algorithm>
#include <cstdint>

#if defined(__linux__)
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

namespace tandem {
namespace {

constexpr std::int64_t kPageBytes = 4096;  // or a multiple of it

// Others may write to the same memory meanwhile: a byte is written only as long as it is what it was.
void touch(char* byte) {
  char value = __atomic_load_n(byte, __ATOMIC_RELAXED);
  __atomic_compare_exchange_n(byte, &value, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void touch_pages(char* begin, std::int64_t size, int nice) {
  const auto self = static_cast<id_t>(syscall(SYS_gettid));
  setpriority(PRIO_PROCESS, self, std::min(19, getpriority(PRIO_PROCESS, self) + nice));
  for (std::int64_t at = 0; at < size; at += kPageBytes) touch(begin + at);
}

}  // namespace
}  // namespace tandem

// `begin` is the start of a page. Returns when all pages are present.
extern "C" void tandem_touch_pages(char* begin, std::int64_t size, std::int32_t nice) {
  sigset_t all, before;  // signals are for the threads that handle them
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(tandem::touch_pages, begin, size, nice);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  thread.join();
}
#else
extern "C" void tandem_touch_pages(char*, std::int64_t, std::int32_t) {}
#endif
