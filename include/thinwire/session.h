#pragma once
// What a training loop holds: one system on one communicator, with the residuals, workspaces and step counter
// that belong to it.
//
//   thinwire::Session session("marsit:full_every=100", communicator, {.seed = 1});
//   session.add_bucket({{"layer1.weight", 4096, 64}, {"layer1.bias", 64}});  // 4096 as [64 x 64]
//   session.start();  // collective: refuses to run if ranks are configured differently
//   for (...) {
//     session.synchronize(0, gradient);
//     session.next_step();
//   }
//
// Embeddings whose gradients are rows may run another system than the rest, in the same session:
//
//   thinwire::Session session("rows=zen,dense=marsit:full_every=100", communicator);
//   const auto table = session.add_rows("embedding.weight", 50'000, 256);
//   const auto rest = session.add_bucket({...});
//   std::array gradients = {BucketGradient{.bucket = table, .rows = ...},
//                           BucketGradient{.bucket = rest, .dense = ...}};
//   session.synchronize(gradients);  // the whole model; then next_step()
//
// The session owns whatever is undelivered. A system with feedback is given it as its residual. A system
// without feedback keeps nothing; but a state that the session loads may hold a residual for it, of another
// system or of a step that did not count. Then the session adds it to the bucket's next gradient, and drops
// it once a step that is finite has delivered it.

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/registry.h"
#include "thinwire/state.h"
#include "thinwire/synchronizer.h"

namespace thinwire {

class HostGroups;

struct SessionOptions {
  std::uint64_t seed = 1;
  /// CPU threads for the kernels of this rank.
  int threads = 1;
  /// The device that holds the gradients of dense buckets, compresses them and keeps their residuals. Empty:
  /// gradients lie in host memory. Rows do in either case.
  std::optional<int> cuda_device{};
  /// Whatever else must be the same on all ranks (a data set's name, a learning rate): compared at start().
  std::string configuration{};
  /// Where this session takes another one's place: what this rank has done for it, as in "has called set()".
  /// Said where other ranks go on with the session before. Not compared.
  std::string occasion{};
  const Registry* registry = nullptr;  ///< nullptr: builtin_registry().
  /// Whether a step is all or nothing, see next_step(): what the step changed is then copied. For large
  /// buckets on the host a thread of the session's own does so after next_step() has returned; a call that
  /// touches the same state waits for it. Without memory for the copy the next synchronize() throws
  /// std::runtime_error. Without it a step that is not finite leaves the residuals of its finite buckets, and
  /// with ranks_per_host of other ranks' parts, moved, and after an error there may be no state left that
  /// could be saved.
  bool undoes_steps = true;
  /// Each rank gets its part of the mean alone. A bucket is W parts of the same length, and synchronize()
  /// leaves part `rank` of the gradient as the mean and the others without meaning. Nothing is sent back, so
  /// a step costs about half the bytes. The residual is of the whole bucket, as each rank codes all parts.
  /// All ranks know whether a step counts. Not for rows, only for specs with Pipeline::reduce_scatters.
  bool reduce_scatter = false;
  /// Sessions of this rank that synchronize parts of one model at the same time, at least 1. They share the
  /// rank's link, which `auto:link=` heeds.
  int sharing = 1;
  /// Ranks of one host act as one worker: host h has the ranks from h * ranks_per_host on. They add up among
  /// themselves first. Then each synchronizes a part of the host's mean, by the system, with the ranks of its
  /// place on the other hosts; and at last the host's ranks put the parts together. So W is the number of
  /// hosts, residuals are of the host's mean, and reports count what goes to other hosts alone, but for
  /// StepReport::host_bytes_sent. Matrices are cut between rows or columns. A host's ranks need a fast way
  /// to each other. Not with reduce_scatter, nor with the stage clip, which needs whole gradients. (Z. Wang
  /// et al., "Zen", section 3.4.)
  int ranks_per_host = 1;
  /// In tensor parallelism: the ranks that hold the other shards of the same parameters, this one among them.
  /// Their sessions synchronize the same buckets, each of its own shards, in the same order. For systems that
  /// ask for them: `dgc:threshold=shards`. With ranks_per_host it is null, and the host's ranks are these.
  /// The communicator must outlive the session.
  Communicator* shards = nullptr;
};

/// One bucket's gradient in a step: `dense` for buckets of add_bucket, `rows` for those of add_rows.
struct BucketGradient {
  BucketId bucket = 0;
  Span<float> dense{};    ///< In: this rank's gradient. Out: the mean.
  RowSparse rows{};       ///< This rank's gradient.
  RowSparse mean_rows{};  ///< Out: the mean, see Session::synchronize_rows.
};

/// A dense gradient in another type than float32, which its holder can make floats of. It may be able to sum
/// it in its type, for fewer bytes.
class TypedGradient {
 public:
  virtual ~TypedGradient() = default;
  virtual std::size_t size() const = 0;
  virtual std::size_t element_bytes() const = 0;
  /// The type's name, at most 9 characters: ranks compare them.
  virtual std::string_view type() const = 0;
  /// Whether sum() works. The same on all ranks.
  virtual bool sums() const = 0;
  /// In place: the sum over ranks of gradient / W, in the type. Charges step.clock where it waits. Returns
  /// whether all of the sum is finite. Collective.
  virtual bool sum(Step& step) = 0;
  /// This rank's gradient [size] as floats, in memory that stays valid; where sum() was not called.
  /// synchronize() leaves the mean there.
  virtual Span<float> floats() = 0;
};

class Session {
 public:
  /// spec: one system for all buckets, or "rows=SPEC,dense=SPEC". Throws std::invalid_argument for a bad
  /// spec, for one that cannot reduce_scatter where that is asked for, and for ranks_per_host that does not
  /// divide the number of ranks; and what make_cuda_executor throws.
  /// The communicator must outlive the session.
  Session(std::string_view spec, Communicator& communicator, SessionOptions options = {});
  ~Session();

