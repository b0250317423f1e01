#pragma once
// What systems have in common that send parameters' gradients as products of two thin factors.
//
// A parameter is a matrix of its leading dimension by the rest. Where no leading dimension is known it is cut
// nearly square: floor(sqrt(d)) rows of as many elements as go into each. The few elements that remain travel
// as they are. So does a parameter with r (n + m) >= n m, which would gain nothing; vectors always do.

#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "core/philox.h"
#include "exchange/block_average.h"
#include "exchange/collectives.h"
#include "exchange/level_average.h"
#include "kernels/dense/bf16_products.h"
#include "kernels/dense/dense.h"
#include "kernels/dense/low_rank.h"
#include "thinwire/synchronizer.h"

namespace thinwire {

/// Where one parameter's elements go: the first shape.elements() as a matrix, the others as they are.
struct Cut {
  std::size_t parameter = 0;
  std::size_t begin = 0;
  std::size_t elements = 0;
  MatrixShape shape{};      ///< No rows: there is no matrix.
  bool transposed = false;  ///< The algorithm's matrix is this one's transpose.

  std::size_t exact() const { return elements - shape.elements(); }
  /// Floats of a column of P and of Q.
  std::size_t left() const { return transposed ? shape.columns : shape.rows; }
  std::size_t right() const { return transposed ? shape.rows : shape.columns; }
};

/// `rows`: the parameter's leading dimension, or 0.
inline MatrixShape shape_of(std::size_t elements, std::size_t rows, std::size_t rank) {
  if (rows == 0) rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(elements)));
  if (rows == 0) return {};
  const MatrixShape shape{rows, elements / rows};
  return rank * (shape.rows + shape.columns) < shape.elements() ? shape : MatrixShape{};
}

/// Which matrices an algorithm takes as their transpose.
enum class Transposed {
  none,
  tall,     ///< Those with more rows than columns, so that the left factor is the smaller one.
  in_turn,  ///< Every second one, so that left factors are the smaller ones of every second matrix.
};

/// How a bucket is cut, and how many floats that comes to.
class LowRankPlan {
 public:
  LowRankPlan(Span<const std::size_t> ends, Span<const std::size_t> rows, std::size_t elements,
              std::size_t rank, Transposed transposed)
      : ends_(ends), rows_(rows), elements_(elements), rank_(rank), transposed_(transposed) {
    for_each([&](const Cut& cut) {
      exact_ += cut.exact();
      left_ += rank * cut.left();
      right_ += rank * cut.right();
    });
  }

  /// body(cut) for every parameter in order.
  template <class Body>
  void for_each(Body&& body) const {
    std::size_t begin = 0;
    std::size_t matrices = 0;
    for (std::size_t i = 0; i < parameters(); ++i) {
      const std::size_t count = (ends_.empty() ? elements_ : ends_[i]) - begin;
      const MatrixShape shape = shape_of(count, rows_.empty() ? 0 : rows_[i], rank_);
      body(Cut{i, begin, count, shape, is_transposed(shape, matrices)});
      matrices += shape.rows == 0 ? 0 : 1;
      begin += count;
    }
  }

  /// body(cut, left, right) for every matrix in order, with its factors' offsets among all left and all right
  /// ones.
  template <class Body>
  void for_each_matrix(Body&& body) const {
    std::size_t left = 0;
    std::size_t right = 0;
    for_each([&](const Cut& cut) {
      if (cut.shape.rows == 0) return;
      body(cut, left, right);
      left += rank_ * cut.left();
      right += rank_ * cut.right();
    });
  }

  /// Runs of elements that travel as they are.
  Span<const VectorChunk> exact_chunks(Workspace& workspace) const {
    const auto chunks = workspace.take<VectorChunk>(parameters());
    std::size_t used = 0;
    std::size_t offset = 0;
    for_each([&](const Cut& cut) {
      if (cut.exact() != 0) chunks[used++] = {cut.begin + cut.shape.elements(), cut.exact(), offset};
      offset += cut.exact();
    });
    return chunks.first(used);
  }

