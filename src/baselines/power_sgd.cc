// PowerSGD: every parameter's gradient as a matrix of low rank, found by one step of power iteration that
// starts from the last step's result.
//
// Source: T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: practical low-rank gradient compression for
// distributed optimization", NeurIPS 2019, algorithms 1 and 2.
//
//   p as M [n x m] --M Q--> P --all-reduce--> sum of P --orthonormalise--> P^
//     --M^T P^--> Q --all-reduce--> Q / W --> mean = P^ Q^T, residual = p - mean
//
// low_rank_step.h says what is a matrix, as PyTorch's hook cuts it. What is none travels in the same message
// as P.
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
// With step=S they are whole numbers of steps in an entropy code (exchange/level_average.h), in the same
// two exchanges. P's steps go by the root mean square of each block of 128, and Q's by that of all that an
// owner has. So what is near zero in Q, as rows of rare words are, takes few bits. In codes of a fixed length
// it takes as many as all else.
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
#include <map>
#include <optional>
#include <stdexcept>
#include <variant>
#include <vector>

#include "baselines/baselines.h"
#include "baselines/low_rank_step.h"
#include "baselines/stochastic_quantizer.h"
#include "core/bucket_vectors.h"
#include "kernels/dense/apply_products.h"
#include "kernels/dense/orthonormalise.h"
#include "thinwire/state.h"

namespace thinwire {
namespace {

constexpr StateKind kRightFactor = {.name = "power_sgd_right"};
constexpr std::int64_t kLargestRank = 1024;

/// Of the left factors and what is always sent: steps in units of each block's root mean square.
constexpr double kLeftStep = 0.1;

/// Codes of a fixed length, or levels in an entropy code.
using FactorCode = std::variant<BlockCodes, LevelRules>;

std::uint64_t bytes_of(const FactorCode& code, std::size_t floats, const Workload& workload) {
  if (const auto* blocks = std::get_if<BlockCodes>(&code))
    return block_average_bytes(floats, workload.world_size, workload.rank, *blocks);
  const auto& rules = std::get<LevelRules>(code);
  return level_average_bytes(floats, static_cast<std::size_t>(workload.world_size),
                             static_cast<std::size_t>(workload.rank), rules, normal_level_bits(rules));
}

/// Nothing: floats travel as they are.
struct FactorCodes {
  FactorCode left;  ///< And what is always sent.
  FactorCode right;
};
using Codes = std::optional<FactorCodes>;

/// One step: the sums of both factors, and what they make.
class PowerSgdStep : LowRankStep {
 public:
  PowerSgdStep(const LowRankPlan& plan, std::size_t rank, const Codes& codes, BucketId bucket,
               Span<float> gradient, Span<float> residual, Step& step)
      : LowRankStep(plan, rank, codes.has_value(), bucket, gradient, residual, step), codes_(codes) {}

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
  Span<float> left() const { return first_.subspan(plan_.exact(), plan_.left()); }
  Span<float> exact_view() const { return first_view_.span().first(plan_.exact()); }
  Span<float> left_view(const Cut& cut, std::size_t offset) const {
    return first_view_.span().subspan(plan_.exact() + offset, rank_ * cut.left());
  }
  Span<float> part(Span<float> values, const Cut& cut, std::size_t at_right) const {
    return values.subspan(at_right, rank_ * cut.right());
  }

  /// P = M Q of every matrix, and what travels as it is. Afterwards the latter's mean, and a multiple of P's:
  /// its columns are brought to length 1. Returns false where it is not finite.
  bool multiply_right_and_average(Span<float> start) {
    const ExecutorView start_view(step_, start);
    start_view.load();
    bool within = add_residual();
    gather_chunks(step_.executor, chunks_, gradient_, exact_view());
    plan_.for_each_matrix([&](const Cut& cut, std::size_t at_left, std::size_t at_right) {
      within = multiply(cut, cut.transposed, true, part(start_view.span(), cut, at_right),
                        left_view(cut, at_left)) &&
               within;
    });
    if (codes_) {
      first_code_error_ = take_code_error(first_.size());
      step_.communicator.keep_turn();  // for Q
      return average(first_view_, first_code_error_, codes_->left, 0, within) &&
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
      multiply(cut, !cut.transposed, false, from, to);
    });
    if (codes_) {
      const bool within = within_limit(right_view_.span());  // the residual takes this rank's own product
      keep_own_right();
      if (!average(right_view_, right_code_error_, codes_->right, first_.size(), within)) return false;
    } else {
      right_view_.store();
      sum(right_);
      scale(step_.executor, right_, 1.0f / world());
    }
    return within_limit(right_);
  }

