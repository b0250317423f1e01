#pragma once
// Prefix-sum compaction on a CUDA device: something is marked by bits, and what is marked is written one
// after the other. Every thread finds the bit that belongs to its place in the output, so that outputs are
// written side by side however the bits lie.

#include "kernels/device/device.h"
#include "kernels/device/device_algorithms.h"

namespace thinwire::cuda {

/// Bit i: is_marked(i); counts[w] = set bits of word w.
template <class IsMarked>
THINWIRE_KERNEL void mark_kernel(std::size_t count, IsMarked is_marked, Writes<std::uint64_t> bits,
                                 Writes<std::uint32_t> counts) {
  const std::size_t words = (count + 63) / 64;
  const unsigned lane = lane_of_warp();
  for (std::size_t first = warp_of_grid() * kWordsAtOnce; first < words;
       first += warps_of_grid() * kWordsAtOnce) {
    std::uint64_t own = 0;
#pragma unroll 8
    for (unsigned k = 0; k < kWordsAtOnce; ++k) {
      const std::size_t low = (first + k) * 64 + lane;
      const std::size_t high = low + kWarp;
      const bool a = low < count && is_marked(low);
      const bool b = high < count && is_marked(high);
      const std::uint64_t word =
          __ballot_sync(kAllLanes, a) | (static_cast<std::uint64_t>(__ballot_sync(kAllLanes, b)) << kWarp);
      if (lane == k) own = word;
    }
    if (lane < kWordsAtOnce && first + lane < words) {
      bits[first + lane] = own;
      counts[first + lane] = static_cast<std::uint32_t>(__popcll(own));
    }
  }
}

/// Number of set bits below `position`, see rank_of in kernels/rows/bitmap.h.
__device__ inline std::uint32_t rank_at(const std::uint64_t* bits, const std::uint32_t* before,
                                        std::size_t position) {
  const std::uint64_t lower = bits[position / 64] & ((std::uint64_t{1} << (position % 64)) - 1);
  return before[position / 64] + static_cast<std::uint32_t>(__popcll(lower));
}

/// Position of the set bit of `word` that has `rank` set bits below it; there is one.
__device__ inline unsigned select_bit(std::uint64_t word, unsigned rank) {
  unsigned position = 0;
#pragma unroll
  for (unsigned half = 32; half > 0; half /= 2) {
    const auto low = static_cast<unsigned>(__popcll(word & ((std::uint64_t{1} << half) - 1)));
    if (rank >= low) {
      rank -= low;
      word >>= half;
      position += half;
    }
  }
  return position;
}

/// write(k, position of the k-th set bit) for all `total` set bits; before[w] = number of set bits in words
/// [0, w).
template <class Write>
THINWIRE_KERNEL void list_kernel(Reads<std::uint64_t> bits, Reads<std::uint32_t> before, std::size_t words,
                                 std::size_t total, Write write) {
  __shared__ std::uint64_t tile[kThreads];
  __shared__ std::uint32_t starts[kThreads];
  for (std::size_t first = std::size_t{blockIdx.x} * kThreads; first < words;
       first += std::size_t{gridDim.x} * kThreads) {
    const std::size_t own = first + threadIdx.x;
    tile[threadIdx.x] = own < words ? bits[own] : 0;
    starts[threadIdx.x] = own < words ? before[own] : 0xffffffffu;  // behind every k
    const std::size_t end = first + kThreads < words ? before[first + kThreads] : total;
    __syncthreads();
    for (std::size_t k = starts[0] + std::size_t{threadIdx.x}; k < end; k += kThreads) {
      unsigned word = 0;  // the last one that begins at k or before
#pragma unroll
      for (unsigned step = kThreads / 2; step > 0; step /= 2) {
        if (starts[word + step] <= k) word += step;
      }
      const unsigned bit = select_bit(tile[word], static_cast<unsigned>(k - starts[word]));
      write(k, (first + word) * 64 + bit);
    }
    __syncthreads();
  }
}

/// Submits list_kernel. `write` is called on the device: write(std::size_t k, std::size_t position).
template <class Write>
void list_marked(CudaExecutor& executor, const std::uint64_t* bits, const std::uint32_t* before,
                 std::size_t words, std::size_t total, Write write) {
  if (total == 0) return;
  launch(executor.stream(), grid_for(words), list_kernel<Write>, bits, before, words, total, write);
}

/// before: the number of set bits of each word; becomes the number in all words before. Returns the number of
/// all; waits.
std::size_t sum_counts(CudaExecutor& executor, const std::uint64_t* bits, std::uint32_t* before,
                       std::size_t words);

/// A bitmap of `count` positions with its counts.
class Marks {
 public:
  /// Marks position i where is_marked(i) says so on the device, and counts them; waits.
  template <class IsMarked>
  Marks(CudaExecutor& executor, std::size_t count, IsMarked is_marked)
      : executor_(executor), words_((count + 63) / 64), bits_(executor, words_), before_(executor, words_) {
    launch(executor.stream(), grid_for_words(words_), mark_kernel<IsMarked>, count, is_marked, bits_.data(),
           before_.data());
    total_ = sum_counts(executor, bits_.data(), before_.data(), words_);
  }

  std::size_t total() const { return total_; }
  const std::uint64_t* bits() const { return bits_.data(); }
  const std::uint32_t* before() const { return before_.data(); }

  /// Submits write(k, position of the k-th) for all of them.
  template <class Write>
  void list(Write write) const {
    list_marked(executor_, bits_.data(), before_.data(), words_, total_, write);
  }

 private:
  CudaExecutor& executor_;
  std::size_t words_;
  Scratch<std::uint64_t> bits_;
  Scratch<std::uint32_t> before_;
  std::size_t total_ = 0;
};

}  // namespace thinwire::cuda
