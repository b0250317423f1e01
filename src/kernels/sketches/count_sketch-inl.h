// What kernels over count sketches share: hashes of runs, and medians. Included once per target.

#ifndef THINWIRE_KERNELS_COUNT_SKETCH_ONCE
#define THINWIRE_KERNELS_COUNT_SKETCH_ONCE

#include <algorithm>
#include <cstdint>

#include "kernels/sketches/count_sketch.h"
#include "kernels/sketches/median_network.h"

#endif

#if defined(THINWIRE_KERNELS_COUNT_SKETCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_COUNT_SKETCH_INL_H_
#undef THINWIRE_KERNELS_COUNT_SKETCH_INL_H_
#else
#define THINWIRE_KERNELS_COUNT_SKETCH_INL_H_
#endif

#include "kernels/bits-inl.h"
#include "kernels/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

/// Runs that are hashed at a time: as many as the widest vector has lanes. Their lines of the table are
/// fetched while the hashes of the others are still being unpacked.
constexpr std::size_t kBatch = 16;

/// Consecutive elements of one run.
struct Batch {
  HWY_ALIGN std::uint32_t runs[kBatch];
  std::uint32_t offsets[kBatch];  // of the first element in its run
  std::uint32_t lengths[kBatch];
  std::size_t firsts[kBatch];  // elements, among the values
  std::size_t size = 0;
};

struct Hashes {
  std::size_t columns[kBatch];  // of the first element
  std::uint64_t signs[kBatch];  // bit i: of element i
};

/// Where runs begin in a row, and the signs of their elements.
struct RunHashes {
  HWY_ALIGN std::uint32_t starts[kBatch];
  HWY_ALIGN std::uint64_t signs[kBatch];
};

/// Both halves of the 32 x 32 -> 64 bit product with a constant, in every lane.
template <class D, class V>
HWY_INLINE void multiply_wide(D d, V a, V constant, V& high, V& low) {
#if HWY_TARGET == HWY_SCALAR
  const std::uint64_t product = std::uint64_t{hn::GetLane(a)} * hn::GetLane(constant);
  high = hn::Set(d, static_cast<std::uint32_t>(product >> 32));
  low = hn::Set(d, static_cast<std::uint32_t>(product));
#else
  const hn::Repartition<std::uint64_t, D> wide;
  const auto even = hn::MulEven(a, constant);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), constant);
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
#endif
}

/// runs: [kBatch], of which `size` count.
HWY_INLINE void HashRuns(const CountSketch& sketch, std::size_t row, Reads<std::uint32_t> runs,
                         std::size_t size, RunHashes& out) {
  const HWY_CAPPED(std::uint32_t, kBatch) d;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN std::uint32_t signs[2 * kBatch];
  const auto columns = hn::Set(d, static_cast<std::uint32_t>(sketch.columns));
  for (std::size_t i = 0; i < size; i += lanes) {
    const auto x = philox_lanes(d, hn::Load(d, runs + i), static_cast<std::uint32_t>(row), sketch.stream);
    // The high 32 bits of (x0 + 2^32 x1) * columns, which has 96.
    auto high0 = hn::Zero(d), low0 = high0, high1 = high0, low1 = high0;
    multiply_wide(d, x.x0, columns, high0, low0);
    multiply_wide(d, x.x1, columns, high1, low1);
    const auto sum = hn::Add(low1, high0);
    const auto carry = hn::Or(hn::And(low1, high0), hn::AndNot(sum, hn::Or(low1, high0)));
    hn::Store(hn::Add(high1, hn::ShiftRight<31>(carry)), d, out.starts + i);
    hn::StoreInterleaved2(x.x2, x.x3, d, signs + 2 * i);
  }
  for (std::size_t i = 0; i < size; ++i) out.signs[i] = signs[2 * i] | std::uint64_t{signs[2 * i + 1]} << 32;
}

HWY_INLINE void HashBatch(const CountSketch& sketch, std::size_t row, const Batch& batch, Hashes& out) {
  RunHashes hashes;
  HashRuns(sketch, row, batch.runs, batch.size, hashes);
  for (std::size_t i = 0; i < batch.size; ++i) {
    const std::size_t column = std::size_t{hashes.starts[i]} + batch.offsets[i];
    out.columns[i] = column < sketch.columns ? column : column - sketch.columns;
    out.signs[i] = hashes.signs[i] >> batch.offsets[i];
  }
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V MedianOf3(V a, V b, V c) {
  return hn::Max(hn::Min(a, b), hn::Min(hn::Max(a, b), c));
}

/// out[i] = median over rows of estimates[row * kLongestRun + i]; estimates are overwritten.
HWY_INLINE void Medians(const MedianNetwork& network, std::size_t rows, Writes<float> estimates,
                        std::size_t length, Writes<float> out) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  auto median = [&](Writes<float> at) HWY_ATTR {
    auto row = [&](std::size_t j) HWY_ATTR { return hn::Load(d, at + j * kLongestRun); };
    if (rows == 3) return MedianOf3<FloatTag>(row(0), row(1), row(2));
    if (rows == 5) {
      // Neither the smallest two nor the largest two of the first four can be the median, pairwise.
      const auto low = hn::Max(hn::Min(row(0), row(1)), hn::Min(row(2), row(3)));
      const auto high = hn::Min(hn::Max(row(0), row(1)), hn::Max(row(2), row(3)));
      return MedianOf3<FloatTag>(low, high, row(4));
    }
    for (std::size_t e = 0; e < network.size; ++e) {
      const auto [i, j] = network.exchanges[e];
      const auto a = row(i);
      const auto b = row(j);
      hn::Store(hn::Min(a, b), d, at + i * kLongestRun);
      hn::Store(hn::Max(a, b), d, at + j * kLongestRun);
    }
    if (rows % 2 == 1) return row(rows / 2);
    const auto half = hn::Set(d, 0.5f);
    return hn::MulAdd(row(rows / 2 - 1), half, hn::Mul(row(rows / 2), half));
  };
  HWY_ALIGN float rest[16];
  for (std::size_t i = 0; i < length; i += lanes) {
    const auto result = median(estimates + i);
    if (i + lanes <= length) {
      hn::StoreU(result, d, out + i);
    } else {
      hn::Store(result, d, rest);
      std::copy_n(rest, length - i, out + i);
    }
  }
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
