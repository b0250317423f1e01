#include "cuda/emulation.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace thinwire::cuda::emulation {

thread_local Index thread_index;
thread_local Index block_index;
thread_local Index block_size;
thread_local Index grid_size;

namespace {

/// Memory of the device, a mapping of its own each.
class DeviceMemory {
 public:
  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::size_t size = (std::max<std::size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
    void* pointer =
        mmap(nullptr, size, open_ ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pointer == MAP_FAILED) return nullptr;
    sizes_[pointer] = size;
    // What was not written means nothing; a fresh mapping would be zeros.
    mprotect(pointer, size, PROT_READ | PROT_WRITE);
    std::memset(pointer, 0xB5, size);
    if (!open_) mprotect(pointer, size, PROT_NONE);
    return pointer;
  }
  bool release(void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(pointer);
    if (found == sizes_.end()) return false;
    munmap(pointer, found->second);
    sizes_.erase(found);
    return true;
  }
  bool contains(const void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto after = sizes_.upper_bound(const_cast<void*>(pointer));
    if (after == sizes_.begin()) return false;
    const auto& [begin, size] = *std::prev(after);
    return static_cast<const std::byte*>(pointer) < static_cast<const std::byte*>(begin) + size;
  }
  void protect(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    for (const auto& [begin, size] : sizes_) mprotect(begin, size, open ? PROT_READ | PROT_WRITE : PROT_NONE);
  }

 private:
  static constexpr std::size_t kPage = 65536;  // no system's pages are larger
  std::mutex mutex_;
  std::map<void*, std::size_t> sizes_;
  bool open_ = false;
};

DeviceMemory& device_memory() {
  static DeviceMemory memory;
  return memory;
}

/// One kernel at a time: __shared__ variables exist once. Recursive, as copies are made inside kernels'
/// calls.
std::recursive_mutex& device_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}
int depth = 0;

class OnDevice {
 public:
  OnDevice() : lock_(device_mutex()) {
    if (depth++ == 0) device_memory().protect(true);
  }
  ~OnDevice() {
    if (--depth == 0) device_memory().protect(false);
  }

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

/// Where a fiber goes on. The compiler's own jumps, since swapcontext asks the kernel for the signal mask
/// each time, which took half of the tests' time.
struct Point {
  void* words[5];
};

[[gnu::noinline, noreturn, gnu::no_sanitize("address", "undefined")]] void jump(Point& to) {
  __builtin_longjmp(to.words, 1);
}
[[gnu::noinline, gnu::no_sanitize("address", "undefined")]] void switch_to(Point& from, Point& to) {
  if (__builtin_setjmp(from.words) == 0) jump(to);
}

/// Runs a block. A fiber takes threads one after the other for as long as they do not wait; where one does,
/// it stays with its fiber and the next fiber goes on.
class Block {
 public:
  void run(unsigned threads, FunctionRef<void()> body) {
    body_ = &body;
    threads_ = threads;
    next_ = 0;
    live_ = threads;
    waiting_at_barrier_ = 0;
    warps_.assign((threads + 31) / 32, {});
    for (unsigned i = 0; i < threads; ++i) ++warps_[i / 32].live;
    waiting_.clear();
    std::size_t fresh = 0;
    while (live_ > 0) {
      bool moved = false;
      if (next_ < threads_) {
        resume(fiber(fresh++));
        moved = true;
      }
      // Those whose barrier was released meanwhile.
      const std::vector<Fiber*> waiting = std::exchange(waiting_, {});
      for (Fiber* one : waiting) {
        if (*one->released == one->generation) {
          waiting_.push_back(one);
        } else {
          resume(*one);
          moved = true;
        }
      }
      if (!moved) {
        std::fputs("CUDA emulation: threads wait at a barrier that others never reach\n", stderr);
        std::abort();
      }
    }
  }

  void barrier() {
    const std::uint64_t generation = barriers_;
    ++waiting_at_barrier_;
    release_barrier();
    if (barriers_ == generation) wait(&barriers_, generation);
  }

  const std::uint64_t* exchange(unsigned mask, std::uint64_t value) {
    Warp& warp = warps_[thread_index.x / 32];
    auto& slots = warp.slots[warp.generation % 2];
    if (warp.arrived == 0) std::fill(std::begin(slots), std::end(slots), 0);
    slots[thread_index.x % 32] = value;
    warp.arrived |= 1u << (thread_index.x % 32);
    const std::uint64_t generation = warp.generation;
    if (warp.arrived == mask) {
      warp.arrived = 0;
      ++warp.generation;
    } else {
      wait(&warp.generation, generation);
    }
    return slots;
  }

  std::vector<std::max_align_t> shared;

 private:
  static constexpr std::size_t kStackBytes = 128 * 1024;

  struct Warp {
    unsigned live = 0;
    unsigned arrived = 0;  // bits of lanes
    std::uint64_t generation = 0;
    std::uint64_t slots[2][32] = {};
  };
  struct Fiber {
    Point point;
    ucontext_t context{};
    std::unique_ptr<std::byte[]> stack;
    bool entered = false;
    Index index;  // of its thread
    const std::uint64_t* released = nullptr;
    std::uint64_t generation = 0;
  };

