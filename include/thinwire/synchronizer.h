#pragma once
// The one contract that every system and baseline fulfils. A system turns this rank's gradient into the mean
// of what all ranks delivered and leaves the undelivered remainder in the residual. With that, error feedback
// is no feature of a system: whoever owns the residual passes it in, or passes an empty one.
//
//   sum over ranks of (gradient_in + residual_in) = W * mean + sum over ranks of residual_out
//
// holds for every system that is given a residual (within rounding), and is tested for each.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "thinwire/change.h"
#include "thinwire/communicator.h"
#include "thinwire/executor.h"
#include "thinwire/report.h"
#include "thinwire/residual_span.h"
#include "thinwire/row_sparse.h"
#include "thinwire/span.h"
#include "thinwire/step_clock.h"
#include "thinwire/workspace.h"

namespace thinwire {

using BucketId = std::uint32_t;

/// Which elements of this rank's gradient a step delivered. Momentum correction clears its velocity there.
struct Delivered {
  enum class Kind : std::uint8_t { all, bitset, indices };
  Kind kind = Kind::all;
  /// bitset: bit i of word i/64 (least significant first). Lies in the step's workspace.
  Span<const std::uint64_t> bits;
  /// indices: ascending, each below n. Lies in the step's workspace.
  Span<const std::uint32_t> indices;
};

/// Where the residual that a step leaves goes: to other memory than the old one's where the caller keeps that
/// for undoing the step, which saves it a copy.
class ResidualTurn {
 public:
  ResidualTurn() = default;  // in place
  ResidualTurn(Span<const float> from, Span<float> to) : from_(from), to_(to) {}

  /// For a system that writes all of it, and only once all ranks have agreed that the step is finite. In
  /// place where `residual` is not the one that the caller has given.
  ResidualSpan write(Span<float> residual) {
    if (to_.empty() || residual.data() != from_.data() || residual.size() != to_.size()) return residual;
    written_ = true;
    return {from_, to_};
  }
  bool written() const { return written_; }

 private:
  Span<const float> from_;
  Span<float> to_;
  bool written_ = false;
};

/// Everything ambient, explicitly: there are no globals, and the library reads no environment variables.
struct Step {
  Communicator& communicator;
  Executor& executor;
  Workspace& workspace;     ///< This bucket's, in memory of the CPU. The caller resets it between steps.
  std::uint64_t index = 0;  ///< Counts the steps of training, the same on all ranks.
  std::uint64_t seed = 0;   ///< The same on all ranks.
  /// What the optimizer multiplies this step's mean by, the same on all ranks. For systems that keep what
  /// they hold back multiplied by the rate of its own step; with 1 they keep it as it comes.
  double learning_rate = 1;
  /// What gradients are multiplied by beyond the optimizer's: a loss scale. The same on all ranks.
  double loss_scale = 1;
  /// Seconds that this rank has waited for others since the step before, outside of Session::synchronize.
  double waited_seconds = 0;
  /// Of the mean, this rank needs part `rank` of W equal ones alone: the session's reduce-scatter. A system
  /// with SystemInfo::reduce_scatters leaves it there; the other parts then have no meaning.
  bool reduce_scatter = false;
  int sharing = 1;  ///< See SessionOptions.
  /// Where each of the bucket's parameters ends, ascending, the last at n. Empty: the bucket is one
  /// parameter. For systems that scale parameters separately, since layers differ by orders of magnitude.
  Span<const std::size_t> parameter_ends{};
  /// Each parameter's leading dimension, 0 where it is not known. Empty: none is. For systems that treat a
  /// parameter as a matrix.
  Span<const std::size_t> parameter_rows{};
  /// Each parameter's name. Empty: they are not known.
  Span<const std::string> parameter_names{};
  /// For vectors as long as the bucket that only kernels touch: memory of the executor, which is another
  /// device's than the CPU's where gradients are. Reset with `workspace`.
  Workspace& scratch = workspace;
  /// Ranks that have other parts of the same parameters, in their order; null: there are none, or some have
  /// nothing of the bucket. Collectives of host memory may be called on it, the same on all of them.
  Communicator* shards = nullptr;
  Delivered delivered{};  ///< Filled in by the system.
  ResidualTurn turn{};    ///< Where systems with SystemInfo::turns_residual write what they leave.
  StepReport report{};    ///< Filled in by the system and its caller; seconds by the caller, from the clock.
  StepClock clock{};      ///< A system enters Phase::decompress when it begins to make the mean.
};

/// What a formula of bytes depends on.
struct Workload {
  std::uint64_t elements = 0;
  std::uint64_t row_width = 1;  ///< Values per unit of sparsity: elements by themselves, or rows.
  bool row_sparse = false;      ///< Handed in by synchronize_rows.
  double density = 1;           ///< Share of rows that a rank's gradient holds.
  double densification = 1;     ///< gamma: rows in the union over ranks, divided by rows of one rank.
  int world_size = 1;
  int rank = 0;
  BucketId bucket = 0;
  std::uint64_t step = 0;
  bool feedback = true;                       ///< Whether a residual is passed.
  bool reduce_scatter = false;                ///< As in Step.
  Span<const std::size_t> parameter_ends{};   ///< As in Step.
  Span<const std::size_t> parameter_rows{};   ///< As in Step.
  Span<const std::string> parameter_names{};  ///< As in Step.

  /// What `rank` sends in Communicator::all_reduce_sum of n elements.
  std::uint64_t ring_sent_bytes(std::uint64_t n, std::size_t element_bytes) const;
};

/// Save and restore values that belong to buckets, see state.h.
class BucketWriter;
class BucketReader;

class Synchronizer {
 public:
  virtual ~Synchronizer() = default;

