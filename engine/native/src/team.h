// The threads of one step: OpenMP starts them (torch's own workers, not a second pool), this shares the work.
#pragma once
#include <algorithm>
#include <atomic>

namespace tg {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Waiting threads spin for microseconds and then sleep: on a machine that others use too, a core that only waits is
// the core on which the one that is late could run.
class Team {
 public:
  // How many threads take part; before any of them works.
  void set_size(int threads) { threads_ = threads; }

  int size() const { return threads_; }

  // Runs f(i) for every i below `count`, in runs that get shorter towards the end. Ends with a barrier.
  template <class F>
  void each(int count, F&& f, bool one_by_one = false) {
    for (int from = next_.load(std::memory_order_relaxed); from < count;) {
      const int run = one_by_one ? 1 : std::max(1, (count - from) / (2 * threads_));
      if (!next_.compare_exchange_weak(from, from + run, std::memory_order_relaxed)) continue;
      for (int i = from; i < from + run; i++) f(i);
      from = next_.load(std::memory_order_relaxed);
    }
    barrier();
  }

  void barrier() {
    const int generation = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      next_.store(0, std::memory_order_relaxed);
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      generation_.notify_all();
      return;
    }
    for (int spin = 0; spin < SPINS; spin++) {
      if (generation_.load(std::memory_order_acquire) != generation) return;
      relax();
    }
    generation_.wait(generation, std::memory_order_acquire);
  }

 private:
  static constexpr int SPINS = 400;

  int threads_ = 1;
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};
};

}  // namespace tg
