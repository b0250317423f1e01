#include "torch/device_staging.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "thinwire/cuda.h"

namespace thinwire {

Completion::Completion(c10::Device device) {
  event_.emplace(device.type());
  event_->record(current_stream(device));
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

#ifndef THINWIRE_CUDA_EMULATED
namespace {

int usable_devices() {
  static const int devices = cuda_devices();
  return devices;
}

}  // namespace
#endif

std::optional<int> session_device(const at::Tensor& gradient) {
#ifdef THINWIRE_CUDA_EMULATED
  // The emulation's kernels reach all memory of the host: tests take a CPU's gradients for a device's.
  return gradient.device().is_cpu() ? std::optional(0) : std::nullopt;
#else
  if (!gradient.is_cuda()) return std::nullopt;
  const int index = gradient.device().index();
  return index < usable_devices() ? std::optional(index) : std::nullopt;
#endif
}

KeepCurrentDevice::KeepCurrentDevice() {
#ifndef THINWIRE_CUDA_EMULATED
  if (usable_devices() > 0 && c10::impl::hasDeviceGuardImpl(c10::kCUDA)) {
    device_ = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
  }
#endif
}

KeepCurrentDevice::~KeepCurrentDevice() {
  if (device_) c10::impl::VirtualGuardImpl(c10::kCUDA).uncheckedSetDevice(*device_);
}

void Completion::block(const c10::Stream& stream) const {
  if (event_) event_->block(stream);
}

const c10::Stream& DeviceStaging::stream(c10::Device device) {
  // A lane's buckets lie on one device but for models that are spread over several.
  if (!stream_ || stream_->device() != device) {
    if (stream_) stream_->synchronize();
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }
  return *stream_;
}

DeviceStaging::Guard DeviceStaging::enter(const at::Tensor& gradient, const Completion& complete) {
  if (gradient.device().is_cpu()) return {};
  const c10::Stream& own = stream(gradient.device());
  complete.block(own);
  return Guard(own);
}

at::Tensor DeviceStaging::to_host(const at::Tensor& gradient, const Completion& complete) {
  const c10::Stream& own = stream(gradient.device());
  const Guard guard(own);
  const auto bytes = static_cast<std::int64_t>(gradient.nbytes());
  if (!pinned_.defined() || pinned_.numel() < bytes) {
    own.synchronize();  // the last copy to the device may still read the old buffer
    pinned_ = at::empty({std::max<std::int64_t>(bytes, 1)}, at::TensorOptions(at::kByte).pinned_memory(true));
  }
  const at::Tensor host = pinned_.narrow(0, 0, bytes).view(gradient.scalar_type()).view(gradient.sizes());
  complete.block(own);
  host.copy_(gradient, /*non_blocking=*/true);
  own.synchronize();
  return host;
}

void DeviceStaging::to_device(const at::Tensor& host, const at::Tensor& gradient) {
  const Guard guard(stream(gradient.device()));
  gradient.copy_(host, /*non_blocking=*/true);
}

}  // namespace thinwire
