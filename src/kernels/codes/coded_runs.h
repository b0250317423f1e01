#pragma once
// What device code that makes and reads codes shares. A warp works on runs of 256 elements. Their codes lie
// as one byte each in shared memory, between the order in which elements are read and that of bit planes.

#include "kernels/codes/fine_rounding.h"
#include "kernels/codes/quantization_levels.h"
#include "kernels/device/device.h"

namespace thinwire::cuda {

inline constexpr unsigned kCodedRun = 256;
inline constexpr unsigned kOfLane = kCodedRun / kWarp;
inline constexpr unsigned kWarpsOfBlock = kThreads / kWarp;

inline Grid grid_for_coded_runs(std::size_t count) {
  return grid_for((count + kCodedRun - 1) / kCodedRun * kWarp);
}

/// A warp's run between bytes and bit planes.
struct CodeBuffer {
  std::uint64_t bytes[kWarp];   ///< Eight codes each, in the order of elements.
  std::uint64_t planes[kWarp];  ///< As in quantization_levels.h: `bits` words for each 64 elements.
};

/// Bit j of byte i becomes bit i of byte j.
__device__ inline std::uint64_t transposed(std::uint64_t x) {
  std::uint64_t t = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAu;
  x ^= t ^ (t << 7);
  t = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCu;
  x ^= t ^ (t << 14);
  t = (x ^ (x >> 28)) & 0x00000000F0F0F0F0u;
  return x ^ t ^ (t << 28);
}

/// Byte of plane 0 that holds the lane's eight consecutive codes; the other planes' are 8 bytes apart.
__device__ inline std::size_t plane_byte(unsigned bits) {
  return lane_of_warp() / 8 * bits * 8 + lane_of_warp() % 8;
}

/// The lane's word of the planes of what all lanes have left in `bytes`.
__device__ inline std::uint64_t planes_of_bytes(CodeBuffer& buffer, unsigned bits) {
  __syncwarp();
  const std::uint64_t rows = transposed(buffer.bytes[lane_of_warp()]);
  auto* planes = reinterpret_cast<unsigned char*>(buffer.planes) + plane_byte(bits);
#pragma unroll
  for (unsigned bit = 0; bit < 8; ++bit) {
    if (bit < bits) planes[bit * 8] = static_cast<unsigned char>(rows >> (8 * bit));
  }
  __syncwarp();
  return buffer.planes[lane_of_warp()];
}

/// The reverse, for all lanes to read `bytes`.
__device__ inline void bytes_of_planes(CodeBuffer& buffer, unsigned bits, std::uint64_t word) {
  buffer.planes[lane_of_warp()] = word;
  __syncwarp();
  const auto* planes = reinterpret_cast<const unsigned char*>(buffer.planes) + plane_byte(bits);
  std::uint64_t rows = 0;
#pragma unroll
  for (unsigned bit = 0; bit < 8; ++bit) {
    if (bit < bits) rows |= static_cast<std::uint64_t>(planes[bit * 8]) << (8 * bit);
  }
  buffer.bytes[lane_of_warp()] = transposed(rows);
  __syncwarp();
}

/// The block's own copy, in shared memory: indices into it differ from lane to lane.
__device__ inline const QuantizationLevels& shared_levels(const QuantizationLevels& levels) {
  alignas(64) __shared__ unsigned char memory[sizeof(QuantizationLevels)];
  const auto* from = reinterpret_cast<const unsigned char*>(&levels);
  for (unsigned i = threadIdx.x * 4; i < sizeof memory; i += kThreads * 4) memcpy(memory + i, from + i, 4);
  __syncthreads();
  return *reinterpret_cast<const QuantizationLevels*>(memory);
}

/// QuantizationScales where kernels reach them.
struct DeviceScales {
  std::size_t chunk;
  const std::size_t* ends;  // [ranges], or null
  std::size_t ranges;
};

/// The range of an element, for elements in ascending order.
class RangeCursor {
 public:
  __device__ RangeCursor(const DeviceScales& scales, std::size_t first) : scales_(scales) {
    if (scales.ends == nullptr) {
      // Chunks are multiples of this, and 32 bits are divided much faster than 64.
      constexpr std::size_t kUnit = QuantizationScales::kAlignment;
      range_ = static_cast<std::uint32_t>(first / kUnit) / static_cast<std::uint32_t>(scales.chunk / kUnit);
    } else {
      std::size_t last = scales.ranges;  // the first end behind `first` is in [range_, last]
      while (range_ < last) {
        const std::size_t middle = (range_ + last) / 2;
        if (scales.ends[middle] <= first) {
          range_ = middle + 1;
        } else {
          last = middle;
        }
      }
    }
    find_end();
  }
  /// Returns whether element i, not before the last one and below the last end, is in another range.
  __device__ bool move_to(std::size_t i) {
    if (i < end_) return false;
    while (i >= end_) {
      ++range_;
      find_end();
    }
    return true;
  }
  __device__ std::size_t range() const { return range_; }

 private:
  __device__ void find_end() {
    if (scales_.ends == nullptr) {
      end_ = (range_ + 1) * scales_.chunk;
    } else if (range_ < scales_.ranges) {
      end_ = scales_.ends[range_];
    }
  }

  const DeviceScales& scales_;
  std::size_t range_ = 0;
  std::size_t end_ = 0;
};

/// Norms before they are joined: bits of the largest magnitude, which order like magnitudes, inf and
/// NaN being the largest; or the sum of squares.
struct Largest {
  using Partial = std::uint32_t;
  __device__ static Partial of(float p) { return __float_as_uint(p) & 0x7FFFFFFFu; }
  __device__ static Partial join(Partial a, Partial b) { return a < b ? b : a; }
  __device__ static float norm(Partial whole) { return __uint_as_float(whole); }
};
struct L2 {
  using Partial = double;
  __device__ static Partial of(float p) { return static_cast<double>(p) * static_cast<double>(p); }
  __device__ static Partial join(Partial a, Partial b) { return a + b; }
  __device__ static float norm(Partial whole) { return float_of(sqrt(whole)); }
};

template <class Norm>
__device__ typename Norm::Partial joined_of_warp(typename Norm::Partial value) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    value = Norm::join(value, __shfl_xor_sync(kAllLanes, value, lanes));
  }
  return value;
}

}  // namespace thinwire::cuda