  /// gradient [n], 0 < n < 2^32, in: this rank's gradient. out: the mean over ranks of what was delivered,
  ///   bit-identical on all ranks.
  /// residual [n] or empty, in: what earlier steps left undelivered. out: what is undelivered now. Empty:
  ///   nothing is kept. Written only once all ranks agreed that the step is finite.
  /// gradient and residual do not overlap. If any rank's gradient or residual holds inf or NaN, report.finite
  /// becomes false on all ranks alike, and neither the residual nor any state of the system changes. What
  /// gradient then holds is without meaning: the Session makes all of it NaN. Collective: same bucket, n and
  /// call order on every rank. The Session has checked the sizes. Throws CorruptFrame and CommError; after
  /// either gradient holds no meaningful value and residual is as it was.
  virtual void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) = 0;

  /// Called once before the first step, on every rank alike: throws std::invalid_argument when the options do
  /// not fit a world of this size. Default: every world will do.
  virtual void require_world(int /*world_size*/) const {}

  /// Whether synchronize_rows works on the rows as they are. False: whoever holds rows densifies them.
  virtual bool takes_rows() const { return false; }

  /// Whether the second moment of an Adam that is given this step's mean must stand still (Step::index),
  /// since the squares of what is delivered are those of compression's noise. The default says no.
  virtual bool freezes_variance(std::uint64_t /*step*/) const { return false; }

  /// Whether, without a residual, it hands out the engine's sum over ranks of gradient / W.
  virtual bool is_plain_sum() const { return false; }

  /// Comes before synchronize() where the gradient is of another type than float32, and whoever holds it
  /// can sum gradient / W in that type. Where synchronize() would hand out that sum and nothing else: calls
  /// sum(), which fills step.report, and returns true. Else false, and synchronize() follows with the same
  /// residual.
  /// Collective; the answer is the same on all ranks. The default goes by is_plain_sum().
  virtual bool sum_in_type(BucketId bucket, Span<const float> residual, Step& step,
                           const std::function<void()>& sum);

  /// synchronize for a row-sparse gradient.
  /// gradient: row indices ascending and distinct, below gradient.rows, of a table with at least one row.
  /// residual [rows * width] or empty, as in synchronize.
  /// Returns the mean: rows ascending and distinct, the same on all ranks; every row that it does not list is
  ///   zero. It lies in step.workspace or step.scratch, as the gradient's may. Without meaning where
  ///   report.finite is false.
  /// Collective. Throws what synchronize throws; the default throws std::logic_error.
  virtual RowSparse synchronize_rows(BucketId bucket, const RowSparse& gradient, Span<float> residual,
                                     Step& step);

  /// Payload bytes that rank workload.rank sends for one bucket, by the paper's formula in exact integers.
  /// What a communicator counts is this plus report.frame_header_bytes. Where the bytes depend on the data,
  /// this is what workload's density and densification lead one to expect, spread evenly over the ranks; the
  /// formula's value for the very data of a step is report.formula_bytes.
  virtual std::uint64_t payload_bytes(const Workload& workload) const = 0;

  /// What it has changed by itself since it was made or loaded, and why; steps ascend. Very old ones may be
  /// missing, and those of steps that did not count. Most systems change nothing. Between calls of others.
  virtual std::vector<Change> changes() const { return {}; }
  /// The same, and how it stands now where the system has more to say, by when that was found; steps ascend.
  /// Between calls of others.
  virtual std::vector<Change> explanation() const { return changes(); }

  /// What a system that decides by itself has decided for the coming step; empty: nothing. Where several
  /// sessions of a process synchronize parts of one model, the first one's goes to the others after each step
  /// that counts: they follow.
  virtual std::vector<float> decision() const { return {}; }
  /// decision: of the same system with the same options, on this rank.
  virtual void follow(Span<const float> /*decision*/) {}
  /// In the last step, which counts, another session of the process changed what it does with a bucket (its
  /// StepReport::changes): a step takes another time from now on. For the one that decides, on all ranks.
  virtual void others_changed() {}

  /// For a system that goes by the norm of the whole gradient: the sum of squares of this rank's own gradient
  /// in the buckets of the step that ends, as far as it needs them. Most need none.
  virtual double step_squares() const { return 0; }
  /// When a step counts, before keep_step(): the sum of step_squares() over all sessions of this process that
  /// synchronize parts of one model.
  virtual void take_squares(double /*whole*/) {}

  /// What must survive a restart besides residuals, by the kinds that SystemInfo::state lists. Default:
  /// nothing.
  virtual void save(BucketWriter& /*writer*/) const {}
  virtual void load(const BucketReader& /*reader*/) {}

  /// After a step that counts and after load(), with SystemInfo::undoes_steps: what the system has of the
  /// bucket now is what undo_step() returns to. Of large buckets it is called on a thread of the session's,
  /// while the session calls nothing else of the system's. The default does nothing.
  virtual void keep_step(BucketId /*bucket*/) {}
  /// Whether keep_step() of this bucket takes no time, since nothing as long as the bucket is copied.
  /// The default says no.
  virtual bool keeps_little(BucketId /*bucket*/) const { return false; }
  /// The bucket's state becomes what it was at the last keep_step(); without one, that of a bucket that never
  /// came. What load() reads is a change like others. The default does nothing.
  virtual void undo_step(BucketId /*bucket*/) {}
  /// Undoes the vectors as long as the bucket for elements [begin, begin + count) alone: of a parameter that
  /// takes no part in a step. Called before keep_step(). The default does nothing.
  virtual void undo_step(BucketId /*bucket*/, std::size_t /*begin*/, std::size_t /*count*/) {}
};

}  // namespace thinwire
