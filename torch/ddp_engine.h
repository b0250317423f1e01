#pragma once
// DistributedDataParallel's communication hook without its Python part: takes buckets as backward finishes
// them and synchronizes them on threads of its own while backward goes on.
//
// Each of a few lanes is a thread with a communicator and a Session, and takes every lanes-th bucket: while
// one waits for the network another compresses. A lane issues its operations in the order of the hooks, which
// DDP keeps the same on all ranks; lanes share no connection, so they need no order among each other. Where
// they share a group that sums on devices, it serves one bucket after the other.
//
// DDP groups parameters into buckets anew after its first step. From the first bucket that it does not know
// the engine holds buckets back until the step's last one; then every rank makes the same new sessions, to
// which state moves by the names of parameters. The first step after load() goes through the buckets in which
// the state was saved, whatever DDP's are: so a resumed run is the same bit for bit.

#include <ATen/ATen.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/session.h"
#include "torch/c10d_communicator.h"
#include "torch/device_staging.h"

namespace thinwire {

class DdpEngine {
 public:
  struct Options {
    std::uint64_t seed = 1;
    int threads = 1;  ///< CPU threads for the kernels of one lane.
    /// The optimizer leaves out a step in which any bucket is not finite, as with loss scaling: then what
    /// every bucket owes becomes again what it was before. Costs a copy of the residuals in each step.
    bool skips_steps = false;
    /// Gradients on a CUDA device are compressed there, in a build with CUDA; otherwise by the CPU.
    bool devices_compress = true;
  };

  /// A bucket as DDP's hook gets it.
  struct Bucket {
    std::size_t index = 0;
    bool last = false;  ///< Of this step.
    BucketLayout parameters;
    /// Dense: [n], contiguous. Or sparse COO of one parameter, [rows, ...] with one sparse dimension.
    /// float32, float16 and bfloat16 go through the system; other types are summed as they are. In host
    /// memory, or on a device, which compresses it where this build has CUDA: then submit() is called while
    /// the stream that computes it is current, and the mean is complete for whatever waits for the stream
    /// that is current when `done` is called.
    at::Tensor gradient;
    Completion complete{};  ///< Set by submit().
  };

  /// Called once for a bucket, on a thread of the engine or inside submit(). mean: the dense gradient's own
  /// tensor, which now holds the mean; for rows a new sparse tensor. Undefined when there is an error.
  using Done = std::function<void(at::Tensor mean, std::exception_ptr error)>;

  /// One communicator per lane, all over the same ranks. device_group: sums values on devices for all lanes,
  /// see C10dCommunicator::set_device_group; may be null. Throws std::invalid_argument for a bad spec. Not
  /// collective.
  DdpEngine(std::vector<std::unique_ptr<C10dCommunicator>> lanes,
            const c10::intrusive_ptr<c10d_compat::Group>& device_group, std::string spec, Options options);
  ~DdpEngine();
  DdpEngine(const DdpEngine&) = delete;
  DdpEngine& operator=(const DdpEngine&) = delete;

  /// The buckets of a step from index 0 to the last one, the same on all ranks. Returns at once, except in
  /// steps that change the buckets or the spec: then it waits for the lanes. The gradient must stay alive and
  /// untouched until `done` was called. An error of one bucket fails all later ones.
  void submit(Bucket bucket, Done done);

  /// From the next step on. All ranks, before the same step. What the old system still owed is owed by the
  /// new one, or delivered in the next step where that keeps no residual. Throws std::invalid_argument for a
  /// bad spec, which changes nothing.
  void set_spec(std::string spec);
  std::string spec() const;

  /// See Session::set_learning_rate.
  void set_learning_rate(double rate) { learning_rate_ = rate; }

  /// Multiplies whatever is kept in units of gradients: residuals, velocities, step sizes, centres. Between
  /// steps, for a loss scale that changes.
  void scale_state(float factor);

  /// Steps that were ended, those before a loaded state's included.
  std::uint64_t step() const;

  /// {"buckets": [last step's report of each], "last_step": sum over them, "total": sum over steps}, as JSON.
  std::string report() const;
  /// Of each bucket, its parameters' names.
  std::vector<std::vector<std::string>> bucket_parameters() const;
  /// Of each bucket, the CUDA device that compresses it; nullopt for the CPU.
  std::vector<std::optional<int>> bucket_devices() const;

  /// Between steps, not collective: what Session::save writes, over all lanes.
  StateWriter save();
  /// Between steps. Takes effect at once, or when the first step has shown the buckets; the next step is in
  /// the state's buckets, if these are of the same parameters. A state of another spec gives its residuals
  /// only. Throws std::runtime_error, and changes nothing, when it does not fit.
  void load(StateReader state);

  /// Ends the lanes; a lane that waits for the network is waited for. Then only reading works.
  void close();

 private:
  struct Layout;
  struct Item;
  struct Lane;
  using Lock = std::unique_lock<std::mutex>;

  Layout layout_of(const Bucket& bucket) const;
  void give_up_step(Lock& lock);
  void begin_step(Lock& lock);
  void conclude_step(Lock& lock);
  void end_step();
  void push(Item item);
  void settle(Lock& lock);
  void rebuild(std::vector<Layout> layouts, const std::string& spec);
  void fail(std::exception_ptr error);
  void drive(Lane& lane);
  void wait_for_turn(const Lane& lane);
  at::Tensor synchronize(Lane& lane, const Bucket& bucket, StepReport& report);
  void synchronize_dense(Lane& lane, const Bucket& bucket, const at::Tensor& gradient, StepReport& report);
  at::Tensor synchronize_rows(Lane& lane, const Bucket& bucket, StepReport& report);
  void synchronize_plainly(Lane& lane, const Bucket& bucket, const at::Tensor& gradient, StepReport& report);
  void synchronize_on_device(Lane& lane, const Bucket& bucket, StepReport& report);
  void synchronize_floats(Lane& lane, const Bucket& bucket, const at::Tensor& values, Memory memory,
                          StepReport& report);
  void keep(Lane& lane, const Bucket& bucket);
  std::optional<int> device_of_lane(const std::vector<Layout>& layouts, std::size_t lane) const;
  static void save_layouts(const std::vector<Layout>& layouts, StateWriter& writer);
  static std::vector<Layout> saved_layouts(const StateReader& state, const std::vector<Layout>& now);
  std::vector<Item> regrouped(std::vector<Item>& items, const std::vector<Layout>& layouts,
                              std::size_t first) const;
  StateWriter merged_state() const;
  StateWriter whole_state() const;

  const Options options_;
  std::atomic<double> learning_rate_{1};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::string spec_;
  std::optional<std::string> next_spec_;
  std::optional<StateReader> loaded_;
  std::vector<Layout> layouts_;
  std::vector<Item> held_;
  /// What a spec without residual has taken over and not yet delivered, by parameter. A parameter belongs to
  /// one lane, and the map itself changes only while lanes are idle.
  std::map<std::string, std::vector<float>> owed_;
  bool resumes_ = false;  // the next step is the first one after load()
  bool skipped_ = false;  // a bucket of the last step was not finite
  int submitted_steps_ = 0;
  std::vector<StepReport> reports_;
  StepReport total_;
  std::exception_ptr failure_;
  std::uint64_t step_ = 0;
  bool within_step_ = false;
  bool closed_ = false;
};

}  // namespace thinwire
