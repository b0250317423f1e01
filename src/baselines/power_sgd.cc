// PowerSGD: every parameter's gradient as a matrix of low rank, found by one step of power iteration that
// starts from the last step's result.
//
// Source: T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: practical low-rank gradient compression for
// distributed optimization", NeurIPS 2019, algorithms 1 and 2.
//
//   p as M [n x m] --M Q--> P --all-reduce--> sum of P --orthonormalise--> P^
//     --M^T P^--> Q --all-reduce--> Q / W --> mean = P^ Q^T, residual = p - mean
//
// A parameter is a matrix of its leading dimension by the rest, as PyTorch's hook cuts it. Where no leading
// dimension is known it is cut nearly square: floor(sqrt(d)) rows of as many elements as go into each. The
// few elements that remain travel as they are, in the same message as P. So does a parameter with r (n + m)
// >= n m, which would gain nothing; vectors always do.
//
// Bytes per rank: R * 4 * (sum over matrices of r (n + m) + elements that travel as they are), R = 2(W-1)/W.
// They go in two all-reduces, or in one where there is no matrix.
//
// With bits=2 to 8 everything that travels is coded (exchange/block_average.h):
//
//   P, 8 bits --through owners--> P^; Q, `bits` bits --through owners--> Q / W
//   residual = p - P^ (what this rank's codes said of Q)^T
//
// An error of P's codes turns the subspace, which nothing makes good in the same step: so P has 8 bits. That
// of Q's stays in the residual. A matrix with more rows than columns is transposed first, so that P is the
// smaller factor. The residual is what this rank has not said itself within P^'s span, and not p - mean. The
// latter takes up, in every step, what this rank's gradient differs by from the mean. With it the scale of
// Q's codes would grow without bound.
//
// All ranks orthonormalise and multiply the same sums in the same way. So their means are equal to the last
// bit, whatever their local products were rounded to.
//
// Deviations from the paper:
// - Q is kept with columns of length 1. Only its directions matter, and tiny gradients do not underflow.
// - A direction that the gradient lacks (a zero gradient, a rank above that of M) has a zero column in P^ and
//   Q. Such a column of Q is drawn anew for the next step. A zero one would stay zero for ever.
// - Momentum stays in the optimizer. Algorithm 2 has it there too: after decompression.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <vector>

#include "baselines/baselines.h"
#include "baselines/stochastic_quantizer.h"
#include "core/bucket_vectors.h"
#include "core/philox.h"
#include "exchange/block_average.h"
#include "exchange/collectives.h"
#include "kernels/dense/apply_products.h"
#include "kernels/dense/bf16_products.h"
#include "kernels/dense/dense.h"
#include "kernels/dense/low_rank.h"
#include "kernels/dense/orthonormalise.h"
#include "thinwire/state.h"

namespace thinwire {
namespace {

constexpr StateKind kRightFactor = {.name = "power_sgd_right"};
constexpr std::int64_t kLargestRank = 1024;

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
MatrixShape shape_of(std::size_t elements, std::size_t rows, std::size_t rank) {
  if (rows == 0) rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(elements)));
  if (rows == 0) return {};
  const MatrixShape shape{rows, elements / rows};
  return rank * (shape.rows + shape.columns) < shape.elements() ? shape : MatrixShape{};
}

/// Nothing: floats travel as they are.
struct FactorCodes {
  BlockCodes left;  ///< And what is always sent.
  BlockCodes right;
};
using Codes = std::optional<FactorCodes>;

