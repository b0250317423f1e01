#include "kernels/rows/index_permutation.h"

#include <algorithm>
#include <bit>

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows/index_permutation.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <bool kForward, class D, class V = hn::Vec<D>>
HWY_INLINE V Rounds(D d, const IndexPermutation& p, V x, V mask) {
  for (std::size_t r = 0; r < IndexPermutation::kRounds; ++r) {
    if (kForward) {
      x = hn::And(hn::Mul(hn::Xor(x, hn::Set(d, p.keys[r])), hn::Set(d, p.multipliers[r])), mask);
      x = hn::Xor(x, hn::ShiftRightSame(x, static_cast<int>(p.shift)));
    } else {
      const std::size_t round = IndexPermutation::kRounds - 1 - r;
      x = hn::Xor(x, hn::ShiftRightSame(x, static_cast<int>(p.shift)));
      x = hn::Xor(hn::And(hn::Mul(x, hn::Set(d, p.inverses[round])), mask), hn::Set(d, p.keys[round]));
    }
  }
  return x;
}

constexpr std::size_t kWalkRun = 1024;

/// Values of a run that are still outside: where they lie in the run, and the low bits that belong to them.
struct Outside {
  HWY_ALIGN std::uint32_t at[kWalkRun + HWY_MAX_BYTES / 4];
  HWY_ALIGN std::uint32_t low[kWalkRun + HWY_MAX_BYTES / 4];
  std::size_t size = 0;
};

/// All rounds once. A block that is still outside is kept as it is, without its low bits.
template <bool kForward>
HWY_INLINE void WalkOnce(const IndexPermutation& p, std::uint32_t first, const std::uint32_t* in,
                         std::uint32_t* out, std::size_t run, Outside& outside) {
  const hn::ScalableTag<std::uint32_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, p.mask);
  const auto last = hn::Set(d, p.blocks - 1);
  const auto offset = hn::Set(d, first);
  const auto iota = hn::Iota(d, 0);
  const std::uint32_t low_mask = (1u << p.block_bits) - 1;
  const auto low_lanes = hn::Set(d, low_mask);
  const int block_bits = static_cast<int>(p.block_bits);
  std::size_t walking = 0;
  std::size_t i = 0;
  for (; i + lanes <= run; i += lanes) {
    const auto x = hn::Add(hn::LoadU(d, in + i), offset);
    const auto low = hn::And(x, low_lanes);
    const auto block = hn::ShiftRightSame(x, block_bits);
    const auto behind = hn::Gt(block, last);
    const auto y = Rounds<kForward>(d, p, block, mask);
    const auto beyond = hn::And(hn::Gt(y, last), hn::Not(behind));
    const auto inside = hn::Or(hn::ShiftLeftSame(y, block_bits), low);
    hn::StoreU(hn::IfThenElse(behind, x, hn::IfThenElse(beyond, y, inside)), d, out + i);
    const auto at = hn::Add(iota, hn::Set(d, static_cast<std::uint32_t>(i)));
    // Whole vectors, for which there is room: storing some lanes alone is microcode on some processors.
    hn::StoreU(hn::Compress(at, beyond), d, outside.at + walking);
    hn::StoreU(hn::Compress(low, beyond), d, outside.low + walking);
    walking += hn::CountTrue(d, beyond);
  }
  for (; i < run; ++i) {
    const std::uint32_t x = in[i] + first;
    const std::uint32_t block = x >> p.block_bits;
    if (block >= p.blocks) {
      out[i] = x;
      continue;
    }
    const std::uint32_t y = p.rounds<kForward>(block);
    if (y < p.blocks) {
      out[i] = (y << p.block_bits) | (x & low_mask);
    } else {
      out[i] = y;
      outside.low[walking] = x & low_mask;
      outside.at[walking++] = static_cast<std::uint32_t>(i);
    }
  }
  outside.size = walking;
}

/// Takes what is outside through the rounds again until nothing is.
template <bool kForward>
HWY_INLINE void WalkInside(const IndexPermutation& p, Outside& outside, std::uint32_t* out) {
  while (outside.size != 0) {
    std::size_t still = 0;
    for (std::size_t k = 0; k < outside.size; ++k) {
      const std::uint32_t at = outside.at[k];
      const std::uint32_t low = outside.low[k];
      const std::uint32_t y = p.rounds<kForward>(out[at]);
      const bool inside = y < p.blocks;
      out[at] = inside ? (y << p.block_bits) | low : y;
      outside.at[still] = at;
      outside.low[still] = low;
      still += inside ? 0 : 1;
    }
    outside.size = still;
  }
}

