// Any number of workers, of sums, and any bytes: read_elias either throws CorruptFrame or returns counters of
// at most so many workers, and these are coded as the bytes that were read.

#include "wire/elias.h"

#include <algorithm>
#include <vector>

#include "fuzz/input.h"
#include "thinwire/errors.h"
#include "wire/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  using thinwire::fuzz::require;
  if (size < 3) return 0;
  const SignSums sums{.workers = 1 + data[0] + 256u * (data[1] % 4), .count = 1 + std::size_t{data[2]}};
  const auto codes = as_bytes(Span<const std::uint8_t>(data + 3, size - 3));
  const auto plane_count = static_cast<std::size_t>(vote_planes(sums.workers));
  std::vector<std::uint64_t> planes(plane_count * sums.words(), ~std::uint64_t{0});
  try {
    read_elias(sums, codes, planes);
  } catch (const CorruptFrame&) {
    return 0;
  }
  for (std::size_t i = 0; i < 64 * sums.words(); ++i) {
    std::uint64_t counter = 0;
    for (std::size_t k = 0; k < plane_count; ++k) {
      counter |= (planes[k * sums.words() + i / 64] >> (i % 64) & 1u) << k;
    }
    require(counter <= (i < sums.count ? sums.workers : 0));
  }
  std::vector<std::byte> again(codes.size());
  require(write_elias(sums, planes, again) == codes.size() && std::ranges::equal(again, codes));
  return 0;
}