/// How a bucket is cut, and how many floats that comes to.
class Plan {
 public:
  /// transposes: matrices with more rows than columns.
  Plan(Span<const std::size_t> ends, Span<const std::size_t> rows, std::size_t elements, std::size_t rank,
       bool transposes)
      : ends_(ends), rows_(rows), elements_(elements), rank_(rank), transposes_(transposes) {
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
    for (std::size_t i = 0; i < parameters(); ++i) {
      const std::size_t count = (ends_.empty() ? elements_ : ends_[i]) - begin;
      const MatrixShape shape = shape_of(count, rows_.empty() ? 0 : rows_[i], rank_);
      body(Cut{i, begin, count, shape, transposes_ && shape.rows > shape.columns});
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
  Span<const std::size_t> ends_;
  Span<const std::size_t> rows_;
  std::size_t elements_;
  std::size_t rank_;
  bool transposes_;
  std::size_t exact_ = 0;
  std::size_t left_ = 0;
  std::size_t right_ = 0;
};

/// Nearly normal numbers: sums of eight 16-bit ones, the same on every machine, which a logarithm or cosine
/// of the C library is not.
void draw(Span<float> column, const RandomStream& stream) {
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

/// One step: the sums of both factors, and what they make.
class PowerSgdStep {
 public:
  PowerSgdStep(const Plan& plan, std::size_t rank, const Codes& codes, BucketId bucket, Span<float> gradient,
               Span<float> residual, Step& step)
      : plan_(plan),
        rank_(rank),
        codes_(codes),
        bucket_(bucket),
        gradient_(gradient),
        residual_(residual),
        step_(step) {}

  /// Algorithm 1 from the right factors `start`. Fills in the report.
  void run(Span<float> start) {
    step_.report.formula_bytes = 0;
    bool finite = multiply_right_and_average(start);
    if (finite && !right_.empty()) finite = multiply_left_and_average();
    step_.report.finite = finite;
    if (finite) deliver();
  }

  /// The right factors' mean over ranks.
  Span<const float> right() const { return right_; }

 private:
  static constexpr float kLargest = std::numeric_limits<float>::max();
  static constexpr float kNoLimit = std::numeric_limits<float>::infinity();

  float world() const { return static_cast<float>(step_.communicator.size()); }
  Span<float> left() const { return first_.subspan(plan_.exact(), plan_.left()); }
  Span<float> exact_view() const { return first_view_.span().first(plan_.exact()); }
  Span<float> left_view(const Cut& cut, std::size_t offset) const {
    return first_view_.span().subspan(plan_.exact() + offset, rank_ * cut.left());
  }
  Span<float> matrix(const Cut& cut) const { return matrix_of(gradient_, cut); }
  /// Of a vector as long as the bucket, or of none.
  static Span<float> matrix_of(Span<float> values, const Cut& cut) {
    return values.subspan(cut.begin, cut.shape.elements());
  }
  Span<float> part(Span<float> values, const Cut& cut, std::size_t at_right) const {
    return values.subspan(at_right, rank_ * cut.right());
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

  /// Half of the largest float leaves room for p - mean.
  float limit_of_p() const { return residual_.empty() ? kLargest : kLargest / 2; }

  /// p takes the gradient's place. Returns whether it is within its limit.
  bool add_residual(Span<float> gradient, Span<float> residual) {
    return add_within(step_.executor, gradient, residual, limit_of_p());
  }

  /// The same for what is no matrix alone.
  bool add_to_what_is_exact() {
    bool within = true;
    for (const VectorChunk& chunk : chunks_) {
      within = add_residual(gradient_.subspan(chunk.begin, chunk.count),
                            residual_.subspan(chunk.begin, chunk.count)) &&
               within;
    }
    return within;
  }

  /// to = M from, or M^T from where `left`. In bfloat16 `residual` is added to M first, and what is returned
  /// is whether it then is within the limit.
  bool multiply(const Cut& cut, bool left, Span<float> residual, float limit, Span<float> from,
                Span<float> to) {
    Executor& executor = step_.executor;
    const auto m = matrix(cut);
    if (in_bf16_) {
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

  /// Zeros, or nothing where no residual is kept.
  Span<float> take_code_error(std::size_t elements) {
    if (residual_.empty()) return {};
    const auto code_error = step_.scratch.take<float>(elements);
    fill(step_.executor, code_error, 0.0f);
    return code_error;
  }

  /// P = M Q of every matrix, and what travels as it is. Afterwards the latter's mean, and a multiple of P's:
  /// its columns are brought to length 1. Returns false where it is not finite.
  bool multiply_right_and_average(Span<float> start) {
    const ExecutorView start_view(step_, start);
    start_view.load();
    bool within = in_bf16_ ? add_to_what_is_exact() : add_residual(gradient_, residual_);
    gather_chunks(step_.executor, chunks_, gradient_, exact_view());
    plan_.for_each_matrix([&](const Cut& cut, std::size_t at_left, std::size_t at_right) {
      const auto residual = in_bf16_ ? matrix_of(residual_, cut) : Span<float>();
      const float limit = in_bf16_ ? limit_of_p() : kNoLimit;
      within = multiply(cut, cut.transposed, residual, limit, part(start_view.span(), cut, at_right),
                        left_view(cut, at_left)) &&
               within;
    });
    if (codes_) {
      first_code_error_ = take_code_error(first_.size());
      return average_codes(first_view_, first_code_error_, codes_->left, 0, within) &&
             all_finite(step_.executor, left());
    }
    first_view_.store();
    if (!within) mark_not_finite(step_.executor, first_);
    sum(first_);
    const bool finite = scale(step_.executor, first_.first(plan_.exact()), 1.0f / world());
    return all_finite(step_.executor, left()) && finite;
  }

  /// Q = M^T P^ of every matrix, the mean over ranks. Returns whether it can be multiplied without overflow.
  bool multiply_left_and_average() {
    plan_.for_each_matrix([&](const Cut& cut, std::size_t at_left, std::size_t) {
      orthonormalise(cut.left(), rank_, left().subspan(at_left, rank_ * cut.left()));
    });
    first_view_.load();
    plan_.for_each_matrix([&](const Cut& cut, std::size_t at_left, std::size_t at_right) {
      const auto from = left_view(cut, at_left);
      const auto to = part(right_view_.span(), cut, at_right);
      multiply(cut, !cut.transposed, {}, kNoLimit, from, to);
    });
    if (codes_) {
      keep_own_right();
      if (!average_codes(right_view_, right_code_error_, codes_->right, first_.size(), true)) return false;
    } else {
      right_view_.store();
      sum(right_);
      scale(step_.executor, right_, 1.0f / world());
    }
    // Within this limit no element of the mean exceeds half of the largest float.
    return add_within(step_.executor, right_, {}, kLargest / (4 * static_cast<float>(rank_)));
  }

  void keep_own_right() {
    right_code_error_ = take_code_error(right_.size());
    if (residual_.empty()) return;
    own_right_ = step_.scratch.take<float>(right_.size());
    copy(step_.executor, Span<const float>(right_view_.span()), own_right_);
  }

  /// mean = P^ Q^T. residual = p - mean, or with codes p - P^ (own Q - their code error)^T.
  void deliver() {
    step_.clock.enter(Phase::decompress);
    const ResidualSpan left = step_.turn.write(residual_);
    if (right_.empty()) first_view_.load();
    right_view_.load();
    scatter_chunks(step_.executor, chunks_, exact_view(), gradient_, left.after);
    if (!own_right_.empty()) subtract_code_error();
    plan_.for_each_matrix([&](const Cut& cut, std::size_t at_left, std::size_t at_right) {
      const auto factors = [&](Span<float> all) {
        const Factors of_algorithm{left_view(cut, at_left), part(all, cut, at_right)};
        return cut.transposed ? Factors{of_algorithm.right, of_algorithm.left} : of_algorithm;
      };
      apply_products(step_.executor, cut.shape, rank_, factors(right_view_.span()),
                     factors(own_right_.empty() ? right_view_.span() : own_right_), matrix(cut),
                     left.subspan(cut.begin, cut.shape.elements()));
    });
    if (codes_ && !left.empty()) {
      scatter_chunks(step_.executor, chunks_, first_code_error_.first(plan_.exact()), left.after, {});
    }
  }

  /// From this rank's own right factors.
  void subtract_code_error() {
    scale(step_.executor, right_code_error_, -1);
    add(step_.executor, own_right_, right_code_error_);
  }

  const Plan& plan_;
  std::size_t rank_;
  const Codes& codes_;
  BucketId bucket_;
  Span<float> gradient_;
  Span<float> residual_;
  Step& step_;
  /// Codes leave out more of a factor than bfloat16 does.
  const bool in_bf16_ = codes_.has_value() && has_bf16_products(step_.executor);
  /// What travels as it is, then all left factors.
  Span<float> first_ = step_.workspace.take<float>(plan_.exact() + plan_.left());
  Span<float> right_ = step_.workspace.take<float>(plan_.right());
  ExecutorView first_view_{step_, first_};
  ExecutorView right_view_{step_, right_};
  Span<const VectorChunk> chunks_ = plan_.exact_chunks(step_.workspace);
  // With codes and a residual: what they left out, and this rank's own right factors.
  Span<float> first_code_error_;
  Span<float> right_code_error_;
  Span<float> own_right_;
};

class PowerSgd final : public Synchronizer {
 public:
  PowerSgd(std::size_t rank, const Codes& codes) : rank_(rank), codes_(codes) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    const Plan plan(step.parameter_ends, step.parameter_rows, gradient.size(), rank_, codes_.has_value());
    State& state = open(bucket, plan, step);
    step.communicator.commit_exchange();
    PowerSgdStep one(plan, rank_, codes_, bucket, gradient, residual, step);
    one.run(state.right);
    if (step.report.finite) keep(one.right(), plan, bucket, step);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    if (workload.world_size == 1) return 0;
    const Plan plan(workload.parameter_ends, workload.parameter_rows, workload.elements, rank_,
                    codes_.has_value());
    const std::size_t first = plan.exact() + plan.left();
    if (codes_) {
      return block_average_bytes(first, workload.world_size, workload.rank, codes_->left) +
             block_average_bytes(plan.right(), workload.world_size, workload.rank, codes_->right);
    }
    return workload.ring_sent_bytes(first, sizeof(float)) +
           workload.ring_sent_bytes(plan.right(), sizeof(float));
  }

  void save(BucketWriter& writer) const override {
    states_.for_each([&](BucketId bucket, const State& state) {
      const auto right = Span<const float>(state.right);
      std::size_t begin = 0;
      for (std::size_t i = 0; i < state.parameters.size(); ++i) {
        writer.array(kRightFactor, bucket, state.parameters[i], right.subspan(begin, state.ends[i] - begin));
        begin = state.ends[i];
      }
    });
  }

  void load(const BucketReader& reader) override {
    std::map<BucketId, State> loaded;
    for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
      State state;
      std::size_t found = 0;
      std::size_t missing = 0;
      for (std::size_t i = 0; i < reader.parameters(bucket); ++i) {
        const Parameter& parameter = reader.parameter(bucket, i);
        const MatrixShape shape = shape_of(parameter.elements, parameter.rows, rank_);
        if (shape.rows == 0) continue;
        const std::size_t begin = state.right.size();
        const std::size_t floats = rank_ * (codes_ ? std::max(shape.rows, shape.columns) : shape.columns);
        state.add(i, floats);
        const bool there =
            reader.array(kRightFactor, bucket, i, Span<float>(state.right).subspan(begin, floats));
        if (!there) missing = i;
        found += there ? 1 : 0;
      }
      if (found == 0) continue;  // saved before the bucket's first step
      if (found != state.parameters.size()) {
        throw std::runtime_error("the state has no right factor of parameter '" +
                                 reader.parameter(bucket, missing).name + "', but of others of its bucket");
      }
      loaded[bucket] = std::move(state);
    }
    states_.assign(std::move(loaded));
  }

  void keep_step(BucketId bucket) override { states_.keep(bucket); }
  void undo_step(BucketId bucket) override { states_.undo(bucket); }

 private:
  /// Right factors that the next step starts from, one matrix after the other.
  struct State {
    std::vector<std::size_t> parameters;  // that are matrices, by position in the bucket
    std::vector<std::size_t> ends;        // of their factors
    std::vector<float> right;

    void add(std::size_t parameter, std::size_t floats) {
      parameters.push_back(parameter);
      right.resize(right.size() + floats);
      ends.push_back(right.size());
    }
  };

  /// The bucket's state, drawn when the bucket comes for the first time.
  State& open(BucketId bucket, const Plan& plan, const Step& step) {
    const bool created = !states_.contains(bucket);
    State& state = states_.open(bucket);
    if (created) {
      plan.for_each_matrix(
          [&](const Cut& cut, std::size_t, std::size_t) { state.add(cut.parameter, rank_ * cut.right()); });
      plan.for_each_matrix([&](const Cut& cut, std::size_t, std::size_t at_right) {
        const auto all = Span<float>(state.right);
        for (std::size_t k = 0; k < rank_; ++k) {
          draw(all.subspan(at_right + k * cut.right(), cut.right()), stream(step, bucket, cut.parameter, k));
        }
      });
    }
    if (state.right.size() != plan.right()) {
      throw std::invalid_argument("bucket " + std::to_string(bucket) + " had parameters of other sizes in " +
                                  "earlier steps: a bucket keeps its parameters");
    }
    return state;
  }

  /// What the next step starts from.
  void keep(Span<const float> right, const Plan& plan, BucketId bucket, const Step& step) {
    State& state = states_.open(bucket);
    plan.for_each_matrix([&](const Cut& cut, std::size_t, std::size_t at_right) {
      for (std::size_t k = 0; k < rank_; ++k) {
        const std::size_t begin = at_right + k * cut.right();
        const auto column = right.subspan(begin, cut.right());
        const auto kept = Span<float>(state.right).subspan(begin, cut.right());
        double squares = 0;
        for (const float value : column) squares += static_cast<double>(value) * static_cast<double>(value);
        if (squares == 0) {
          draw(kept, stream(step, bucket, cut.parameter, k));
          continue;
        }
        const double factor = 1 / std::sqrt(squares);
        for (std::size_t j = 0; j < column.size(); ++j) {
          kept[j] = static_cast<float>(static_cast<double>(column[j]) * factor);
        }
      }
    });
  }

  RandomStream stream(const Step& step, BucketId bucket, std::size_t parameter, std::size_t column) const {
    return random_stream(step.seed, step.index, bucket, RandomPurpose::low_rank,
                         static_cast<std::uint32_t>(parameter), static_cast<std::uint32_t>(column));
  }

  std::size_t rank_;
  Codes codes_;
  BucketStates<State> states_;
};

}  // namespace

SystemInfo power_sgd_info() {
  SystemInfo info;
  info.name = "power_sgd";
  info.summary = "matrices of low rank by one power iteration a step, in two all-reduces";
  info.paper = "Vogels et al., PowerSGD, NeurIPS 2019";
  info.formula =
      "2(W-1)/W * 4 * (sum over matrices [n x m] of rank * (n + m) + elements of small parameters)";
  info.feedback_default = true;
  info.state = {kRightFactor};
  info.undoes_steps = true;
  info.turns_residual = true;
  info.options = {
      {"rank", "4", "columns of the factors that travel, 1 to 1024"},
      {"bits", "32", "of a float of the larger factor: 32, or 2 to 8 in codes; the smaller one has 8 then"},
      {"block", "128", "with codes: floats that share a scale, a multiple of 128"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    const auto rank = static_cast<std::size_t>(options.integer("rank", 1, kLargestRank));
    const bool coded = options.integer("bits", QuantizationLevels::kLeastBits, 32) != 32;
    if (!coded) return std::make_unique<PowerSgd>(rank, Codes());
    const BlockCodes codes = read_block_codes(options);
    const FactorCodes factors{{QuantizationLevels::uniform(8), codes.block}, codes};
    return std::make_unique<PowerSgd>(rank, factors);
  };
  return info;
}

}  // namespace thinwire
