#pragma once
// How the engine's lanes reach gradients on an accelerator, so that backward goes on meanwhile: where a
// session can work on the device, when they are complete; else through pinned host memory on a stream of the
// lane's own. Written against c10's interface for any device: it compiles against a torch without CUDA, and
// needs no CUDA toolkit.

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <optional>

namespace thinwire {

/// When a tensor on a device is complete: recorded on the stream that computes it.
class Completion {
 public:
  /// Of host memory: complete already.
  Completion() = default;
  /// Of what the calling thread has submitted to the device's current stream so far.
  explicit Completion(c10::Device device);

  /// Work submitted to `stream` from now on waits; the calling thread does not.
  void block(const c10::Stream& stream) const;

 private:
  std::optional<c10::Event> event_;
};

/// The stream to which the calling thread submits what it does on a device.
c10::Stream current_stream(c10::Device device);

/// The device on which a Session of this build can compress the gradient, SessionOptions::cuda_device;
/// nullopt for host memory, another kind of device, and a build of Thinwire without CUDA.
std::optional<int> session_device(const at::Tensor& gradient);

/// Sessions on a device make it the calling thread's current one; this makes it again what it was. For
/// threads of the user's.
class KeepCurrentDevice {
 public:
  KeepCurrentDevice();
  ~KeepCurrentDevice();
  KeepCurrentDevice(const KeepCurrentDevice&) = delete;
  KeepCurrentDevice& operator=(const KeepCurrentDevice&) = delete;

 private:
  std::optional<c10::Device> device_;
};

/// Of one lane, whose thread makes all calls.
class DeviceStaging {
 public:
  /// Makes this lane's stream the device's current one for as long as the guard lives.
  class Guard {
   public:
    Guard() = default;
    explicit Guard(const c10::Stream& stream) { guard_.reset_stream(stream); }

   private:
    c10::OptionalStreamGuard guard_;
  };

  /// The lane's stream on that device, made at the first call.
  const c10::Stream& stream(c10::Device device);

  /// Makes the lane's stream on the gradient's device the current one; what is submitted to it starts when
  /// the gradient is complete. Nothing for host memory.
  Guard enter(const at::Tensor& gradient, const Completion& complete);
  /// Waits for what was submitted to the lane's stream.
  void wait() const {
    if (stream_) stream_->synchronize();
  }

  /// A copy of a dense, contiguous gradient in pinned memory, made once it is complete; waits for it. Valid
  /// until the next call.
  at::Tensor to_host(const at::Tensor& gradient, const Completion& complete);

  /// Submits the way back, gradient = host. What waits for the lane's stream finds it done; the memory behind
  /// `host` is not reused before.
  void to_device(const at::Tensor& host, const at::Tensor& gradient);

 private:
  std::optional<c10::Stream> stream_;
  at::Tensor pinned_;  // bytes; grows
};

}  // namespace thinwire