  std::size_t parameters() const { return ends_.empty() ? 1 : ends_.size(); }
  std::size_t exact() const { return exact_; }  ///< Elements that travel as they are.
  std::size_t left() const { return left_; }    ///< Floats of all left factors (P).
  std::size_t right() const { return right_; }  ///< Floats of all right factors (Q).

 private:
  bool is_transposed(MatrixShape shape, std::size_t matrix) const {
    const bool is_tall = shape.rows > shape.columns;
    if (transposed_ == Transposed::in_turn) return is_tall == (matrix % 2 == 0);
    return transposed_ == Transposed::tall && is_tall;
  }

  Span<const std::size_t> ends_;
  Span<const std::size_t> rows_;
  std::size_t elements_;
  std::size_t rank_;
  Transposed transposed_;
  std::size_t exact_ = 0;
  std::size_t left_ = 0;
  std::size_t right_ = 0;
};

/// Nearly normal numbers: sums of eight 16-bit ones, the same on every machine, which a logarithm or cosine
/// of the C library is not.
inline void draw(Span<float> column, const RandomStream& stream) {
  constexpr std::int32_t kTwiceMean = 8 * 65535;
  constexpr float kUnit = 1.0f / 107'020.0f;  // 2 * 65536 * sqrt(8 / 12)
  for (std::size_t i = 0; i < column.size(); ++i) {
    std::uint32_t sum = 0;
    for (const std::uint32_t word : stream.block(static_cast<std::uint32_t>(i), 0)) {
      sum += (word & 0xffffu) + (word >> 16);
    }
    column[i] = static_cast<float>(2 * static_cast<std::int32_t>(sum) - kTwiceMean) * kUnit;
  }
}

/// Values of the host that travel, as kernels work on them: themselves where kernels run on the host, and a
/// copy on the device otherwise, since they are asked for again and again.
class ExecutorView {
 public:
  ExecutorView(Step& step, Span<float> values)
      : executor_(step.executor),
        values_(values),
        view_(executor_.memory() == Memory::host ? values : step.scratch.take<float>(values.size())) {}

  Span<float> span() const { return view_; }
  /// What the host holds, to where kernels work.
  void load() const {
    if (view_.data() != values_.data()) copy(executor_, Span<const float>(values_), view_);
  }
  /// The reverse; done when it returns.
  void store() const {
    if (view_.data() != values_.data()) copy(executor_, Span<const float>(view_), values_);
  }

 private:
  Executor& executor_;
  Span<float> values_;
  Span<float> view_;
};

/// What the steps of such systems have in common: p, and its products with thin factors.
class LowRankStep {
 public:
  /// in_bf16: products are, where the executor has them.
  LowRankStep(const LowRankPlan& plan, std::size_t rank, bool in_bf16, BucketId bucket, Span<float> gradient,
              Span<float> residual, Step& step)
      : plan_(plan),
        rank_(rank),
        bucket_(bucket),
        gradient_(gradient),
        residual_(residual),
        step_(step),
        in_bf16_(in_bf16 && has_bf16_products(step.executor)),
        chunks_(plan.exact_chunks(step.workspace)),
        squares_(residual.empty() ? Span<double>() : step.scratch.take<double>(plan.parameters())) {}

 protected:
  static constexpr float kLargest = std::numeric_limits<float>::max();
  static constexpr float kNoLimit = std::numeric_limits<float>::infinity();

  float world() const { return static_cast<float>(step_.communicator.size()); }
  Span<float> matrix(const Cut& cut) const { return matrix_of(gradient_, cut); }
  /// Of a vector as long as the bucket, or of none.
  static Span<float> matrix_of(Span<float> values, const Cut& cut) {
    return values.subspan(cut.begin, cut.shape.elements());
  }

  /// Sums of floats travel from host memory. Every rank sees the same ones, so all come to the same verdict.
  void sum(Span<float> values) {
    all_reduce_sum(step_, values);
    step_.report.formula_bytes += step_.communicator.ring_sent_bytes(values.size(), sizeof(float));
  }