  void release_barrier() {
    if (waiting_at_barrier_ != 0 && waiting_at_barrier_ == live_) {
      waiting_at_barrier_ = 0;
      ++barriers_;
    }
  }

  Fiber& fiber(std::size_t number) {
    if (number == fibers_.size()) {
      Fiber& fresh = *fibers_.emplace_back(std::make_unique<Fiber>());
      fresh.stack = std::make_unique<std::byte[]>(kStackBytes);
      getcontext(&fresh.context);
      fresh.context.uc_stack.ss_sp = fresh.stack.get();
      fresh.context.uc_stack.ss_size = kStackBytes;
      makecontext(&fresh.context, &Block::take_threads, 0);
    }
    return *fibers_[number];
  }

  [[gnu::noinline, gnu::no_sanitize("address", "undefined")]] void resume(Fiber& one) {
    running_ = &one;
    thread_index = one.index;
    if (one.entered) {
      switch_to(scheduler_, one.point);
    } else {
      one.entered = true;
      if (__builtin_setjmp(scheduler_.words) == 0) setcontext(&one.context);
    }
  }

  void wait(const std::uint64_t* released, std::uint64_t generation) {
    Fiber& own = *running_;
    own.index = thread_index;
    own.released = released;
    own.generation = generation;
    waiting_.push_back(&own);
    switch_to(own.point, scheduler_);
  }

  static void take_threads();

  const FunctionRef<void()>* body_ = nullptr;
  unsigned threads_ = 0;
  unsigned next_ = 0;
  unsigned live_ = 0;
  unsigned waiting_at_barrier_ = 0;
  std::uint64_t barriers_ = 0;
  std::vector<Warp> warps_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> waiting_;
  Fiber* running_ = nullptr;
  Point scheduler_{};
};

Block& block() {
  static thread_local Block own;
  return own;
}

void Block::take_threads() {
  // As a fiber lives as long as its host thread, it takes threads of one block after the other.
  for (Block& self = block();;) {
    while (self.next_ < self.threads_) {
      thread_index = {self.next_++, 0, 0};
      (*self.body_)();
      --self.live_;
      self.release_barrier();
    }
    switch_to(self.running_->point, self.scheduler_);
  }
}

}  // namespace

void run(unsigned blocks, unsigned threads, std::size_t shared_bytes, FunctionRef<void()> thread) {
  const OnDevice device;
  Block& own = block();
  own.shared.resize(shared_bytes / sizeof(std::max_align_t) + 1);
  block_size = {threads, 1, 1};
  grid_size = {blocks, 1, 1};
  for (unsigned i = 0; i < blocks; ++i) {
    block_index = {i, 0, 0};
    own.run(threads, thread);
  }
}

void run_on_device(FunctionRef<void()> body) {
  const OnDevice device;
  body();
}

void* shared_memory() {
  return block().shared.data();
}
void block_barrier() {
  block().barrier();
}
const std::uint64_t* exchange(unsigned mask, std::uint64_t value) {
  return block().exchange(mask, value);
}

namespace {

std::mutex pinned_mutex;
std::map<const void*, std::size_t>& pinned() {
  static std::map<const void*, std::size_t> all;
  return all;
}

}  // namespace
}  // namespace thinwire::cuda::emulation

namespace emulation = thinwire::cuda::emulation;

const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorMemoryAllocation ? "out of memory" : "invalid argument";
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  *pointer = emulation::device_memory().allocate(bytes);
  return *pointer != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* pointer) {
  return pointer == nullptr || emulation::device_memory().release(pointer) ? cudaSuccess
                                                                           : cudaErrorInvalidValue;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = nullptr;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t) {
  return cudaMalloc(pointer, bytes);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) {
  return cudaFree(pointer);
}
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  // Not by operator new, which some tests replace to count its calls.
  *pointer = std::aligned_alloc(64, (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64);
  if (*pointer == nullptr) return cudaErrorMemoryAllocation;
  const std::lock_guard lock(emulation::pinned_mutex);
  emulation::pinned()[*pointer] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  {
    const std::lock_guard lock(emulation::pinned_mutex);
    if (emulation::pinned().erase(pointer) == 0) return cudaErrorInvalidValue;
  }
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  const emulation::OnDevice device;
  if (bytes != 0) std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* pointer, int byte, std::size_t bytes, cudaStream_t) {
  const emulation::OnDevice device;
  if (bytes != 0) std::memset(pointer, byte, bytes);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  attributes->type = cudaMemoryTypeUnregistered;
  if (emulation::device_memory().contains(pointer)) {
    attributes->type = cudaMemoryTypeDevice;
    return cudaSuccess;
  }
  const std::lock_guard lock(emulation::pinned_mutex);
  const auto after = emulation::pinned().upper_bound(pointer);
  if (after != emulation::pinned().begin()) {
    const auto& [begin, size] = *std::prev(after);
    if (static_cast<const std::byte*>(pointer) < static_cast<const std::byte*>(begin) + size) {
      attributes->type = cudaMemoryTypeHost;
    }
  }
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
