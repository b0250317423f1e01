// ACP-SGD: matrices of low rank like PowerSGD's, of which only one factor travels in a step. The other one is
// that of the step before, which all ranks hold already.
//
// Source: L. Zhang, L. Zhang, S. Shi, X. Chu, B. Li, "Evaluation and optimization of gradient compression for
// distributed deep learning", ICDCS 2023.
//
//   even steps: p as M [n x m] --M Q^--> P --average over ranks--> mean = P Q^^T, P --orthonormalise--> P^
//   odd steps:                 --M^T P^--> Q --average over ranks--> mean = P^ Q^T, Q --orthonormalise--> Q^
//
// So a step sends about half of what PowerSGD sends at the same rank, in one all-reduce, and reads the matrix
// once for a product. low_rank_step.h says what is a matrix. What is none travels in the same message.
//
// P is the smaller factor of the first matrix of a bucket, the larger one of the second, and so on: a bucket
// sends about as much in even steps as in odd ones.
//
// Bytes per rank: R * 4 * (sum over matrices of r n or r m + elements that travel as they are), R = 2(W-1)/W.
// With bits=2 to 8 all of it is coded instead (exchange/block_average.h). The factor that travels is
// multiplied with one that all ranks hold exactly, so an error of its codes does not turn a subspace: the
// residual keeps it. There residual = p - (own factor as its codes say it) (the other factor)^T. By what the
// ranks differ within the subspace is no part of it: that would only widen the range of the codes.
//
// Deviations from the paper:
// - Both factors are kept as orthonormal ones, and a step's number says which of them travels. So a step that
//   is left out or given up does no harm.
// - A direction that the gradient lacks leaves a zero column. Such a column is drawn anew.

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
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

// By the side of the parameter's own matrix: which one is the left factor depends on its place in a bucket.
constexpr StateKind kOfRows = {.name = "acp_sgd_rows"};
constexpr StateKind kOfColumns = {.name = "acp_sgd_columns"};
constexpr std::int64_t kMostColumns = 1024;

bool sends_left(std::uint64_t step) {
  return step % 2 == 0;
}

/// One step: the mean of one factor, and what it makes with the other.
class AcpSgdStep : LowRankStep {
 public:
  AcpSgdStep(const LowRankPlan& plan, std::size_t rank, const std::optional<BlockCodes>& codes,
             BucketId bucket, Span<float> gradient, Span<float> residual, Step& step)
      : LowRankStep(plan, rank, codes.has_value(), bucket, gradient, residual, step), codes_(codes) {}

  /// known: all factors that do not travel, in host memory. Fills in the report.
  void run(Span<float> known) {
    step_.report.formula_bytes = 0;
    const ExecutorView known_view(step_, known);
    known_view.load();
    multiply_all(known_view.span());
    const bool finite = average();
    step_.report.finite = finite;
    if (finite) deliver(known_view.span());
  }

  /// The mean over ranks of all factors that travelled, in host memory.
  Span<float> mean() { return message_.subspan(plan_.exact(), travels()); }

 private:
  std::size_t travels() const { return left_ ? plan_.left() : plan_.right(); }
  Span<float> exact_view() const { return view_.span().first(plan_.exact()); }
  Span<float> factors_view() const { return view_.span().subspan(plan_.exact(), travels()); }
  Span<float> left_of(Span<float> all, const Cut& cut, std::size_t at) const {
    return all.subspan(at, rank_ * cut.left());
  }
  Span<float> right_of(Span<float> all, const Cut& cut, std::size_t at) const {
    return all.subspan(at, rank_ * cut.right());
  }

  void multiply_all(Span<float> known) {
    within_ = add_residual();
    gather_chunks(step_.executor, chunks_, gradient_, exact_view());
    plan_.for_each_matrix([&](const Cut& cut, std::size_t at_left, std::size_t at_right) {
      const auto from = left_ ? right_of(known, cut, at_right) : left_of(known, cut, at_left);
      const auto to = left_ ? left_of(factors_view(), cut, at_left) : right_of(factors_view(), cut, at_right);
      within_ = multiply(cut, left_ == cut.transposed, true, from, to) && within_;
    });
  }

  /// Returns false where the mean is not finite or its products could overflow.
  bool average() {
    if (codes_) {
      // The residual takes this rank's own product.
      within_ = within_limit(factors_view()) && within_;
      code_error_ = take_code_error(message_.size());
      if (!residual_.empty()) {
        own_ = step_.scratch.take<float>(travels());
        copy(step_.executor, Span<const float>(factors_view()), own_);
      }
      if (!average_codes(view_, code_error_, *codes_, 0, within_)) return false;
    } else {
      view_.store();
      if (!within_) mark_not_finite(step_.executor, message_);
      sum(message_);
      if (!scale(step_.executor, message_, 1.0f / world())) return false;
      view_.load();
    }
    return within_limit(mean());
  }

