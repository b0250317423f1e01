#pragma once
// The cut that keeps the k largest magnitudes of a vector on a CUDA device.

#include <cstddef>
#include <cstdint>

#include "cuda/executor.h"
#include "kernels/selection/select.h"
#include "kernels/selection/select_sample.h"

namespace thinwire::cuda {

/// p = gradient + residual on the device; residual may be null. Fewer than 2^32 elements, whose numbers are
/// indices.
struct SelectInput {
  const float* gradient = nullptr;
  const float* residual = nullptr;
  std::size_t count = 0;
};

/// What the passes of a radix selection leave for each other, on the device.
struct RadixState {
  std::uint32_t bits;  // the digits that are known; in the end those of the cut, 0: all that is not 0
  std::uint32_t blocks_done[kRadixDigits.size()];
  std::uint64_t wanted;  // among the elements with these digits; in the end the ties
  std::uint32_t bins[kRadixDigits.size()][kMostBins];
};

/// cut_of_largest for 0 < k < count without waiting for it: three passes, each over all elements.
class RadixCut {
 public:
  RadixCut(CudaExecutor& executor, const SelectInput& input, std::size_t k);

  const RadixState* state() const { return state_.data(); }
  /// Waits.
  MagnitudeCut read() const;

 private:
  CudaExecutor& executor_;
  Scratch<RadixState> state_;
};

/// apply_cut out of place: what the cut in `state` keeps of `count` listed elements; it keeps some, not all.
/// kept_indices, kept_values: room for that. Submitted.
void keep_largest(CudaExecutor& executor, const std::uint32_t* indices, const float* values,
                  std::size_t count, const RadixState* state, std::uint32_t* kept_indices,
                  float* kept_values);

}  // namespace thinwire::cuda
