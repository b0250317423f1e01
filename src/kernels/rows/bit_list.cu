#include "kernels/rows/bit_list.h"

namespace thinwire::cuda {
namespace {

THINWIRE_KERNEL void total_kernel(const std::uint64_t* bits, const std::uint32_t* before, std::size_t words,
                                  std::uint32_t* total) {
  if (threadIdx.x == 0) {
    *total = before[words - 1] + static_cast<std::uint32_t>(__popcll(bits[words - 1]));
  }
}

}  // namespace

std::size_t sum_counts(CudaExecutor& executor, const std::uint64_t* bits, std::uint32_t* before,
                       std::size_t words) {
  if (words == 0) return 0;
  auto* total = static_cast<std::uint32_t*>(executor.results(sizeof(std::uint32_t)));
  exclusive_sum(executor, before, before, words);
  launch(executor.stream(), {1, kWarp}, total_kernel, bits, before, words, total);
  executor.wait();
  return *static_cast<volatile std::uint32_t*>(total);
}

}  // namespace thinwire::cuda
