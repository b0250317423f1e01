#include "kernels/index_permutation.h"

#include <algorithm>
#include <bit>

#include "kernels/blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/index_permutation.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <bool kForward>
HWY_INLINE std::uint32_t RoundsScalar(const IndexPermutation& p, std::uint32_t x) {
  for (std::size_t r = 0; r < IndexPermutation::kRounds; ++r) {
    if (kForward) {
      x = ((x ^ p.keys[r]) * p.multipliers[r]) & p.mask;
      x ^= x >> p.shift;
    } else {
      const std::size_t round = IndexPermutation::kRounds - 1 - r;
      x ^= x >> p.shift;
      x = ((x * p.inverses[round]) & p.mask) ^ p.keys[round];
    }
  }
  return x;
}

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

/// Blocks of which the lanes that are still outside are gathered and walked again together, so that no vector
/// waits for its unluckiest lane.
template <bool kForward>
void Walk(const IndexPermutation& p, std::uint32_t first, const std::uint32_t* in, std::uint32_t* out,
          std::size_t count) {
  constexpr std::size_t kBlock = 1024;
  const hn::ScalableTag<std::uint32_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, p.mask);
  const auto last = hn::Set(d, p.size - 1);
  const auto offset = hn::Set(d, first);
  const auto iota = hn::Iota(d, 0);
  HWY_ALIGN std::uint32_t outside[kBlock + HWY_MAX_BYTES / 4];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t block = HWY_MIN(kBlock, count - begin);
    std::uint32_t* target = out + begin;
    std::size_t walking = 0;
    std::size_t i = 0;
    for (; i + lanes <= block; i += lanes) {
      const auto x = Rounds<kForward>(d, p, hn::Add(hn::LoadU(d, in + begin + i), offset), mask);
      hn::StoreU(x, d, target + i);
      const auto beyond = hn::Gt(x, last);
      const auto at = hn::Add(iota, hn::Set(d, static_cast<std::uint32_t>(i)));
      // Whole vectors, for which `outside` has room: storing some lanes alone is microcode on some processors.
      hn::StoreU(hn::Compress(at, beyond), d, outside + walking);
      walking += hn::CountTrue(d, beyond);
    }
    for (; i < block; ++i) {
      target[i] = RoundsScalar<kForward>(p, in[begin + i] + first);
      if (target[i] >= p.size) outside[walking++] = static_cast<std::uint32_t>(i);
    }
    while (walking != 0) {
      std::size_t still = 0;
      for (std::size_t k = 0; k < walking; ++k) {
        const std::uint32_t at = outside[k];
        const std::uint32_t x = RoundsScalar<kForward>(p, target[at]);
        target[at] = x;
        outside[still] = at;
        still += x >= p.size ? 1 : 0;
      }
      walking = still;
    }
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

IndexPermutation IndexPermutation::make(std::size_t size, const RandomStream& stream) {
  IndexPermutation p = none(size);
  if (size < 2) return p;
  p.identity = false;
  const int bits = std::bit_width(static_cast<std::uint32_t>(size - 1));
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

std::uint32_t IndexPermutation::place_of(std::uint32_t index) const {
  if (identity) return index;
  std::uint32_t place = 0;
  HWY_DYNAMIC_DISPATCH(WalkForward)(*this, 0, &index, &place, 1);
  return place;
}

std::uint32_t IndexPermutation::index_of(std::uint32_t place) const {
  if (identity) return place;
  std::uint32_t index = 0;
  HWY_DYNAMIC_DISPATCH(WalkBackward)(*this, 0, &place, &index, 1);
  return index;
}

void permute(Executor& executor, const IndexPermutation& permutation, Span<const std::uint32_t> indices,
             Span<std::uint32_t> places) {
  executor.parallel_for(indices.size(), kBlockElements / 4, [&](std::size_t begin, std::size_t end) {
    if (permutation.identity) {
      std::copy(indices.begin() + begin, indices.begin() + end, places.begin() + begin);
    } else {
      HWY_DYNAMIC_DISPATCH(WalkForward)
      (permutation, 0, indices.data() + begin, places.data() + begin, end - begin);
    }
  });
}

void unpermute(Executor& executor, const IndexPermutation& permutation, std::uint32_t first,
               Span<const std::uint32_t> places, Span<std::uint32_t> indices) {
  executor.parallel_for(places.size(), kBlockElements / 4, [&](std::size_t begin, std::size_t end) {
    if (permutation.identity) {
      for (std::size_t k = begin; k < end; ++k) indices[k] = first + places[k];
    } else {
      HWY_DYNAMIC_DISPATCH(WalkBackward)
      (permutation, first, places.data() + begin, indices.data() + begin, end - begin);
    }
  });
}

}  // namespace thinwire
#endif
