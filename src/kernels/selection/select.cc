#include "kernels/selection/select.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "kernels/device/on_device.h"
#include "kernels/selection/select_blocks.h"
#include "kernels/selection/select_sample.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/selection/select.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

using BitsTag = hn::RebindToUnsigned<FloatTag>;

HWY_INLINE hn::Vec<BitsTag> Magnitude(hn::Vec<FloatTag> p) {
  const BitsTag du;
  return hn::And(hn::BitCast(du, p), hn::Set(du, 0x7fffffffu));
}

/// bins[digit of |p|] += 1 for every element.
void CountFirstDigit(Reads<float> gradient, Reads<float> residual, std::size_t begin, std::size_t end,
                     Writes<std::uint32_t> bins) {
  constexpr unsigned kShift = kRadixDigits[0].shift;
  const BitsTag du;
  const std::size_t lanes = hn::Lanes(du);
  // Neighbours are often alike: four tables keep an increment from waiting for the one before.
  static_assert(kMostBins * 4 * sizeof(std::uint32_t) <= 32 * 1024, "tables must fit the first-level cache");
  std::uint32_t tables[4][kMostBins] = {};
  HWY_ALIGN std::uint32_t digits[16];
  std::size_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    hn::Store(hn::ShiftRight<kShift>(Magnitude(load_sum(FloatTag(), gradient, residual, i))), du, digits);
    for (std::size_t lane = 0; lane < lanes; ++lane) ++tables[lane % 4][digits[lane]];
  }
  for (; i < end; ++i) {
    const float p = sum_at(gradient, residual, i);
    ++tables[0][magnitude_bits(p) >> kShift];
  }
  for (std::size_t bin = 0; bin < kMostBins; ++bin) {
    bins[bin] = tables[0][bin] + tables[1][bin] + tables[2][bin] + tables[3][bin];
  }
}

/// The same for a later digit, of those elements alone whose digits before it are `prefix`.
void CountLaterDigit(Reads<float> gradient, Reads<float> residual, std::size_t begin, std::size_t end,
                     RadixDigit digit, std::uint32_t prefix, Writes<std::uint32_t> bins) {
  const BitsTag du;
  const std::size_t lanes = hn::Lanes(du);
  std::fill_n(bins, kMostBins, 0u);
  const std::uint32_t before = prefix << (digit.shift + digit.bits);
  const std::uint32_t before_mask = ~0u << (digit.shift + digit.bits);
  const std::uint32_t digit_mask = (1u << digit.bits) - 1;
  const auto wanted = hn::Set(du, before);
  const auto mask = hn::Set(du, before_mask);
  HWY_ALIGN std::uint32_t bits[16];
  std::size_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    const auto magnitude = Magnitude(load_sum(FloatTag(), gradient, residual, i));
    const auto match = hn::Eq(hn::And(magnitude, mask), wanted);
    if (hn::AllFalse(du, match)) continue;
    hn::Store(magnitude, du, bits);
    for (std::uint64_t left = mask_to_word(du, match, 0); left != 0; left &= left - 1) {
      ++bins[(bits[std::countr_zero(left)] >> digit.shift) & digit_mask];
    }
  }
  for (; i < end; ++i) {
    const float p = sum_at(gradient, residual, i);
    const std::uint32_t magnitude = magnitude_bits(p);
    if ((magnitude & before_mask) == before) ++bins[(magnitude >> digit.shift) & digit_mask];
  }
}