  void deliver(Span<float> known) {
    step_.clock.enter(Phase::decompress);
    const ResidualSpan left_over = step_.turn.write(residual_);
    scatter_chunks(step_.executor, chunks_, exact_view(), gradient_, left_over.after);
    if (!own_.empty()) subtract_code_error();
    std::size_t matrices = 0;
    plan_.for_each_matrix([&](const Cut& cut, std::size_t at_left, std::size_t at_right) {
      const auto factors = [&](Span<float> travelled) {
        const Factors of_algorithm{left_of(left_ ? travelled : known, cut, at_left),
                                   right_of(left_ ? known : travelled, cut, at_right)};
        return cut.transposed ? Factors{of_algorithm.right, of_algorithm.left} : of_algorithm;
      };
      apply_products(step_.executor, cut.shape, rank_, factors(factors_view()),
                     factors(own_.empty() ? factors_view() : own_), matrix(cut),
                     left_over.subspan(cut.begin, cut.shape.elements()), squares_of(matrices++));
    });
    double of_exact = 0;
    if (codes_ && !left_over.empty()) {
      const auto lost = code_error_.first(plan_.exact());
      scatter_chunks(step_.executor, chunks_, lost, left_over.after, {});
      of_exact = sum_of_squares(step_.executor, lost, {});
    }
    report_residual(matrices, of_exact);
  }

  /// From this rank's own factors.
  void subtract_code_error() {
    const auto error = code_error_.subspan(plan_.exact(), travels());
    scale(step_.executor, error, -1);
    add(step_.executor, own_, error);
  }

  const std::optional<BlockCodes>& codes_;
  const bool left_ = sends_left(step_.index);
  bool within_ = false;  ///< Whether p is within its limit.
  /// What travels as it is, then the factors that travel.
  Span<float> message_ = step_.workspace.take<float>(plan_.exact() + travels());
  ExecutorView view_{step_, message_};
  // With codes and a residual: what they left out, and this rank's own factors.
  Span<float> code_error_;
  Span<float> own_;
};

