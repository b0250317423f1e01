#pragma once
// What device code shares. Results do not depend on the device: how work is cut follows from its size alone,
// and partial sums are added in a fixed order.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "cuda/executor.h"
#include "cuda/runtime.h"
#include "kernels/operands.h"

namespace thinwire::cuda {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr unsigned kThreads = 256;
/// A function that launch() starts, in blocks of kThreads.
#define THINWIRE_KERNEL __global__ __launch_bounds__(kThreads)
#ifdef THINWIRE_CUDA_EMULATED
inline constexpr std::size_t kMostBlocks = 3;  // so that threads go around their loops more than once
#else
inline constexpr std::size_t kMostBlocks = 2048;  // fills today's largest devices; a thread then takes more
#endif

/// For kernels whose threads take items i, i + threads of the grid, and so on.
inline Grid grid_for(std::size_t items, std::size_t items_per_thread = 1) {
  const std::size_t per_block = kThreads * items_per_thread;
  const std::size_t blocks = (items + per_block - 1) / per_block;
  return {static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads};
}

__device__ inline std::size_t thread_of_grid() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::size_t threads_of_grid() {
  return static_cast<std::size_t>(gridDim.x) * blockDim.x;
}
__device__ inline unsigned lane_of_warp() {
  return threadIdx.x % kWarp;
}
__device__ inline std::size_t warp_of_grid() {
  return thread_of_grid() / kWarp;
}
__device__ inline std::size_t warps_of_grid() {
  return threads_of_grid() / kWarp;
}

__device__ inline bool is_finite(float value) {
  return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u;
}

/// p of element i: gradient, or gradient + residual where there is one.
__device__ inline float sum_at(const float* gradient, const float* residual, std::size_t i) {
  return residual == nullptr ? gradient[i] : gradient[i] + residual[i];
}

/// Words of bits that a warp takes at once: its lanes read or write them side by side, which matters most
/// where they lie in host memory, behind a bus.
inline constexpr unsigned kWordsAtOnce = 16;

/// For kernels whose warps take kWordsAtOnce words of bits each.
inline Grid grid_for_words(std::size_t words) {
  return grid_for((words + kWordsAtOnce - 1) / kWordsAtOnce * kWarp);
}

__device__ inline bool bit_at(const std::uint64_t* words, std::size_t i) {
  return ((words[i / 64] >> (i % 64)) & 1) != 0;
}

/// Elements that a thread of for_each_element has under way at once: enough loads for the memory's latency.
inline constexpr std::size_t kAtOnce = 4;

/// For kernels that go through all elements by for_each_element.
inline Grid grid_for_elements(std::size_t count) {
  return grid_for(count, kAtOnce);
}

/// use(i, load(i)) for every i < count. A thread loads kAtOnce elements before it uses the first, which the
/// compiler may not do on its own where use() writes what load() reads.
template <class Load, class Use>
__device__ void for_each_element(std::size_t count, Load load, Use use) {
  constexpr std::size_t kTile = kThreads * kAtOnce;
  for (std::size_t tile = blockIdx.x * kTile; tile < count; tile += gridDim.x * kTile) {
    const std::size_t first = tile + threadIdx.x;
    if (tile + kTile <= count) {
      decltype(load(first)) loaded[kAtOnce];
#pragma unroll
      for (std::size_t k = 0; k < kAtOnce; ++k) loaded[k] = load(first + k * kThreads);
#pragma unroll
      for (std::size_t k = 0; k < kAtOnce; ++k) use(first + k * kThreads, loaded[k]);
    } else {
      for (std::size_t i = first; i < count; i += kThreads) use(i, load(i));
    }
  }
}

/// The first of [begin, end) for which is_before(i) is false, or `end`. It is true for all before that one,
/// and for none behind.
template <class IsBefore>
__device__ std::size_t partition_point(std::size_t begin, std::size_t end, IsBefore is_before) {
  while (begin < end) {
    const std::size_t middle = (begin + end) / 2;
    if (is_before(middle)) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

template <class T>
__device__ T warp_sum(T value) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kAllLanes, value, lanes);
  return value;
}

/// Writes the sum over the block's kThreads threads to *out.
__device__ inline void write_block_sum(double value, double* out) {
  __shared__ double sums[kThreads / kWarp];
  value = warp_sum(value);
  if (lane_of_warp() == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0;
    for (unsigned i = 0; i < kThreads / kWarp; ++i) total += sums[i];
    *out = total;
  }
  __syncthreads();
}

/// A small table of the host, copied to the device even where kernels could reach it: they look it up again
/// and again. The caller waits before the table may change.
template <class T>
class TableOnDevice {
 public:
  TableOnDevice(CudaExecutor& executor, Span<const T> table) : copy_(executor, table.size()) {
    if (table.empty()) return;
    submit_copy(executor, table.data(), copy_.data(), table.size(), "a table could not be copied");
    data_ = copy_.data();
  }
  /// Null where the table is empty.
  const T* data() const { return data_; }

