#include "kernels/dense/dense.h"

#include <cmath>

#include "core/partition.h"
#include "kernels/blocks.h"
#include "kernels/device/on_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dense/dense.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include "kernels/bits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::HWY_NAMESPACE {

/// Float partial sums cover this many elements before they go into a double.
constexpr std::size_t kRun = 4096;

bool AddWithin(Writes<float> target, Reads<float> values, float limit, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto bound = hn::Set(d, limit);
  bool within = true;
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    auto p = hn::LoadU(d, target + i);
    if (values != nullptr) {
      p = hn::Add(p, hn::LoadU(d, values + i));
      hn::StoreU(p, d, target + i);
    }
    within = hn::AllTrue(d, hn::Le(hn::Abs(p), bound)) && within;
  }
  for (; i < count; ++i) {
    if (values != nullptr) target[i] += values[i];
    within = within && std::fabs(target[i]) <= limit;
  }
  return within;
}

bool Scale(Writes<float> values, float factor, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, factor);
  const auto zero = hn::Zero(d);
  auto check = zero;  // x * 0 is NaN for inf and NaN, and NaN sticks
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto product = hn::Mul(hn::LoadU(d, values + i), by);
    check = hn::MulAdd(product, zero, check);
    hn::StoreU(product, d, values + i);
  }
  bool finite = hn::AllTrue(d, hn::Eq(check, zero));
  for (; i < count; ++i) {
    values[i] *= factor;
    finite = finite && std::isfinite(values[i]);
  }
  return finite;
}

bool AllFinite(Reads<float> values, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto zero = hn::Zero(d);
  auto check = zero;
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) check = hn::MulAdd(hn::LoadU(d, values + i), zero, check);
  bool finite = hn::AllTrue(d, hn::Eq(check, zero));
  for (; i < count; ++i) finite = finite && std::isfinite(values[i]);
  return finite;
}

/// Sum of f(p) over runs; both reductions differ in f only.
template <class VectorOp, class ScalarOp>
double Reduce(Reads<float> gradient, Reads<float> residual, std::size_t count, VectorOp vector_op,
              ScalarOp scalar_op) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  double total = 0;
  std::size_t i = 0;
  while (i + lanes <= count) {
    const std::size_t end = count - i < kRun ? count : i + kRun;
    auto sum0 = hn::Zero(d);
    auto sum1 = sum0;
    auto load = [&](std::size_t k) HWY_ATTR { return load_sum(d, gradient, residual, k); };
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      sum0 = vector_op(load(i), sum0);
      sum1 = vector_op(load(i + lanes), sum1);
    }
    for (; i + lanes <= end; i += lanes) sum0 = vector_op(load(i), sum0);
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1))));
  }
  for (; i < count; ++i) {
    total += scalar_op(static_cast<double>(sum_at(gradient, residual, i)));
  }
  return total;
}

double Magnitudes(const float* gradient, const float* residual, std::size_t count) {
  return Reduce(
      gradient, residual, count, [](auto p, auto sum) HWY_ATTR { return hn::Add(sum, hn::Abs(p)); },
      [](double p) { return std::fabs(p); });
}

double Squares(const float* gradient, const float* residual, std::size_t count) {
  return Reduce(
      gradient, residual, count, [](auto p, auto sum) HWY_ATTR { return hn::MulAdd(p, p, sum); },
      [](double p) { return p * p; });
}

/// residual = gradient + residual - own and gradient = sums * factor; residual may be null.
double ApplyAverage(Reads<float> own, Reads<float> sums, float factor, Writes<float> gradient,
                    ResidualBlock residual, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto scale = hn::Set(d, factor);
  const bool past_caches = goes_past_caches(d, residual.large, residual.after);
  double total = 0;
  std::size_t i = 0;
  while (i + lanes <= count) {
    const std::size_t end = count - i < kRun ? count : i + kRun;
    auto squares = hn::Zero(d);
    for (; i + lanes <= end; i += lanes) {
      if (residual.after != nullptr) {
        const auto p = hn::Add(hn::LoadU(d, gradient + i), hn::LoadU(d, residual.before + i));
        const auto left = hn::Sub(p, hn::LoadU(d, own + i));
        squares = hn::MulAdd(left, left, squares);
        store_residual(left, d, residual.after + i, past_caches);
      }
      hn::StoreU(hn::Mul(hn::LoadU(d, sums + i), scale), d, gradient + i);
    }
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, squares)));
  }
  for (; i < count; ++i) {
    if (residual.after != nullptr) {
      const float left = gradient[i] + residual.before[i] - own[i];
      total += static_cast<double>(left) * static_cast<double>(left);
      residual.after[i] = left;
    }
    gradient[i] = sums[i] * factor;
  }
  return total;
}