class AcpSgd final : public Synchronizer {
 public:
  AcpSgd(std::size_t rank, const std::optional<BlockCodes>& codes) : rank_(rank), codes_(codes) {}

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    const LowRankPlan plan(step.parameter_ends, step.parameter_rows, gradient.size(), rank_,
                           Transposed::in_turn);
    State& state = open(bucket, plan, step);
    step.communicator.commit_exchange();
    AcpSgdStep one(plan, rank_, codes_, bucket, gradient, residual, step);
    const bool left = sends_left(step.index);
    one.run(left ? state.right : state.left);
    if (step.report.finite) keep(one.mean(), left, plan, bucket, step);
  }

  std::uint64_t payload_bytes(const Workload& workload) const override {
    if (workload.world_size == 1) return 0;
    const LowRankPlan plan(workload.parameter_ends, workload.parameter_rows, workload.elements, rank_,
                           Transposed::in_turn);
    const std::size_t floats = plan.exact() + (sends_left(workload.step) ? plan.left() : plan.right());
    return codes_ ? block_average_bytes(floats, workload.world_size, workload.rank, *codes_)
                  : workload.ring_sent_bytes(floats, sizeof(float));
  }

  void save(BucketWriter& writer) const override {
    states_.for_each([&](BucketId bucket, const State& state) {
      std::size_t at_left = 0;
      std::size_t at_right = 0;
      for (const Matrix& matrix : state.matrices) {
        writer.array(matrix.kind_of_left(), bucket, matrix.parameter,
                     Span<const float>(state.left).subspan(at_left, matrix.left));
        writer.array(matrix.kind_of_right(), bucket, matrix.parameter,
                     Span<const float>(state.right).subspan(at_right, matrix.right));
        at_left += matrix.left;
        at_right += matrix.right;
      }
    });
  }

  void load(const BucketReader& reader) override {
    std::map<BucketId, State> loaded;
    for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
      State state;
      if (load_bucket(reader, bucket, state)) loaded[bucket] = std::move(state);
    }
    states_.assign(std::move(loaded));
  }

  void keep_step(BucketId bucket) override { states_.keep(bucket); }
  void undo_step(BucketId bucket) override { states_.undo(bucket); }

 private:
  struct Matrix {
    std::size_t parameter;  ///< Its position in the bucket.
    bool transposed;
    std::size_t left;  ///< Floats of its factors.
    std::size_t right;

    const StateKind& kind_of_left() const { return transposed ? kOfColumns : kOfRows; }
    const StateKind& kind_of_right() const { return transposed ? kOfRows : kOfColumns; }
  };
  /// Factors with orthonormal columns, one matrix after the other.
  struct State {
    std::vector<Matrix> matrices;
    std::vector<float> left;
    std::vector<float> right;

    const Matrix& add(const Cut& cut, std::size_t rank) {
      matrices.push_back({cut.parameter, cut.transposed, rank * cut.left(), rank * cut.right()});
      left.resize(left.size() + matrices.back().left);
      right.resize(right.size() + matrices.back().right);
      return matrices.back();
    }
  };

  /// False where the bucket was saved before its first step.
  bool load_bucket(const BucketReader& reader, BucketId bucket, State& state) const {
    std::vector<std::size_t> ends;
    std::vector<std::size_t> rows;
    for (std::size_t i = 0; i < reader.parameters(bucket); ++i) {
      const Parameter& parameter = reader.parameter(bucket, i);
      ends.push_back((ends.empty() ? 0 : ends.back()) + parameter.elements);
      rows.push_back(parameter.rows);
    }
    if (ends.empty()) return false;
    const LowRankPlan plan(ends, rows, ends.back(), rank_, Transposed::in_turn);
    std::size_t found = 0;
    std::optional<std::size_t> missing;
    plan.for_each_matrix([&](const Cut& cut, std::size_t at_left, std::size_t at_right) {
      const Matrix& matrix = state.add(cut, rank_);
      const bool there = reader.array(matrix.kind_of_left(), bucket, cut.parameter,
                                      Span<float>(state.left).subspan(at_left, matrix.left)) &&
                         reader.array(matrix.kind_of_right(), bucket, cut.parameter,
                                      Span<float>(state.right).subspan(at_right, matrix.right));
      if (there) {
        ++found;
      } else {
        missing = cut.parameter;
      }
    });
    if (found != 0 && missing) {
      throw std::runtime_error("the state has not both factors of parameter '" +
                               reader.parameter(bucket, *missing).name + "', but of others of its bucket");
    }
    return found != 0;
  }

  /// The bucket's state, drawn when the bucket comes for the first time.
  State& open(BucketId bucket, const LowRankPlan& plan, const Step& step) {
    const bool created = !states_.contains(bucket);
    State& state = states_.open(bucket);
    if (created) {
      plan.for_each_matrix([&](const Cut& cut, std::size_t, std::size_t) { state.add(cut, rank_); });
      renew(state.left, true, plan, bucket, step);
      renew(state.right, false, plan, bucket, step);
    }
    if (state.right.size() != plan.right() || state.left.size() != plan.left()) {
      throw std::invalid_argument("bucket " + std::to_string(bucket) + " had parameters of other sizes in " +
                                  "earlier steps: a bucket keeps its parameters");
    }
    return state;
  }

  void keep(Span<float> mean, bool left, const LowRankPlan& plan, BucketId bucket, const Step& step) {
    State& state = states_.open(bucket);
    auto& factors = left ? state.left : state.right;
    std::copy(mean.begin(), mean.end(), factors.begin());
    renew(factors, left, plan, bucket, step);
  }

  /// Makes columns orthonormal. Those that are zero, or depend on others, are drawn.
  void renew(Span<float> factors, bool left, const LowRankPlan& plan, BucketId bucket,
             const Step& step) const {
    plan.for_each_matrix([&](const Cut& cut, std::size_t at_left, std::size_t at_right) {
      const std::size_t length = left ? cut.left() : cut.right();
      const auto columns = factors.subspan(left ? at_left : at_right, rank_ * length);
      orthonormalise(length, rank_, columns);
      bool drawn = false;
      for (std::size_t k = 0; k < rank_; ++k) {
        const auto column = columns.subspan(k * length, length);
        if (std::ranges::any_of(column, [](float value) { return value != 0; })) continue;
        draw(column, stream(step, bucket, cut.parameter, left, k));
        drawn = true;
      }
      if (drawn) orthonormalise(length, rank_, columns);
    });
  }

  RandomStream stream(const Step& step, BucketId bucket, std::size_t parameter, bool left,
                      std::size_t column) const {
    const std::size_t number = column + (left ? static_cast<std::size_t>(kMostColumns) : 0);
    return random_stream(step.seed, step.index, bucket, RandomPurpose::low_rank,
                         static_cast<std::uint32_t>(parameter), static_cast<std::uint32_t>(number));
  }

  std::size_t rank_;
  std::optional<BlockCodes> codes_;
  BucketStates<State> states_;
};

}  // namespace

SystemInfo acp_sgd_info() {
  SystemInfo info;
  info.name = "acp_sgd";
  info.summary = "matrices of low rank, of which one factor travels in a step and the other in the next";
  info.paper = "Zhang et al., ACP-SGD, ICDCS 2023";
  info.formula =
      "2(W-1)/W * 4 * (sum over matrices [n x m] of rank * n or rank * m + elements of small parameters); "
      "with bits what blocks sends of as many floats";
  info.feedback_default = true;
  info.state = {kOfRows, kOfColumns};
  info.undoes_steps = true;
  info.turns_residual = true;
  info.options = {{"rank", "4", "columns of the factors, 1 to 1024"},
                  {"bits", "32", "of a float that travels: 32, or 2 to 8 in codes"},
                  {"block", "128", "with codes: floats that share a scale, a multiple of 128"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    const auto rank = static_cast<std::size_t>(options.integer("rank", 1, kMostColumns));
    return std::make_unique<AcpSgd>(rank, read_codes_or_floats(options));
  };
  return info;
}

}  // namespace thinwire
