#pragma once
// A lane's session, and the way of torch's tensors into it and back.

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "thinwire/session.h"
#include "torch/c10d_communicator.h"
#include "torch/ddp_layout.h"
#include "torch/device_staging.h"

namespace thinwire {

/// Float32 in host memory goes into the session as it is, and so does float32 on the session's device. Halves
/// go through a float32 copy, and what lies on a device that the session does not have through pinned host
/// memory. What no system takes, and halves of which only the sum is wanted, is summed past the session. All
/// calls of a step are made by one thread.
class TensorSession {
 public:
  /// threads: for the kernels that convert types.
  TensorSession(std::unique_ptr<C10dCommunicator> communicator, int threads);

  /// Null once leave() was called.
  C10dCommunicator& communicator() { return *communicator_; }
  /// Closes the connections. together: waits a little for the other ranks to come to this point. in_order:
  /// nothing of this process has failed.
  void leave(bool together, bool in_order) {
    if (!together) communicator_->leave_alone(in_order);
    communicator_.reset();
  }

  /// Replaces the session; between steps. device: where it compresses dense buckets.
  void set(std::unique_ptr<Session> session, std::optional<int> device);
  /// Null until it was set.
  Session* session() const { return session_.get(); }
  std::optional<int> device() const { return device_; }

  /// The bucket's mean over ranks, as DdpDone gets it. Collective.
  at::Tensor synchronize(const DdpBucket& bucket, StepReport& report);

  /// Ends the session's step, see Session::next_step; one that failed somewhere, or was given up, is undone
  /// and has not `ended`. unused: names of parameters that take no part in it. squares: of all lanes.
  void end_step(bool ended, bool counts, const std::vector<std::string>& unused, double squares);

  /// Makes the stream on which synchronize() computes the device's current one. Nothing for host memory.
  DeviceStaging::Guard on_stream_of(const at::Tensor& gradient);

 private:
  class Halves;

  at::Tensor synchronize_rows(const DdpBucket& bucket, StepReport& report);
  void synchronize_floats(const DdpBucket& bucket, StepReport& report);
  void synchronize_halves(const DdpBucket& bucket, StepReport& report);
  /// Past the session: no system takes its type.
  void sum_others(const DdpBucket& bucket, StepReport& report);
  bool sum(const at::Tensor& gradient, const Completion& complete, StepClock& clock);

  std::unique_ptr<C10dCommunicator> communicator_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Session> session_;
  std::optional<int> device_;
  std::map<std::size_t, at::Tensor> floats_;  // of buckets in half precision
  std::vector<std::uint32_t> row_indices_;
  DeviceStaging staging_;
};

}  // namespace thinwire