  /// Declares the next bucket; returns its id (0, 1, ...). Parameter names are unique over all buckets; they
  /// are what checkpoints are keyed by. Throws std::invalid_argument for a repeated name, rows that do not
  /// divide a parameter's elements, 2^32 or more elements, or when start() was called already.
  BucketId add_bucket(BucketLayout parameters);

  /// Declares a table of `rows` rows of `width` values as the next bucket; its gradients are row-sparse.
  /// Throws as add_bucket does, and for 2^32 or more rows or a width of 0.
  BucketId add_rows(std::string parameter, std::size_t rows, std::size_t width);

  /// Collective. Compares library version, spec, options, seed, bucket sizes, step and configuration across
  /// ranks and throws std::runtime_error on every rank, naming a rank that differs and in what. May be called
  /// again, after load() for instance; synchronize() calls it when nobody did.
  void start();

  /// gradient [elements of the bucket]: in this rank's, out the mean, see Synchronizer::synchronize. With a
  /// device it lies in that device's memory, complete before the call; the mean is complete when it returns.
  /// Collective. Returns what it cost.
  ///
  /// After an exception, but for std::invalid_argument about sizes and memory, which comes before anything is
  /// sent, the step has failed as a whole: what its buckets changed is undone, and the means that they
  /// returned must not be used. CommError, CorruptFrame and whatever else came from the exchange leave ranks
  /// at different places: every later synchronize() then throws std::runtime_error with the first error's
  /// text, and training goes on with a new communicator. A system's own std::invalid_argument, about a
  /// learning rate for instance, is for the step alone: next_step() ends it.
  const StepReport& synchronize(BucketId bucket, Span<float> gradient);

  /// The same of a gradient in another type. Where the system would only hand out the sum of gradient / W, it
  /// is summed in its type. Else the mean is in gradient.floats().
  const StepReport& synchronize(BucketId bucket, TypedGradient& gradient);

  /// gradient: this rank's rows, in any order; rows that come more than once are added up in the order in
  /// which they come. `rows` and `width` must be those of add_rows. Returns the mean as
  /// Synchronizer::synchronize_rows does: ascending, distinct, the same on all ranks, in memory of the
  /// session that stays valid until the bucket's next step. A system that takes no rows, or a residual, makes
  /// it work on a dense copy of the table. Collective. Throws std::invalid_argument, before anything is sent,
  /// for an index that is not below rows and for sizes that do not fit.
  RowSparse synchronize_rows(BucketId bucket, const RowSparse& gradient);

  /// Both kinds, one after the other in the order given, the same on all ranks. Collective.
  void synchronize(Span<BucketGradient> gradients);

  /// What the bucket's last step cost.
  const StepReport& report(BucketId bucket) const;

  /// Payload bytes that this rank sends for the bucket in the current step, by the system's formula.
  std::uint64_t payload_bytes(BucketId bucket) const;

  /// What the optimizer multiplies means by, from the next synchronize on and until it is set again; 1 until
  /// then. The same on all ranks. Only systems with an option lr_after and marsit:eta_s=theorem
  /// ask for it (Step::learning_rate); those need it before every step in which it changes.
  void set_learning_rate(double rate) { learning_rate_ = rate; }

