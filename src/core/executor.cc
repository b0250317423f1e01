#include "thinwire/executor.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace thinwire {
namespace {

/// The caller and threads - 1 helpers take grains from a shared counter, so that a slow core takes fewer.
class CpuExecutor final : public Executor {
 public:
  explicit CpuExecutor(int threads) : threads_(threads) {
    helpers_.reserve(static_cast<std::size_t>(threads - 1));
    try {
      for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
    } catch (...) {  // no more threads to be had: end those that there are
      stop();
      throw;
    }
  }

  ~CpuExecutor() override { stop(); }

  Memory memory() const override { return Memory::host; }
  int concurrency() const override { return threads_; }
  void wait() override {}

  void parallel_for(std::size_t count, std::size_t grain,
                    FunctionRef<void(std::size_t, std::size_t)> body) override {
    if (count == 0) return;
    grain = std::max<std::size_t>(grain, 1);
    if (threads_ == 1 || count <= grain) {
      body(0, count);
      return;
    }
    {
      std::lock_guard lock(mutex_);
      body_ = &body;
      count_ = count;
      // A few ranges per thread balance the load without fine-grained contention.
      const std::size_t wanted = count / (static_cast<std::size_t>(threads_) * 4) + 1;
      chunk_ = (wanted + grain - 1) / grain * grain;
      next_.store(0, std::memory_order_relaxed);
      error_ = nullptr;
      busy_ = threads_ - 1;
      ++generation_;
    }
    wake_.notify_all();
    work();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    body_ = nullptr;
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (auto& helper : helpers_) helper.join();
  }

  void help() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) return;
      seen = generation_;
      lock.unlock();
      work();
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  void work() {
    try {
      while (true) {
        const std::size_t begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
        if (begin >= count_) return;
        (*body_)(begin, std::min(begin + chunk_, count_));
      }
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      next_.store(count_, std::memory_order_relaxed);
    }
  }

  const int threads_;
  std::vector<std::thread> helpers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  bool stopping_ = false;
  std::uint64_t generation_ = 0;
  int busy_ = 0;
  const FunctionRef<void(std::size_t, std::size_t)>* body_ = nullptr;
  std::size_t count_ = 0;
  std::size_t chunk_ = 1;
  std::atomic<std::size_t> next_{0};
  std::exception_ptr error_;
};

/// Asks for pages of 2 MiB where whole ones lie in it. Passes over vectors of a bucket's length wait for
/// memory, and a processor fetches ahead within a page alone.
void advise_large_pages([[maybe_unused]] void* begin, [[maybe_unused]] std::size_t bytes) {
#ifdef __linux__
  constexpr std::uintptr_t kPage = std::uintptr_t{2} << 20;
  const auto first = (reinterpret_cast<std::uintptr_t>(begin) + kPage - 1) / kPage * kPage;
  const auto last = (reinterpret_cast<std::uintptr_t>(begin) + bytes) / kPage * kPage;
  // A kernel without such pages refuses, and the memory is as good as before.
  if (first < last) static_cast<void>(madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE));
#endif
}

class HostAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override {
    void* memory = ::operator new (bytes, std::align_val_t{64});
    advise_large_pages(memory, bytes);
    return memory;
  }
  void release(void* pointer) noexcept override { ::operator delete (pointer, std::align_val_t{64}); }
};

}  // namespace

Allocator& host_allocator() {
  static HostAllocator allocator;
  return allocator;
}

void Executor::copy(Span<const std::byte> from, Span<std::byte> to) {
  if (from.memory() != Memory::host || to.memory() != Memory::host) {
    throw std::invalid_argument("memory of a CUDA device was given to an executor of the CPU");
  }
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

std::unique_ptr<Executor> make_cpu_executor(int threads) {
  if (threads < 1) {
    throw std::invalid_argument("threads = " + std::to_string(threads) + ": an executor needs at least 1");
  }
  return std::make_unique<CpuExecutor>(threads);
}

}  // namespace thinwire
