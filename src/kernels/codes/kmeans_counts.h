#pragma once
// What ClusterFinder has a CUDA device do: counting its sample.

#include <cstddef>

#include "kernels/codes/kmeans_sample.h"
#include "thinwire/executor.h"
#include "thinwire/function_ref.h"
#include "thinwire/span.h"

namespace thinwire::cuda {

/// A bin's elements: how many, and the sum of what their magnitudes' bits have below kBinShift.
struct BinCount {
  unsigned long long count;
  unsigned long long low;
};

/// Counts the sample of p = gradient + residual on the device. Calls use(sign, first, counts) for each sign
/// that has elements, 1 below 0: bins from `first` on, the last of them not empty.
void count_sample(Executor& executor, Span<const float> gradient, Span<const float> residual,
                  const Sample& sample,
                  FunctionRef<void(std::size_t sign, std::size_t first, Span<const BinCount> counts)> use);

}  // namespace thinwire::cuda