/// Writes the elements of [begin, end) of at least `least` to indices[0...] and values[0...], which have room
/// for end - begin. Returns how many.
std::size_t Compact(Reads<float> gradient, Reads<float> residual, std::size_t begin, std::size_t end,
                    std::uint32_t least, Writes<std::uint32_t> indices, Writes<float> values) {
  const FloatTag d;
  const BitsTag du;
  const hn::RebindToSigned<FloatTag> di;
  const std::size_t lanes = hn::Lanes(d);
  // Magnitudes have 31 bits, so they compare as signed integers too, which every target can.
  const auto below = hn::Set(di, static_cast<std::int32_t>(least) - 1);
  std::size_t out = 0;
  std::size_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    const auto p = load_sum(d, gradient, residual, i);
    const auto keep = hn::Gt(hn::BitCast(di, Magnitude(p)), below);
    if (hn::AllFalse(di, keep)) continue;
    // Whole vectors are stored: out <= i - begin, so they end inside the room.
    const auto index = hn::Iota(du, static_cast<std::uint32_t>(i));
    hn::StoreU(hn::Compress(p, hn::RebindMask(d, keep)), d, values + out);
    hn::StoreU(hn::Compress(index, hn::RebindMask(du, keep)), du, indices + out);
    out += hn::CountTrue(di, keep);
  }
  for (; i < end; ++i) {
    const float p = sum_at(gradient, residual, i);
    values[out] = p;
    indices[out] = static_cast<std::uint32_t>(i);
    out += magnitude_bits(p) >= least ? 1 : 0;
  }
  return out;
}

/// Keeps of indices and values, in place, what is above cut.bits and the first cut.ties equal to it. Returns
/// how many.
std::size_t Cut(MagnitudeCut cut, std::uint32_t* indices, float* values, std::size_t count) {
  const FloatTag d;
  const BitsTag du;
  const hn::RebindToSigned<FloatTag> di;
  const std::size_t lanes = hn::Lanes(d);
  const auto at = hn::Set(di, static_cast<std::int32_t>(cut.bits));
  std::size_t ties = cut.ties;
  std::size_t out = 0;
  std::size_t i = 0;
  auto one = [&](std::size_t k) HWY_ATTR {
    const float value = values[k];
    const std::uint32_t index = indices[k];
    const std::uint32_t bits = magnitude_bits(value);
    const bool tie = bits == cut.bits && ties != 0;
    values[out] = value;
    indices[out] = index;
    out += bits > cut.bits || tie ? 1 : 0;
    ties -= tie ? 1 : 0;
  };
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(d, values + i);
    const auto bits = hn::BitCast(di, Magnitude(value));
    if (!hn::AllFalse(di, hn::Eq(bits, at))) {
      for (std::size_t lane = 0; lane < lanes; ++lane) one(i + lane);
      continue;
    }
    // Whole vectors are stored: out <= i, so they cover only what was loaded.
    const auto keep = hn::Gt(bits, at);
    const auto index = hn::LoadU(du, indices + i);
    hn::StoreU(hn::Compress(value, hn::RebindMask(d, keep)), d, values + out);
    hn::StoreU(hn::Compress(index, hn::RebindMask(du, keep)), du, indices + out);
    out += hn::CountTrue(di, keep);
  }
  for (; i < count; ++i) one(i);
  return out;
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(CountFirstDigit);
HWY_EXPORT(CountLaterDigit);
HWY_EXPORT(Compact);
HWY_EXPORT(Cut);

namespace {

/// select_at_least into `out`, which has room for all elements.
Selection select_into(Executor& executor, Span<const float> gradient, Span<const float> residual,
                      std::uint32_t least_bits, const Selection& out) {
  const std::uint32_t least = std::max(least_bits, 1u);
  return select_by_blocks(executor, gradient.size(), out,
                          [&](std::size_t begin, std::size_t end, std::uint32_t* indices, float* values) {
                            return HWY_DYNAMIC_DISPATCH(Compact)(gradient.data(), data_at(residual), begin,
                                                                 end, least, indices, values);
                          });
}

}  // namespace

