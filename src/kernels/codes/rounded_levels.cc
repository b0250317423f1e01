#include "kernels/codes/rounded_levels.h"

#include <algorithm>
#include <cmath>

#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codes/rounded_levels.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

using LevelTag = hn::Rebind<std::int16_t, FloatTag>;

/// Values of levels.
HWY_INLINE hn::Vec<FloatTag> ValuesOf(hn::Vec<FloatTag> step, const std::int16_t* levels) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  return hn::Mul(step, hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(LevelTag(), levels))));
}

void Round(Reads<float> gradient, Reads<float> residual, Writes<std::int16_t> levels, std::size_t count,
           float inverse, float up) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const auto most = hn::Set(d, 32767.0f);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    auto p = hn::LoadU(d, gradient + i);
    if (residual != nullptr) p = hn::Add(p, hn::LoadU(d, residual + i));
    const auto place = hn::Add(hn::Mul(hn::Abs(p), hn::Set(d, inverse)), hn::Set(d, up));
    const auto level = hn::ConvertTo(di, hn::CopySignToAbs(hn::Min(place, most), p));
    hn::StoreU(hn::DemoteTo(LevelTag(), level), LevelTag(), levels + i);
  }
  for (; i < count; ++i) {
    const float p = residual != nullptr ? gradient[i] + residual[i] : gradient[i];
    const float place = std::min(std::fabs(p) * inverse + up, 32767.0f);
    levels[i] = static_cast<std::int16_t>(std::copysign(place, p));
  }
}

/// sums[i] (+)= what levels say, then times factor.
void AddLevels(Reads<std::int16_t> levels, Writes<float> sums, std::size_t count, float step, bool first,
               float factor) {
  const FloatTag d;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    auto sum = ValuesOf(hn::Set(d, step), levels + i);
    if (!first) sum = hn::Add(hn::LoadU(d, sums + i), sum);
    hn::StoreU(hn::Mul(sum, hn::Set(d, factor)), d, sums + i);
  }
  for (; i < count; ++i) {
    const float value = step * static_cast<float>(levels[i]);
    sums[i] = (first ? value : sums[i] + value) * factor;
  }
}

/// residual: `after` is null where there is none.
double Apply(Reads<std::int16_t> own, Reads<std::int16_t> mean, Writes<float> gradient,
             ResidualBlock residual, std::size_t count, float own_step, float mean_step) {
  const FloatTag d;
  auto squares = hn::Zero(d);
  double total = 0;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    if (residual.after != nullptr) {
      const auto p = hn::Add(hn::LoadU(d, gradient + i), hn::LoadU(d, residual.before + i));
      const auto left = hn::Sub(p, ValuesOf(hn::Set(d, own_step), own + i));
      squares = hn::MulAdd(left, left, squares);
      hn::StoreU(left, d, residual.after + i);
    }
    hn::StoreU(ValuesOf(hn::Set(d, mean_step), mean + i), d, gradient + i);
  }
  total = static_cast<double>(hn::GetLane(hn::SumOfLanes(d, squares)));
  for (; i < count; ++i) {
    if (residual.after != nullptr) {
      const float left = gradient[i] + residual.before[i] - own_step * static_cast<float>(own[i]);
      residual.after[i] = left;
      total += static_cast<double>(left) * static_cast<double>(left);
    }
    gradient[i] = mean_step * static_cast<float>(mean[i]);
  }
  return total;
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(Round);
HWY_EXPORT(AddLevels);
HWY_EXPORT(Apply);

namespace {

/// body(block, first, count) for what of blocks lies in [begin, end), which may cut a block.
template <class Body>
void for_blocks(std::size_t begin, std::size_t end, Body body) {
  while (begin < end) {
    const std::size_t count = std::min(kSteppedBlock - begin % kSteppedBlock, end - begin);
    body(begin / kSteppedBlock, begin, count);
    begin += count;
  }
}

}  // namespace

void round_to_levels(Executor& executor, const BlockSteps& steps, float up, Span<const float> gradient,
                     Span<const float> residual, Span<std::int16_t> levels) {
  THINWIRE_ON_DEVICE(round_to_levels, executor, steps, up, gradient, residual, levels);
  executor.parallel_for(levels.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    for_blocks(begin, end, [&](std::size_t block, std::size_t first, std::size_t count) {
      const float step = steps.of(block);
      HWY_DYNAMIC_DISPATCH(Round)
      (gradient.data() + first, data_at(residual, first), levels.data() + first, count,
       step > 0 ? 1.0f / step : 0.0f, up);
    });
  });
}

void mean_of_levels(Executor& executor, Span<const SteppedLevels> ranks, Span<float> mean) {
  THINWIRE_ON_DEVICE(mean_of_levels, executor, ranks, mean);
  const float part = 1.0f / static_cast<float>(ranks.size());
  executor.parallel_for(mean.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    for_blocks(begin, end, [&](std::size_t block, std::size_t first, std::size_t count) {
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        HWY_DYNAMIC_DISPATCH(AddLevels)
        (ranks[rank].levels.data() + first, mean.data() + first, count, ranks[rank].steps.of(block),
         rank == 0, rank + 1 == ranks.size() ? part : 1.0f);
      }
    });
  });
}

double apply_levels(Executor& executor, const SteppedLevels& own, const SteppedLevels& mean,
                    Span<float> gradient, ResidualSpan residual) {
  THINWIRE_ON_DEVICE(apply_levels, executor, own, mean, gradient, residual);
  return sum_over_blocks(executor, gradient.size(), [&](std::size_t begin, std::size_t end) {
    double squares = 0;
    for_blocks(begin, end, [&](std::size_t block, std::size_t first, std::size_t count) {
      squares += HWY_DYNAMIC_DISPATCH(Apply)(own.levels.data() + first, mean.levels.data() + first,
                                             gradient.data() + first, data_at(residual, first), count,
                                             own.steps.of(block), mean.steps.of(block));
    });
    return squares;
  });
}

}  // namespace thinwire
#endif