  bool average(const ExecutorView& view, Span<float> code_error, const FactorCode& code, std::size_t base,
               bool finite) {
    return std::visit([&](const auto& one) { return average_codes(view, code_error, one, base, finite); },
                      code);
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
    std::size_t matrices = 0;
    plan_.for_each_matrix([&](const Cut& cut, std::size_t at_left, std::size_t at_right) {
      const auto factors = [&](Span<float> all) {
        const Factors of_algorithm{left_view(cut, at_left), part(all, cut, at_right)};
        return cut.transposed ? Factors{of_algorithm.right, of_algorithm.left} : of_algorithm;
      };
      apply_products(step_.executor, cut.shape, rank_, factors(right_view_.span()),
                     factors(own_right_.empty() ? right_view_.span() : own_right_), matrix(cut),
                     left.subspan(cut.begin, cut.shape.elements()), squares_of(matrices++));
    });
    double of_exact = 0;
    if (codes_ && !left.empty()) {
      const auto lost = first_code_error_.first(plan_.exact());
      scatter_chunks(step_.executor, chunks_, lost, left.after, {});
      of_exact = sum_of_squares(step_.executor, lost, {});
    }
    report_residual(matrices, of_exact);
  }

  /// From this rank's own right factors.
  void subtract_code_error() {
    scale(step_.executor, right_code_error_, -1);
    add(step_.executor, own_right_, right_code_error_);
  }

  const Codes& codes_;
  /// What travels as it is, then all left factors.
  Span<float> first_ = step_.workspace.take<float>(plan_.exact() + plan_.left());
  Span<float> right_ = step_.workspace.take<float>(plan_.right());
  ExecutorView first_view_{step_, first_};
  ExecutorView right_view_{step_, right_};
  // With codes and a residual: what they left out, and this rank's own right factors.
  Span<float> first_code_error_;
  Span<float> right_code_error_;
  Span<float> own_right_;
};

class PowerSgd final : public Synchronizer {
 public:
  PowerSgd(std::size_t rank, const Codes& codes) : rank_(rank), codes_(codes) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    const LowRankPlan plan(step.parameter_ends, step.parameter_rows, gradient.size(), rank_,
                           codes_ ? Transposed::tall : Transposed::none);
    State& state = open(bucket, plan, step);
    step.communicator.commit_exchange();
    PowerSgdStep one(plan, rank_, codes_, bucket, gradient, residual, step);
    one.run(state.right);
    if (step.report.finite) keep(one.right(), plan, bucket, step);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    if (workload.world_size == 1) return 0;
    const LowRankPlan plan(workload.parameter_ends, workload.parameter_rows, workload.elements, rank_,
                           codes_ ? Transposed::tall : Transposed::none);
    const std::size_t first = plan.exact() + plan.left();
    if (codes_) {
      return bytes_of(codes_->left, first, workload) + bytes_of(codes_->right, plan.right(), workload);
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
  State& open(BucketId bucket, const LowRankPlan& plan, const Step& step) {
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
  void keep(Span<const float> right, const LowRankPlan& plan, BucketId bucket, const Step& step) {
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
      "2(W-1)/W * 4 * (sum over matrices [n x m] of rank * (n + m) + elements of small parameters); "
      "with bits what blocks sends of as many floats, with step what ecsq does";
  info.feedback_default = true;
  info.state = {kRightFactor};
  info.undoes_steps = true;
  info.turns_residual = true;
  info.options = {
      {"rank", "4", "columns of the factors that travel, 1 to 1024"},
      {"bits", "32", "of a float of the larger factor: 32, or 2 to 8 in codes; the smaller one has 8 then"},
      {"block", "128", "with bits: floats that share a scale, a multiple of 128"},
      {"step", "0",
       "between levels of the larger factor in an entropy code, in units of the root mean square, 0.05 to "
       "16; "
       "0: none"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    const auto rank = static_cast<std::size_t>(options.integer("rank", 1, kLargestRank));
    const auto codes = read_codes_or_floats(options);
    if (options.text("step") != "0") {
      if (codes) options.refuse("step", "left out where bits is given: factors have either");
      const FactorCodes levels{LevelRules{.step = kLeftStep, .local = 1},
                               LevelRules{.step = options.real("step", 0.05, 16), .local = 0}};
      return std::make_unique<PowerSgd>(rank, levels);
    }
    if (!codes) return std::make_unique<PowerSgd>(rank, Codes());
    const FactorCodes factors{BlockCodes{QuantizationLevels::uniform(8), codes->block}, *codes};
    return std::make_unique<PowerSgd>(rank, factors);
  };
  return info;
}

}  // namespace thinwire