MagnitudeCut cut_of_largest(Executor& executor, Span<const float> gradient, Span<const float> residual,
                            std::size_t k) {
  THINWIRE_ON_DEVICE(cut_of_largest, executor, gradient, residual, k);
  if (k == 0) return {.bits = 0x7fffffffu, .ties = 0};
  if (k >= gradient.size()) return {};
  std::uint32_t prefix = 0;
  std::size_t wanted = k;  // among the elements with this prefix
  std::array<std::atomic<std::uint32_t>, kMostBins> bins;
  for (std::size_t pass = 0; pass < kRadixDigits.size(); ++pass) {
    const RadixDigit digit = kRadixDigits[pass];
    const std::size_t used = std::size_t{1} << digit.bits;
    for (auto& bin : bins) bin.store(0, std::memory_order_relaxed);
    executor.parallel_for(gradient.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
      std::array<std::uint32_t, kMostBins> own;
      if (pass == 0) {
        HWY_DYNAMIC_DISPATCH(CountFirstDigit)
        (gradient.data(), data_at(residual), begin, end, own.data());
      } else {
        HWY_DYNAMIC_DISPATCH(CountLaterDigit)
        (gradient.data(), data_at(residual), begin, end, digit, prefix, own.data());
      }
      for (std::size_t bin = 0; bin < used; ++bin) {
        if (own[bin] != 0) bins[bin].fetch_add(own[bin], std::memory_order_relaxed);
      }
    });
    std::size_t bin = used - 1;
    for (; bin > 0; --bin) {
      const std::size_t count = bins[bin].load(std::memory_order_relaxed);
      if (count >= wanted) break;
      wanted -= count;
    }
    prefix = prefix << digit.bits | static_cast<std::uint32_t>(bin);
  }
  if (prefix == 0) return {};  // fewer than k are not 0
  return {.bits = prefix, .ties = wanted};
}

Selection select_at_least(Executor& executor, Workspace& workspace, Span<const float> gradient,
                          Span<const float> residual, std::uint32_t least_bits) {
  THINWIRE_ON_DEVICE(select_at_least, executor, workspace, gradient, residual, least_bits);
  return select_into(executor, gradient, residual, least_bits, room_for(workspace, gradient.size()));
}

Selection apply_cut(const Selection& selection, MagnitudeCut cut) {
  const std::size_t kept =
      HWY_DYNAMIC_DISPATCH(Cut)(cut, selection.indices.data(), selection.values.data(), selection.size());
  return {selection.indices.first(kept), selection.values.first(kept)};
}

std::uint32_t sampled_threshold(Executor& executor, Workspace& workspace, Span<const float> gradient,
                                Span<const float> residual, std::size_t k, std::size_t sample, double safety,
                                std::uint32_t seed) {
  THINWIRE_ON_DEVICE(sampled_threshold, executor, workspace, gradient, residual, k, sample, safety, seed);
  const std::size_t n = gradient.size();
  const std::size_t rank = sample_rank(n, k, sample, safety);
  if (rank == 0) return 0;
  const auto values = workspace.take<float>(sample);
  const double stride = static_cast<double>(n) / static_cast<double>(sample);
  for (std::size_t s = 0; s < sample; ++s) {
    const std::size_t i = sample_position(s, seed, stride, n);
    values[s] = residual.empty() ? gradient[i] : gradient[i] + residual[i];
  }
  return cut_of_largest(executor, values, {}, rank).bits;
}

Selection select_largest(Executor& executor, Workspace& workspace, Span<const float> gradient,
                         Span<const float> residual, std::size_t k) {
  THINWIRE_ON_DEVICE(select_largest, executor, workspace, gradient, residual, k);
  const std::size_t n = gradient.size();
  const Selection room = room_for(workspace, n);
  if (k == 0) return {room.indices.first(0), room.values.first(0)};
  if (k >= n) return select_into(executor, gradient, residual, 1, room);
  if (n > kSelectSmall) {
    const std::uint32_t threshold =
        sampled_threshold(executor, workspace, gradient, residual, k, sample_size(n, k), kSelectSafety, 0);
    const Selection candidates = select_into(executor, gradient, residual, threshold, room);
    if (candidates.size() >= k || threshold <= 1) {
      return apply_cut(candidates, cut_of_largest(executor, candidates.values, {}, k));
    }
  }
  const MagnitudeCut cut = cut_of_largest(executor, gradient, residual, k);
  return apply_cut(select_into(executor, gradient, residual, cut.bits, room), cut);
}

}  // namespace thinwire
#endif
