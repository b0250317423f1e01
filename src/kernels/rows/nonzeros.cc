#include "kernels/rows/nonzeros.h"

#include <algorithm>
#include <array>

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows/nonzeros.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

std::size_t Count(Reads<float> gradient, Reads<float> residual, std::size_t begin, std::size_t end) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto zero = hn::Zero(d);
  std::size_t count = 0;
  std::size_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    const auto p = load_sum(d, gradient, residual, i);
    count += hn::CountTrue(d, hn::Not(hn::Eq(p, zero)));
  }
  for (; i < end; ++i) count += sum_at(gradient, residual, i) != 0 ? 1 : 0;
  return count;
}

/// Writes whole vectors, up to one beyond the last element found, but never past `room` elements.
std::size_t Compact(Reads<float> gradient, Reads<float> residual, std::size_t begin, std::size_t end,
                    Writes<std::uint32_t> indices, Writes<float> values, std::size_t room) {
  const FloatTag d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const std::size_t lanes = hn::Lanes(d);
  const auto zero = hn::Zero(d);
  const auto iota = hn::Iota(du, 0);
  std::size_t out = 0;
  std::size_t i = begin;
  for (; i + lanes <= end && out + lanes <= room; i += lanes) {
    const auto p = load_sum(d, gradient, residual, i);
    const auto found = hn::Not(hn::Eq(p, zero));  // Ne is false for NaN on some targets
    // Sparse gradients are mostly vectors without any.
    if (hn::AllFalse(d, found)) continue;
    const auto at = hn::Add(iota, hn::Set(du, static_cast<std::uint32_t>(i)));
    // Whole vectors: storing the found lanes alone is microcode on some processors.
    hn::StoreU(hn::Compress(at, hn::RebindMask(du, found)), du, indices + out);
    hn::StoreU(hn::Compress(p, found), d, values + out);
    out += hn::CountTrue(d, found);
  }
  for (; i < end; ++i) {
    const float p = sum_at(gradient, residual, i);
    if (p == 0) continue;
    indices[out] = static_cast<std::uint32_t>(i);
    values[out++] = p;
  }
  return out;
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(Count);
HWY_EXPORT(Compact);

namespace {

/// Returns how many there are. Outputs have room for all elements.
std::size_t find_into(Executor& executor, Span<const float> gradient, Span<const float> residual,
                      Span<std::uint32_t> indices, Span<float> values) {
  const std::size_t n = gradient.size();
  const float* left = data_at(residual);
  auto compact = [&](std::size_t begin, std::size_t end, std::size_t at, std::size_t room) {
    return HWY_DYNAMIC_DISPATCH(Compact)(gradient.data(), left, begin, end, indices.data() + at,
                                         values.data() + at, room);
  };
  if (executor.concurrency() == 1) return compact(0, n, 0, n);

  // Several threads need to know where each of them begins: count first. Ranges do not depend on their
  // number.
  constexpr std::size_t kMostRanges = 256;
  std::array<std::size_t, kMostRanges + 1> begins{};
  const std::size_t range = std::max(kBlockElements, n / kMostRanges + 1);
  const std::size_t ranges = (n + range - 1) / range;
  executor.parallel_for(ranges, 1, [&](std::size_t first, std::size_t last) {
    for (std::size_t r = first; r < last; ++r) {
      begins[r + 1] =
          HWY_DYNAMIC_DISPATCH(Count)(gradient.data(), left, r * range, std::min(n, (r + 1) * range));
    }
  });
  for (std::size_t r = 0; r < ranges; ++r) begins[r + 1] += begins[r];
  executor.parallel_for(ranges, 1, [&](std::size_t first, std::size_t last) {
    for (std::size_t r = first; r < last; ++r) {
      compact(r * range, std::min(n, (r + 1) * range), begins[r], begins[r + 1] - begins[r]);
    }
  });
  return begins[ranges];
}

}  // namespace

Elements find_nonzeros(Executor& executor, Span<const float> gradient, Span<const float> residual,
                       Workspace& workspace) {
  THINWIRE_ON_DEVICE(find_nonzeros, executor, gradient, residual, workspace);
  const auto indices = workspace.take<std::uint32_t>(gradient.size());
  const auto values = workspace.take<float>(gradient.size());
  const std::size_t found = find_into(executor, gradient, residual, indices, values);
  return {indices.first(found), values.first(found)};
}

}  // namespace thinwire
#endif