/// residual += sums - factor * mean. Returns its sum of squares.
double AddRemainder(Reads<float> sums, float factor, Reads<float> mean, Writes<float> residual,
                    std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, factor);
  double total = 0;
  std::size_t i = 0;
  while (i + lanes <= count) {
    const std::size_t end = count - i < kRun ? count : i + kRun;
    auto squares = hn::Zero(d);
    for (; i + lanes <= end; i += lanes) {
      const auto lost = hn::Sub(hn::LoadU(d, sums + i), hn::Mul(hn::LoadU(d, mean + i), by));
      const auto left = hn::Add(hn::LoadU(d, residual + i), lost);
      squares = hn::MulAdd(left, left, squares);
      hn::StoreU(left, d, residual + i);
    }
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, squares)));
  }
  for (; i < count; ++i) {
    residual[i] += sums[i] - factor * mean[i];
    total += static_cast<double>(residual[i]) * static_cast<double>(residual[i]);
  }
  return total;
}

}  // namespace thinwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(AddTo);
HWY_EXPORT(AddWithin);
HWY_EXPORT(Scale);
HWY_EXPORT(AllFinite);
HWY_EXPORT(Magnitudes);
HWY_EXPORT(Squares);
HWY_EXPORT(ApplyAverage);
HWY_EXPORT(AddRemainder);

void add(Executor& executor, Span<float> target, Span<const float> values) {
  THINWIRE_ON_DEVICE(add, executor, target, values);
  in_blocks(executor, target.size(), HWY_DYNAMIC_DISPATCH(AddTo), target, values);
}

bool add_within(Executor& executor, Span<float> target, Span<const float> values, float limit) {
  THINWIRE_ON_DEVICE(add_within, executor, target, values, limit);
  return in_blocks(executor, target.size(), HWY_DYNAMIC_DISPATCH(AddWithin), target, values, limit);
}

bool scale(Executor& executor, Span<float> values, float factor) {
  THINWIRE_ON_DEVICE(scale, executor, values, factor);
  return in_blocks(executor, values.size(), HWY_DYNAMIC_DISPATCH(Scale), values, factor);
}

bool all_finite(Executor& executor, Span<const float> values) {
  THINWIRE_ON_DEVICE(all_finite, executor, values);
  return in_blocks(executor, values.size(), HWY_DYNAMIC_DISPATCH(AllFinite), values);
}

void fill(Executor& executor, Span<float> values, float value) {
  THINWIRE_ON_DEVICE(fill, executor, values, value);
  executor.parallel_for(values.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    std::fill(values.data() + begin, values.data() + end, value);
  });
}

double sum_of_magnitudes(Executor& executor, Span<const float> gradient, Span<const float> residual) {
  THINWIRE_ON_DEVICE(sum_of_magnitudes, executor, gradient, residual);
  return in_blocks(executor, gradient.size(), HWY_DYNAMIC_DISPATCH(Magnitudes), gradient, residual);
}

double sum_of_squares(Executor& executor, Span<const float> gradient, Span<const float> residual) {
  THINWIRE_ON_DEVICE(sum_of_squares, executor, gradient, residual);
  return in_blocks(executor, gradient.size(), HWY_DYNAMIC_DISPATCH(Squares), gradient, residual);
}

double apply_average(Executor& executor, Span<const float> own, Span<const float> sums, float factor,
                     Span<float> gradient, ResidualSpan residual) {
  THINWIRE_ON_DEVICE(apply_average, executor, own, sums, factor, gradient, residual);
  return sum_over_blocks(executor, gradient.size(), [&](std::size_t begin, std::size_t end) {
    const std::size_t count = end - begin;
    const double squares =
        apply_average_serially(own.subspan(begin, count), sums.subspan(begin, count), factor,
                               gradient.subspan(begin, count), residual.subspan(begin, count));
    finish_stores(residual);
    return squares;
  });
}