  /// The loss scale by which the gradients of the next synchronize on are multiplied; 1 until then. The same
  /// on all ranks. Only the stage clip asks for it (Step::loss_scale).
  void set_loss_scale(double scale) { loss_scale_ = scale; }

  /// Seconds that this rank has waited for others between synchronize() of the last step and that of the next
  /// one, as for their part of a model's buffers; 0 until then, and until it is set again. Each rank has its
  /// own. `auto` counts them as waiting in the exchange, by which it finds a rank that is slow alone
  /// (Step::waited_seconds).
  void set_waited(double seconds) { waited_ = seconds; }

  /// Ends a step of training: every bucket synchronizes at most once per step. Returns whether the step
  /// counts. It does not where a bucket was not finite, which all ranks see alike, where it failed, or where
  /// `counts` is false: then the residuals of all buckets and the system's own state become again what they
  /// were at the end of the step before, and the optimizer must leave the step out. Not collective, but every
  /// rank calls it with the same value. Throws what synchronize() throws after an error of the exchange: such
  /// a step does not end.
  /// whole: where other sessions of this rank synchronize parts of the same model, the sum of step_squares()
  /// over all of them; without one, that of this session.
  bool next_step(bool counts = true, std::optional<double> whole = {});
  /// Whether next_step() takes no time now: nothing as long as a bucket is copied, and no device works.
  bool ends_at_once() const;
  /// See Synchronizer::step_squares: of the step that is about to end.
  double step_squares() const;
  /// Gives up the step that is under way: state is as at the end of the step before, and so is step(). For a
  /// step that this rank cannot go on with, before save(). Without undoes_steps, std::logic_error when
  /// buckets were synchronized in it.
  void undo_step();
  /// Before next_step(): the parameter takes no part in this step, on no rank, whatever was synchronized of
  /// it. Its residual and velocity become what they were before, and its part of the mean must not be used.
  /// For parameters that no rank used, where the optimizer never sees the mean. Nothing for a name that no
  /// bucket of add_bucket() has. Throws std::logic_error without undoes_steps.
  void leave_out(std::string_view parameter);
  /// Whether every bucket that was synchronized since the last next_step() was finite.
  bool finite() const { return finite_; }
  /// Whether a bucket was synchronized since the last next_step().
  bool within_step() const;
  std::uint64_t step() const { return step_; }

  /// Canonical: all options with their values.
  std::string spec() const;
  /// What the systems have changed by themselves and why, see Synchronizer; steps ascend.
  std::vector<Change> changes() const;
  /// The same, and how the systems stand now; steps ascend.
  std::vector<Change> explanation() const;
  /// As text: "step N: REASON", a line for each.
  std::string explain() const;
  /// Of sessions with the same spec that synchronize parts of one model, on one rank: after a step that
  /// counts, the first one's decisions go to the others, so that all buckets have one (Synchronizer::follow).
  std::vector<std::vector<float>> decisions() const;
  void follow(const std::vector<std::vector<float>>& decisions);
  /// For the first one, where a report of another one has changes (Synchronizer::others_changed).
  void others_changed();
  /// What runs on the bucket.
  const Pipeline& pipeline(BucketId bucket) const;
  /// Of the ranks among which the system works: all, or with ranks_per_host one of each host.
  Communicator& communicator() { return communicator_; }
  /// What this rank synchronizes of the bucket's parameters: all, or with ranks_per_host its part. A piece of
  /// a parameter has the parameter's name and the piece's length.
  const BucketLayout& layout(BucketId bucket) const { return layouts_.at(bucket); }
  /// What this rank has not delivered of the bucket's part, in the memory where its gradient is. Without
  /// feedback it is empty, unless a state held something that waits for the next step.
  Span<const float> residual(BucketId bucket) const;

  /// Whether the step that has begun, or else the next one, is one in which an Adam must leave its second
  /// moment as it is, see Synchronizer::freezes_variance. The same on all ranks.
  bool variance_is_frozen() const;
  /// Between steps, for a loss scale that changes: multiplies all state in units of gradients, see StateKind.
  void scale_state(float factor);