  /// The mean of codes, on the executor's side and in the host's memory. code_error: see average_blocks.
  bool average_codes(const ExecutorView& view, Span<float> code_error, const BlockCodes& codes,
                     std::size_t base, bool finite) {
    const auto values = view.span();
    average_blocks(bucket_, values, code_error, step_, codes, base, finite);
    step_.report.formula_bytes +=
        block_average_bytes(values.size(), step_.communicator.size(), step_.communicator.rank(), codes);
    if (step_.report.finite) view.store();
    return step_.report.finite;
  }

  /// The same of levels in an entropy code.
  bool average_codes(const ExecutorView& view, Span<float> code_error, const LevelRules& rules,
                     std::size_t base, bool finite) {
    const std::uint64_t before = step_.report.formula_bytes;
    average_levels(bucket_, view.span(), code_error, step_, rules, base, finite);
    step_.report.formula_bytes += before;
    step_.clock.enter(Phase::compress);
    if (step_.report.finite) view.store();
    return step_.report.finite;
  }

  /// Zeros, or nothing where no residual is kept.
  Span<float> take_code_error(std::size_t elements) {
    if (residual_.empty()) return {};
    const auto code_error = step_.scratch.take<float>(elements);
    fill(step_.executor, code_error, 0.0f);
    return code_error;
  }

  /// p takes the gradient's place, but for what the products in bfloat16 add. Returns whether it is within
  /// its limit.
  bool add_residual() {
    if (!in_bf16_) return add_residual(gradient_, residual_);
    bool within = true;
    for (const VectorChunk& chunk : chunks_) {
      within = add_residual(gradient_.subspan(chunk.begin, chunk.count),
                            residual_.subspan(chunk.begin, chunk.count)) &&
               within;
    }
    return within;
  }

  /// Whether factors can be multiplied with one of orthonormal columns, so that no element of the product
  /// exceeds half of the largest float.
  bool within_limit(Span<float> factors) {
    return add_within(step_.executor, factors, {}, kLargest / (4 * static_cast<float>(rank_)));
  }

  /// to = M from, or M^T from where `left`. adds: in bfloat16 the residual is added to M first, and what is
  /// returned is whether it then is within the limit.
  bool multiply(const Cut& cut, bool left, bool adds, Span<float> from, Span<float> to) {
    Executor& executor = step_.executor;
    const auto m = matrix(cut);
    if (in_bf16_) {
      const auto residual = adds ? matrix_of(residual_, cut) : Span<float>();
      const float limit = adds ? limit_of_p() : kNoLimit;
      return left ? add_and_multiply_left(executor, cut.shape, rank_, m, residual, limit, from, to)
                  : add_and_multiply_right(executor, cut.shape, rank_, m, residual, limit, from, to);
    }
    if (left) {
      multiply_left(executor, cut.shape, rank_, m, from, to);
    } else {
      multiply_right(executor, cut.shape, rank_, m, from, to);
    }
    return true;
  }

  /// Where apply_products puts the squares of matrix number `matrix`'s residual.
  Span<double> squares_of(std::size_t matrix) const {
    return squares_.empty() ? squares_ : squares_.subspan(matrix, 1);
  }

  /// The residual's norm, from the squares of this many matrices and those of what travels as it is.
  void report_residual(std::size_t matrices, double of_exact) {
    if (residual_.empty()) return;
    const auto squares = step_.workspace.take<double>(matrices);
    copy(step_.executor, Span<const double>(squares_.first(matrices)), squares);
    step_.report.residual_norm = std::sqrt(std::accumulate(squares.begin(), squares.end(), of_exact));
  }

  const LowRankPlan& plan_;
  std::size_t rank_;
  BucketId bucket_;
  Span<float> gradient_;
  Span<float> residual_;
  Step& step_;
  const bool in_bf16_;
  /// Of what travels as it is.
  Span<const VectorChunk> chunks_;
  Span<double> squares_;  // of each matrix's residual, where kernels work

 private:
  /// Half of the largest float leaves room for p - mean.
  float limit_of_p() const { return residual_.empty() ? kLargest : kLargest / 2; }
  bool add_residual(Span<float> gradient, Span<float> residual) {
    return add_within(step_.executor, gradient, residual, limit_of_p());
  }
};

}  // namespace thinwire
