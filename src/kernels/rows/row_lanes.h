#pragma once
// How threads share rows: a power of two of neighbouring lanes takes a row, so that none is idle where rows
// are narrow and memory is read side by side where they are wide.

#include <bit>

#include "kernels/device/device.h"

namespace thinwire::cuda {

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

}  // namespace thinwire::cuda