/// Run by run: lanes that are still outside are gathered and walked again, so that no vector waits for its
/// unluckiest lane.
template <bool kForward>
void Walk(const IndexPermutation& p, std::uint32_t first, const std::uint32_t* in, std::uint32_t* out,
          std::size_t count) {
  Outside outside;
  for (std::size_t begin = 0; begin < count; begin += kWalkRun) {
    WalkOnce<kForward>(p, first, in + begin, out + begin, HWY_MIN(kWalkRun, count - begin), outside);
    WalkInside<kForward>(p, outside, out + begin);
  }
}

void WalkForward(const IndexPermutation& p, std::uint32_t first, const std::uint32_t* in, std::uint32_t* out,
                 std::size_t count) {
  Walk<true>(p, first, in, out, count);
}
void WalkBackward(const IndexPermutation& p, std::uint32_t first, const std::uint32_t* in, std::uint32_t* out,
                  std::size_t count) {
  Walk<false>(p, first, in, out, count);
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(WalkForward);
HWY_EXPORT(WalkBackward);

namespace {

/// Newton's iteration: each step doubles the number of correct low bits; an odd number is its own inverse in
/// the lowest three.
std::uint32_t inverse_of_odd(std::uint32_t value) {
  std::uint32_t inverse = value;
  for (int correct = 3; correct < 32; correct *= 2) inverse *= 2 - value * inverse;
  return inverse;
}

}  // namespace

IndexPermutation IndexPermutation::make(std::size_t size, const RandomStream& stream,
                                        std::uint32_t block_bits) {
  IndexPermutation p = none(size);
  if (size >> block_bits < 2) return p;
  p.identity = false;
  p.block_bits = block_bits;
  p.blocks = static_cast<std::uint32_t>(size >> block_bits);
  const int bits = static_cast<int>(std::bit_width(p.blocks - 1));
  p.mask = static_cast<std::uint32_t>((std::uint64_t{1} << bits) - 1);
  p.shift = static_cast<std::uint32_t>((bits + 1) / 2);
  for (std::uint32_t r = 0; r < kRounds; ++r) {
    const PhiloxCounter words = stream.block(r, 0);
    p.keys[r] = words[0] & p.mask;
    p.multipliers[r] = words[1] | 1;
    p.inverses[r] = inverse_of_odd(p.multipliers[r]);
  }
  return p;
}

IndexPermutation IndexPermutation::none(std::size_t size) {
  IndexPermutation p;
  p.size = static_cast<std::uint32_t>(size);
  p.identity = true;
  return p;
}

void permute(Executor& executor, const IndexPermutation& permutation, Span<const std::uint32_t> indices,
             Span<std::uint32_t> slots) {
  THINWIRE_ON_DEVICE(permute, executor, permutation, indices, slots);
  executor.parallel_for(indices.size(), kBlockElements / 4, [&](std::size_t begin, std::size_t end) {
    if (permutation.identity) {
      std::copy(indices.begin() + begin, indices.begin() + end, slots.begin() + begin);
    } else {
      HWY_DYNAMIC_DISPATCH(WalkForward)
      (permutation, 0, indices.data() + begin, slots.data() + begin, end - begin);
    }
  });
}

bool permute_into(Executor& executor, const IndexPermutation& permutation, std::uint32_t first,
                  std::uint32_t count, Span<const std::uint32_t> indices, Span<std::uint32_t> slots) {
  THINWIRE_ON_DEVICE(permute_into, executor, permutation, first, count, indices, slots);
  permute(executor, permutation, indices, slots);
  bool good = true;
  for (std::uint32_t& slot : slots) {
    slot -= first;  // wraps around to something large when below
    good &= slot < count;
  }
  return good;
}

void unpermute(Executor& executor, const IndexPermutation& permutation, std::uint32_t first,
               Span<const std::uint32_t> slots, Span<std::uint32_t> indices) {
  THINWIRE_ON_DEVICE(unpermute, executor, permutation, first, slots, indices);
  executor.parallel_for(slots.size(), kBlockElements / 4, [&](std::size_t begin, std::size_t end) {
    if (permutation.identity) {
      for (std::size_t k = begin; k < end; ++k) indices[k] = first + slots[k];
    } else {
      HWY_DYNAMIC_DISPATCH(WalkBackward)
      (permutation, first, slots.data() + begin, indices.data() + begin, end - begin);
    }
  });
}

}  // namespace thinwire
#endif
