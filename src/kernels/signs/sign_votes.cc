#include "kernels/signs/sign_votes.h"

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/signs/sign_votes.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Both kernels walk [begin, end) of planes that are `stride` words apart; D has one lane for the last words.

template <class D>
void AddVotesFrom(D d, Writes<std::uint64_t> planes, std::size_t stride, int plane_count,
                  Reads<std::uint64_t> bits, std::size_t& i, std::size_t end) {
  const std::size_t lanes = hn::Lanes(d);
  for (; i + lanes <= end; i += lanes) {
    auto carry = hn::LoadU(d, bits + i);
    for (int k = 0; k < plane_count; ++k) {
      std::uint64_t* plane = planes + static_cast<std::size_t>(k) * stride + i;
      const auto old = hn::LoadU(d, plane);
      hn::StoreU(hn::Xor(old, carry), d, plane);
      carry = hn::And(old, carry);
    }
  }
}

void AddVotes(Writes<std::uint64_t> planes, std::size_t stride, int plane_count, Reads<std::uint64_t> bits,
              std::size_t begin, std::size_t end) {
  AddVotesFrom(hn::ScalableTag<std::uint64_t>(), planes, stride, plane_count, bits, begin, end);
  AddVotesFrom(HWY_CAPPED(std::uint64_t, 1)(), planes, stride, plane_count, bits, begin, end);
}

/// Compares with workers / 2 digit by digit, the most significant plane first.
template <class D>
void MajorityFrom(D d, Reads<std::uint64_t> planes, std::size_t stride, int plane_count,
                  std::uint32_t workers, Reads<std::uint64_t> ties, Writes<std::uint64_t> majority,
                  std::size_t& i, std::size_t end) {
  const std::size_t lanes = hn::Lanes(d);
  const std::uint32_t half = workers / 2;
  const bool tie_possible = workers % 2 == 0;
  for (; i + lanes <= end; i += lanes) {
    auto above = hn::Zero(d);
    auto equal = hn::Not(above);
    for (int k = plane_count - 1; k >= 0; --k) {
      const auto digit = hn::LoadU(d, planes + static_cast<std::size_t>(k) * stride + i);
      if (((half >> k) & 1) == 0) {
        above = hn::Or(above, hn::And(equal, digit));
        equal = hn::AndNot(digit, equal);
      } else {
        equal = hn::And(equal, digit);
      }
    }
    if (tie_possible) above = hn::Or(above, hn::And(equal, hn::LoadU(d, ties + i)));
    hn::StoreU(above, d, majority + i);
  }
}

void Majority(Reads<std::uint64_t> planes, std::size_t stride, int plane_count, std::uint32_t workers,
              Reads<std::uint64_t> ties, Writes<std::uint64_t> majority, std::size_t begin, std::size_t end) {
  MajorityFrom(hn::ScalableTag<std::uint64_t>(), planes, stride, plane_count, workers, ties, majority, begin,
               end);
  MajorityFrom(HWY_CAPPED(std::uint64_t, 1)(), planes, stride, plane_count, workers, ties, majority, begin,
               end);
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(AddVotes);
HWY_EXPORT(Majority);

void add_votes(Executor& executor, Span<std::uint64_t> planes, int plane_count,
               Span<const std::uint64_t> bits) {
  THINWIRE_ON_DEVICE(add_votes, executor, planes, plane_count, bits);
  executor.parallel_for(bits.size(), kBlockElements / 64, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(AddVotes)(planes.data(), bits.size(), plane_count, bits.data(), begin, end);
  });
}

void majority_of_votes(Executor& executor, Span<const std::uint64_t> planes, int plane_count,
                       std::uint32_t workers, Span<const std::uint64_t> ties, Span<std::uint64_t> majority) {
  THINWIRE_ON_DEVICE(majority_of_votes, executor, planes, plane_count, workers, ties, majority);
  executor.parallel_for(majority.size(), kBlockElements / 64, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(Majority)
    (planes.data(), majority.size(), plane_count, workers, ties.data(), majority.data(), begin, end);
  });
}

}  // namespace thinwire
#endif
