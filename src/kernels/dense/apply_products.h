#pragma once
// What PowerSGD delivers and keeps: products of thin factors, as low_rank.h has them.

#include "kernels/dense/low_rank.h"
#include "kernels/device/on_device.h"
#include "thinwire/executor.h"
#include "thinwire/residual_span.h"
#include "thinwire/span.h"

namespace thinwire {

/// Two thin factors of the same matrix.
struct Factors {
  Span<const float> left;
  Span<const float> right;
};

inline bool on_device(const Factors& factors) {
  return on_device(factors.left) || on_device(factors.right);
}

/// residual = gradient - own.left own.right^T where there is one (empty: none, and `own` is not read),
/// gradient = mean.left mean.right^T. `own` may be `mean`. gradient [rows * columns]. gradient has the same
/// bits on every machine; so has residual where `own` is `mean`, and otherwise its rounding depends on the
/// machine. Of residual only `after` is used.
/// squares [1], or empty: becomes the new residual's sum of squares, where there is one. It lies in the
/// executor's memory, and nothing waits for it: a bucket has many matrices.
void apply_products(Executor& executor, MatrixShape shape, std::size_t rank, Factors mean, Factors own,
                    Span<float> gradient, const ResidualSpan& residual, Span<double> squares = {});

}  // namespace thinwire