  /// Not collective. This rank's residuals (by parameter name), the system's own state, and the step. Always
  /// the state at the end of a step: std::logic_error within one, and std::runtime_error that names the step
  /// and the bucket where one failed that could not be undone.
  void save(StateWriter& writer) const;
  /// The same in the midst of a step, to be handed to load_within_step() of a session with other buckets.
  void save_within_step(StateWriter& writer) const;
  /// Not collective. Buckets must have been added; parameters may be grouped into other buckets than when
  /// saved. Throws std::runtime_error naming a parameter that is missing or of another length, or another
  /// spec or seed; then nothing has changed.
  void load(const StateReader& reader);
  /// Goes on where a session of another spec was when it saved: takes its step and the state that moves
  /// (StateKind::moves), its residuals above all, and nothing else. Parameters that the state does not have
  /// begin with nothing. Where one of the two specs has the learning rate inside and the other has not, what
  /// moves is multiplied or divided by set_learning_rate()'s. Not collective. Throws std::runtime_error
  /// naming a parameter of another length, or where that rate is 0; then nothing has changed.
  void take_over(const StateReader& reader);
  /// After load() of the state before the step that is under way: what save_within_step() wrote since then.
  /// Should the step not count, the session is as load() left it.
  void load_within_step(const StateReader& reader);

 private:
  struct Bucket;
  struct Undelivered;
  enum class From { same_spec, other_spec, own_step };  // the latter of this session, as it stands
  BucketId add(BucketLayout parameters, std::size_t width, std::size_t pipeline, bool row_sparse);
  void require_parts(std::size_t elements, bool row_sparse) const;
  BucketLayout take_part(Bucket& bucket, BucketLayout whole);
  Bucket& open(BucketId bucket, bool rows);
  Executor& executor_of(bool row_sparse) const {
    return row_sparse && host_executor_ ? *host_executor_ : *executor_;
  }
  std::string kind_of(const Bucket& bucket, std::string_view type) const;
  Step begin(Bucket& own, BucketId bucket, Span<float> residual);
  template <class Run>
  void run(BucketId bucket, std::string_view type, Run&& run);
  Communicator& all_ranks() const;
  std::uint64_t bytes_beside() const;
  void compare_shards();
  template <class Synchronize>
  void told_to_host(Bucket& own, Step& step, Synchronize&& synchronize);
  void synchronize_whole(Bucket& own, BucketId bucket, Span<float> gradient, Span<float> residual,
                         Span<const float> pending, Step& step);
  RowSparse synchronize_table(Bucket& own, BucketId bucket, RowSparse gradient, Span<float> residual,
                              Span<const float> pending, Step& step);
  RowSparse synchronize_table_by_hosts(Bucket& own, BucketId bucket, const RowSparse& gradient,
                                       Span<float> residual, Span<const float> pending, Step& step);
  void synchronize_floats(Bucket& own, BucketId bucket, Span<float> gradient, Span<float> residual,
                          Span<const float> pending, Step& step);
  void refuse_after_failure() const;
  void fail(BucketId bucket, const std::exception_ptr& cause);
  void keep();
  void keep_buckets();
  bool keeps_little(BucketId bucket) const;
  bool turns(const Bucket& bucket) const;
  void finish_keeping();
  void refuse_unkept(const std::exception& cause);
  void undo();
  void keep_all();
  void check_origin(const StateReader& reader) const;
  void keep_by_state(std::size_t pipeline);
  std::string canonical(const std::string& saved) const;
  std::vector<std::vector<float>> read_residuals(const StateReader& reader, From from) const;
  float factor_of_units(bool before, bool now) const;
  void restore(const StateReader& reader, From from);

  std::unique_ptr<HostGroups> hosts_;  // null: every rank is a worker
  Communicator& communicator_;         // across hosts
  std::vector<BucketLayout> whole_;    // with hosts_: buckets as they were added
  SessionOptions options_;
  // Before what holds memory of theirs.
  std::unique_ptr<Executor> executor_;       // where dense buckets are
  std::unique_ptr<Executor> host_executor_;  // for rows; nullptr: executor_ is one of the host
  std::vector<Pipeline> pipelines_;          // dense, and rows where it differs
  std::vector<BucketLayout> layouts_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::set<std::string, std::less<>> parameters_;
  std::unique_ptr<Undelivered> undelivered_;
  std::uint64_t step_ = 0;
  double learning_rate_ = 1;
  double loss_scale_ = 1;
  double waited_ = 0;
  bool started_ = false;
  bool finite_ = true;  // every bucket of this step so far
  struct Failure {
    std::string text;
    bool ends_session;
  };
  std::optional<Failure> failure_;  // of this step
  std::string torn_;                // why the state is of no step's end; empty: it is
};

}  // namespace thinwire
