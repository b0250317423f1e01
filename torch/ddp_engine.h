#pragma once
// DistributedDataParallel's communication hook without its Python part: takes buckets as backward finishes
// them and synchronizes them on threads of its own while backward goes on.
//
// Each of a few lanes is a thread with a communicator and a Session, and takes every lanes-th bucket: while
// one waits for the network another compresses. A lane issues its operations in the order of the hooks, which
// DDP keeps the same on all ranks. Lanes share no connection, so they need no order among each other; where
// they share a group that sums on devices, it serves one bucket after the other.
//
// DDP groups parameters into buckets anew after its first step. From the first bucket that it does not know
// the engine holds buckets back until the step's last one. Then every rank makes the same new sessions, to
// which state moves by the names of parameters. The first step after load() goes through the buckets in which
// the state was saved, whatever DDP's are: so a resumed run is the same bit for bit.
//
//   ddp_engine.h     the step: which bucket goes when
//   ddp_lane.h       a thread and its queue
//   tensor_session.h   torch's tensors into a session and back
//   ddp_sessions.h   all lanes' sessions and their state
//   ddp_layout.h     what a bucket is
//   ddp_means.h      means that go out together
//   ddp_regroup.h    a step in other buckets than DDP's

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "torch/c10d_communicator.h"
#include "torch/ddp_lane.h"
#include "torch/ddp_layout.h"
#include "torch/ddp_means.h"
#include "torch/ddp_sessions.h"

namespace thinwire {

class DdpEngine {
 public:
  /// One communicator per lane, all over the same ranks. device_group: sums values on devices for all lanes,
  /// see C10dCommunicator::set_device_group; may be null. Throws std::invalid_argument for a bad spec. Not
  /// collective.
  DdpEngine(std::vector<std::unique_ptr<C10dCommunicator>> communicators,
            const c10::intrusive_ptr<c10d_compat::Group>& device_group, const std::string& spec,
            DdpOptions options);
  ~DdpEngine();
  DdpEngine(const DdpEngine&) = delete;
  DdpEngine& operator=(const DdpEngine&) = delete;

  /// The buckets of a step in ascending order, the same on all ranks; some may be missing, whose parameters
  /// then keep their state. An index that is not above the one before begins another step. Returns at once,
  /// except in steps that change the buckets or the spec: then it waits for the lanes. The gradient must stay
  /// alive and untouched until `done` was called. An error of one bucket fails all later ones and undoes the
  /// step.
  void submit(DdpBucket bucket, DdpDone done);

  /// This rank cannot go on with a step that others may wait for. Ends all of its buckets and all later steps
  /// with this error, and tells the other ranks. Nothing after an earlier error.
  void fail(const std::string& text);

  /// When this process ends by an error of another group's connections: names the ranks that are gone, see
  /// C10dCommunicator::blame_lost_ranks, or says why the engine has failed. Empty where nobody is gone: then
  /// fail() has to tell the others.
  std::string blame_lost_ranks();

  /// Whom this rank has blamed for the engine's failure, by ranks of the group; nobody where it has not
  /// failed.
  Verdict verdict() const;
  /// This process ends: others that wait for it in groups of torch's need not wait any more. Before
  /// end_with() or fail(), which say why.
  void tell_end();
  /// This process ends for what `verdict` says, which another engine of it has found: tells the other ranks.
  /// Nothing after an earlier error.
  void end_with(const Verdict& verdict);
  /// Whether other ranks have ended by an error, or end, and this engine has met none: this rank may wait for
  /// them where the engine cannot end it. For any thread.
  bool is_left_behind() const;

  /// Whether all means of the step under way that have come are finite. In a reduce-scatter each rank sees
  /// its own part: in 16 bits another rank's may be too large for the type, and this rank's not.
  bool is_finite() const;

  /// For steps of buckets with DdpBucket::awaits_end. No bucket of the step comes any more: lets go what was
  /// held back for one that has not come. Nothing where no step is under way.
  void last_bucket_was_submitted();
  /// Backward has come to its end, all of its buckets' means included: ends the step. A step without this
  /// call has been given up and is undone. unused: names of parameters that no rank used, whose mean nobody
  /// takes; they lose nothing. Nothing where no step is under way.
  void end_backward(std::vector<std::string> unused);