double apply_average_serially(Span<const float> own, Span<const float> sums, float factor,
                              Span<float> gradient, ResidualSpan residual) {
  return HWY_DYNAMIC_DISPATCH(ApplyAverage)(own.data(), sums.data(), factor, gradient.data(),
                                            data_at(residual), gradient.size());
}

void finish_stores(const ResidualSpan& residual) {
  if (residual.large) hwy::FlushStream();
}

double add_remainder(Executor& executor, Span<const float> sums, float factor, Span<const float> mean,
                     Span<float> residual) {
  THINWIRE_ON_DEVICE(add_remainder, executor, sums, factor, mean, residual);
  return in_blocks(executor, residual.size(), HWY_DYNAMIC_DISPATCH(AddRemainder), sums, factor, mean,
                   residual);
}

void hold_back(Executor& executor, Span<float> gradient, Span<float> residual) {
  THINWIRE_ON_DEVICE(hold_back, executor, gradient, residual);
  executor.parallel_for(gradient.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    float* g = gradient.data();
    float* e = residual.data();
    if (!residual.empty()) {
      for (std::size_t i = begin; i < end; ++i) e[i] = g[i] + e[i];
    }
    std::fill(g + begin, g + end, 0.0f);
  });
}

void add_residual(Executor& executor, Span<const float> gradient, Span<const float> residual,
                  Span<float> sums) {
  THINWIRE_ON_DEVICE(add_residual, executor, gradient, residual, sums);
  executor.parallel_for(gradient.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    const float* g = gradient.data();
    const float* e = residual.data();
    float* out = sums.data();
    if (residual.empty()) {
      std::copy(g + begin, g + end, out + begin);
    } else {
      for (std::size_t i = begin; i < end; ++i) out[i] = g[i] + e[i];
    }
  });
}

void clear_bits(Executor& executor, Span<const std::uint64_t> bits, Span<float> vector) {
  THINWIRE_ON_DEVICE(clear_bits, executor, bits, vector);
  executor.parallel_for(vector.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      if (((bits[i / 64] >> (i % 64)) & 1) != 0) vector[i] = 0;
    }
  });
}

void sample_evenly(Executor& executor, Span<const float> vector, std::size_t first, std::size_t range,
                   Span<float> out) {
  THINWIRE_ON_DEVICE(sample_evenly, executor, vector, first, range, out);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = vector[first + part_begin(range, out.size(), i)];
}

void correct_by_momentum(Executor& executor, float momentum, Span<const float> velocity, Span<float> gradient,
                         Span<float> corrected) {
  THINWIRE_ON_DEVICE(correct_by_momentum, executor, momentum, velocity, gradient, corrected);
  executor.parallel_for(gradient.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      corrected[i] = momentum * velocity[i] + gradient[i];
      gradient[i] = corrected[i];
    }
  });
}

void add_momentum(Executor& executor, float momentum, Span<const float> delivered, Span<float> gradient) {
  THINWIRE_ON_DEVICE(add_momentum, executor, momentum, delivered, gradient);
  executor.parallel_for(gradient.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) gradient[i] += momentum * delivered[i];
  });
}

void take_momentum(Executor& executor, float momentum, Span<float> delivered, Span<float> mean) {
  THINWIRE_ON_DEVICE(take_momentum, executor, momentum, delivered, mean);
  executor.parallel_for(mean.size(), kBlockElements, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const float arrived = mean[i];
      mean[i] = arrived - momentum * delivered[i];
      delivered[i] = arrived;
    }
  });
}

void gather_chunks([[maybe_unused]] Executor& executor, Span<const VectorChunk> chunks,
                   Span<const float> values, Span<float> target) {
  THINWIRE_ON_DEVICE(gather_chunks, executor, chunks, values, target);
  for (const VectorChunk& chunk : chunks) {
    std::copy_n(values.data() + chunk.begin, chunk.count, target.data() + chunk.offset);
  }
}

void scatter_chunks([[maybe_unused]] Executor& executor, Span<const VectorChunk> chunks,
                    Span<const float> values, Span<float> gradient, Span<float> residual) {
  THINWIRE_ON_DEVICE(scatter_chunks, executor, chunks, values, gradient, residual);
  for (const VectorChunk& chunk : chunks) {
    std::copy_n(values.data() + chunk.offset, chunk.count, gradient.data() + chunk.begin);
    const auto rest = residual.subspan(chunk.begin, chunk.count);
    std::fill(rest.begin(), rest.end(), 0.0f);
  }
}

}  // namespace thinwire
#endif