 private:
  Scratch<T> copy_;
  const T* data_ = nullptr;
};

/// What a kernel finds out beside its output: whether everything was finite, and one sum per block. Lies in
/// pinned memory, and is read when the kernel is done.
class Findings {
 public:
  explicit Findings(CudaExecutor& executor, const Grid& grid = {})
      : executor_(executor), blocks_(grid.blocks) {
    auto* memory = static_cast<double*>(executor.results((1 + grid.blocks) * sizeof(double)));
    flag_ = reinterpret_cast<std::uint32_t*>(memory);
    sums_ = memory + 1;
    *flag_ = 0;
  }
  /// For kernels: set to anything but 0 where something is wrong.
  std::uint32_t* flag() const { return flag_; }
  /// For kernels: [blocks], every one is written.
  double* sums() const { return sums_; }

  /// Both wait.
  bool flagged() const {
    executor_.wait();
    return *static_cast<volatile std::uint32_t*>(flag_) != 0;
  }
  double sum() const {
    executor_.wait();
    double total = 0;
    for (unsigned i = 0; i < blocks_; ++i) total += sums_[i];
    return total;
  }

 private:
  CudaExecutor& executor_;
  unsigned blocks_;
  std::uint32_t* flag_;
  double* sums_;
};

/// run() of a kernel whose last parameter is a flag: whether it was not set. Waits.
template <class Kernel, class... Arguments>
bool run_flagged(Executor& executor, const Grid& grid, Kernel kernel, const Arguments&... arguments) {
  CudaExecutor& own = executor_on_device(executor);
  const Findings findings(own);
  run(own, grid, kernel, arguments..., findings.flag());
  return !findings.flagged();
}

/// run() of a kernel whose last parameter takes a sum per block: the sum of them. Waits.
template <class Kernel, class... Arguments>
double run_summed(Executor& executor, const Grid& grid, Kernel kernel, const Arguments&... arguments) {
  CudaExecutor& own = executor_on_device(executor);
  const Findings findings(own, grid);
  run(own, grid, kernel, arguments..., findings.sums());
  return findings.sum();
}

/// The warp's verdict into the flag.
__device__ inline void report_if(bool wrong, std::uint32_t* flag) {
  if (__any_sync(kAllLanes, wrong) && lane_of_warp() == 0) *flag = 1;
}

/// How threads share rows: a power of two of neighbouring lanes takes a row, so that none is idle where rows
/// are narrow and memory is read side by side where they are wide.
struct RowLanes {
  unsigned shift = 0;  ///< 2^shift lanes to a row, 32 at most.

  static RowLanes of(std::size_t width) {
    return {width >= kWarp ? 5u : static_cast<unsigned>(std::bit_width(width == 0 ? 0 : width - 1))};
  }
  Grid grid(std::size_t rows) const { return grid_for(rows << shift); }

  __device__ std::size_t first_row() const { return thread_of_grid() >> shift; }
  __device__ std::size_t row_step() const { return threads_of_grid() >> shift; }
  __device__ std::size_t first_element() const { return threadIdx.x & ((1u << shift) - 1); }
  __device__ std::size_t element_step() const { return std::size_t{1} << shift; }
};

/// For operands that kernels reach in no order, or more than once. As Operand, but host memory is always
/// copied to the device, pinned or not, and back unless T is const: over the bus it then goes once and in
/// order.
template <class T>
class Resident {
 public:
  /// `load`: whether kernels need what the span holds.
  Resident(CudaExecutor& executor, Span<T> span, bool load = true)
      : executor_(executor), span_(span), data_(span.empty() ? nullptr : span.data()) {
    if (span.empty() || span.memory() == Memory::cuda) return;
    copy_ = std::make_unique<Scratch<std::remove_const_t<T>>>(executor, span.size());
    data_ = copy_->data();
    if (load) transfer(span.data(), copy_->data(), span.size());
  }
  /// After the kernels were submitted, before finish(): all, or the first `count` elements.
  void write_back() { write_back(span_.size()); }
  void write_back(std::size_t count) {
    if constexpr (!std::is_const_v<T>) {
      if (copy_ != nullptr && !written_) transfer(copy_->data(), span_.data(), count);
      written_ = true;
    }
  }

  T* data() const { return data_; }
  bool on_host() const { return copy_ != nullptr; }

 private:
  void transfer(const T* from, std::remove_const_t<T>* to, std::size_t count) {
    submit_copy(executor_, from, to, count, "an operand could not be copied");
  }

  CudaExecutor& executor_;
  Span<T> span_;
  T* data_;
  std::unique_ptr<Scratch<std::remove_const_t<T>>> copy_;
  bool written_ = false;
};

}  // namespace thinwire::cuda