  /// For a step of which this rank has submitted nothing, and others, of which it is a part, something: it
  /// counts as one that was given up. Nothing while a step is under way.
  void pass_over_step();

  /// From the next step on. All ranks, before the same step. What the old system has not delivered becomes
  /// the new one's residual, or is delivered in the next step where that keeps none. Throws
  /// std::invalid_argument for a bad spec, which changes nothing.
  void set_spec(const std::string& spec);
  std::string spec() const;

  /// Whether the step that is about to begin is one in which Adam's second moment must stand still, see
  /// Synchronizer::freezes_variance.
  bool variance_is_frozen() const;

  /// See Session::set_learning_rate.
  void set_learning_rate(double rate) { board_.learning_rate = rate; }
  /// See Session::set_loss_scale. It scales no state.
  void set_loss_scale(double scale) { board_.loss_scale = scale; }
  /// See Session::set_waited.
  void set_waited(double seconds) { board_.waited = seconds; }

  /// Between steps, see Session::scale_state.
  void scale_state(float factor);

  /// Steps that were ended, those before a loaded state's included. One that was given up counts once another
  /// has begun: until then everything is as at the end of the step before it.
  std::uint64_t step() const;

  /// What the systems changed by themselves and why, see Synchronizer. Both wait for a step under way.
  std::vector<thinwire::Change> changes();
  std::string explain();
  /// How often systems changed something so far, in steps that did not count as well.
  std::uint64_t times_changed() const;

  /// {"buckets": [last step's report of each], "last_step": sums over them, "total": sums over steps}, as
  /// JSON.
  std::string report() const;
  /// `device` is the one that compresses the bucket; nullopt for the CPU.
  std::vector<DdpLayout> buckets() const;

  /// Every rank's bytes in order of rank, between steps: see gather_bytes(). Bound to the step, as buckets
  /// are.
  /// kind: what they are, for messages. Collective; an error ends the engine's steps.
  std::vector<std::string> gather(std::string_view kind, std::string_view mine, std::size_t longest);

  /// Between steps, not collective: what Session::save writes, over all lanes.
  StateWriter save();
  /// Between steps. Takes effect at once, or when the first step has shown the buckets; the next step is in
  /// the state's buckets, if these are of the same parameters. Of a state of another spec it takes what
  /// moves. Throws std::runtime_error, and changes nothing, when it does not fit.
  void load(StateReader state);

  /// Ends the lanes; a lane that waits for the network is waited for. Then only reading works.
  void close(bool in_order = true);

 private:
  using Lock = DdpLane::Lock;
  class LockThatWakes;

  std::string canonical(const std::string& spec, Communicator& communicator) const;
  std::exception_ptr refusal() const;
  void fail_alone(const std::exception_ptr& error) noexcept;
  void begin_step(Lock& lock);
  void give_up_step(Lock& lock);
  void conclude_step(Lock& lock);
  void end_step(DdpStepEnd end);
  void take_held(Lock& lock, bool complete);
  std::vector<DdpLayout> layouts_with_held(bool complete) const;
  std::size_t deciding_lane() const;
  void fail_held(Lock& lock, const std::exception_ptr& error);
  void push(DdpItem item);
  void settle(Lock& lock);
  void wake_lanes();
  std::vector<thinwire::Change> of_all_lanes(std::vector<thinwire::Change> (Session::*get)() const) const;
  void wait_for_turn(const DdpLane& lane);

  const DdpOptions options_;
  mutable DdpBoard board_;
  std::vector<std::unique_ptr<DdpLane>> lanes_;
  DdpSessions sessions_;
  std::optional<std::string> next_spec_;
  std::vector<DdpItem> held_;         // of this step, until its last bucket is known
  std::shared_ptr<StepMeans> means_;  // of this step; null where each goes out as it comes
  std::size_t last_index_ = 0;        // of this step
  bool resumes_ = false;              // the next step is the first one after load()
  int submitted_steps_ = 0;           // since the beginning, or load()
  bool within_step_ = false;
  bool told_own_failure_ = false;
  bool gave_up_ = false;       // the step before the next one, of which nothing is left but its number
  bool sent_nothing_ = false;  // and of which nothing was submitted
};

}  // namespace thinwire
