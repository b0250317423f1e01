#pragma once
// The sessions of all lanes as one: made for DDP's buckets, made anew when these or the spec change, saved
// and loaded together. Bucket i is on lane i mod lanes.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "thinwire/session.h"
#include "torch/ddp_lane.h"
#include "torch/ddp_layout.h"

namespace thinwire {

struct DdpOptions {
  std::uint64_t seed = 1;
  int threads = 1;  ///< CPU threads for the kernels of one lane.
  /// Gradients on a CUDA device are compressed there, in a build with CUDA; otherwise by the CPU.
  bool devices_compress = true;
  bool reduce_scatter = false;  ///< See SessionOptions, as for the next.
  int ranks_per_host = 1;
  bool means_together = false;  ///< See StepMeans; of gradients in host memory.
  const Registry* registry = &builtin_registry();
};

/// All calls are made with the board's lock held while every lane is idle. Not collective; but the new
/// sessions compare their configuration in their first step, as Session::start does.
class DdpSessions {
 public:
  /// spec: canonical. There are no sessions until buckets are known.
  DdpSessions(DdpBoard& board, const std::vector<std::unique_ptr<DdpLane>>& lanes, std::string spec,
              DdpOptions options)
      : board_(board), lanes_(lanes), options_(options), spec_(std::move(spec)) {}

  const std::vector<DdpLayout>& layouts() const { return layouts_; }
  const std::string& spec() const { return spec_; }
  /// Steps that were ended, those before a loaded state's included.
  std::uint64_t step() const;
  /// The CUDA device that compresses the bucket; nullopt for the CPU.
  std::optional<int> device(std::size_t bucket) const;

  /// New sessions for these buckets and this spec, to which the old ones' state moves by the names of
  /// parameters, or that of a loaded state. What belongs to parameters that are in none of these buckets
  /// waits until they are. In the midst of a step this step can still be undone. Clears the reports. An
  /// exception leaves the sessions there were, of which a step that is under way is undone.
  void rebuild(std::vector<DdpLayout> layouts, const std::string& spec, const std::string& occasion);
  void set_spec(const std::string& spec);

  void end_step() { ++step_; }
  /// Its number is not used again: another rank may still take messages of a step that was given up. Where
  /// there are no sessions yet, nothing of it was sent, and it is used again; unless other ranks, with which
  /// this one keeps the same number, have sessions.
  void pass_over_step(bool others_have_sessions);
  /// After the lanes have ended the step: one that failed has not ended.
  void take_step_of_lanes() {
    if (have_sessions()) step_ = lanes_[0]->session()->step();
  }
  /// See Session. All or nothing, over all lanes.
  void scale_state(float factor);

  /// What Session::save writes, over all lanes, and the buckets of the last whole step: those of a step that
  /// was undone may be others, and other ranks may have saved before it.
  StateWriter save() const;
  /// Takes effect at once, or in the rebuild() that first learns of buckets. Returns whether the next step is
  /// to be in the state's buckets; these are layouts() then, or unknown so far. A state of another spec gives
  /// what moves. Throws std::runtime_error, and changes nothing, when it does not fit.
  bool load(StateReader state);
  /// The buckets in which a resumed run's first step is taken, of which DDP's are `now`; see saved_layouts.
  std::vector<DdpLayout> resumed_layouts(const std::vector<DdpLayout>& now) const;

 private:
  struct Made {
    std::unique_ptr<Session> session;
    std::optional<int> device;
  };
  Made make(const std::vector<DdpLayout>& layouts, const std::string& spec, const std::string& occasion,
            std::size_t lane) const;
  std::optional<int> common_device(const std::vector<DdpLayout>& layouts, std::size_t lane) const;
  enum class Moment { between_steps, within_step };
  StateWriter save_sessions(Moment moment) const;
  StateReader fitted(const StateReader& state, const std::vector<DdpLayout>& layouts,
                     const std::vector<Made>& made, StateWriter& waiting) const;
  StateWriter move_state(const std::vector<DdpLayout>& layouts, std::vector<Made>& made) const;
  bool have_sessions() const { return lanes_[0]->session() != nullptr; }

  DdpBoard& board_;
  const std::vector<std::unique_ptr<DdpLane>>& lanes_;
  const DdpOptions options_;
  std::string spec_;
  std::vector<DdpLayout> layouts_;
  std::uint64_t laid_out_at_ = 0;         // step_ when layouts_ were made
  std::vector<DdpLayout> of_whole_step_;  // of the last step in others; empty: there was none
  std::optional<StateReader> loaded_;     // until buckets are known
  StateReader waiting_{StateWriter()};    // of parameters that are in no bucket
  std::uint64_t step_ = 0;
  std::uint64_t passed_over_ = 0;  // steps since the state was loaded, until buckets are known
};

}  // namespace thinwire
