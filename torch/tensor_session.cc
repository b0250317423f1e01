#include "torch/tensor_session.h"

#include <algorithm>
#include <utility>

#include "kernels/dense/half.h"
#include "session/configuration.h"

namespace thinwire {
namespace {

HalfFormat half_format(at::ScalarType type) {
  return type == at::kHalf ? HalfFormat::fp16 : HalfFormat::bf16;
}

Span<std::uint16_t> halves_of(const at::Tensor& tensor) {
  return {static_cast<std::uint16_t*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel())};
}

Span<float> floats_of(const at::Tensor& tensor, Memory memory = Memory::host) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel()), memory};
}

BucketId id_of(const DdpBucket& bucket) {
  return static_cast<BucketId>(bucket.index);
}

/// The rows that a sparse gradient lists.
void copy_indices(const at::Tensor& gradient, std::vector<std::uint32_t>& rows) {
  const at::Tensor indices = gradient._indices().to(at::kCPU, at::kLong).contiguous();
  const auto limit = static_cast<std::uint64_t>(gradient.size(0));
  rows.resize(static_cast<std::size_t>(indices.numel()));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    // A negative one is beyond the limit, too. Only the session can say it well: it refuses what is not
    // below.
    const auto row = static_cast<std::uint64_t>(indices.data_ptr<std::int64_t>()[i]);
    rows[i] = static_cast<std::uint32_t>(std::min(row, limit));
  }
}

/// The rows as a sparse tensor like `gradient`, on its device.
at::Tensor sparse_tensor(const RowSparse& rows, const at::Tensor& gradient) {
  const auto count = static_cast<std::int64_t>(rows.size());
  const at::Tensor indices = at::empty({1, count}, at::kLong);
  std::copy(rows.row_indices.begin(), rows.row_indices.end(), indices.data_ptr<std::int64_t>());
  std::vector<std::int64_t> shape = gradient.sizes().vec();
  shape[0] = count;
  const at::Tensor values = at::empty(shape, at::kFloat);
  std::copy(rows.values.begin(), rows.values.end(), values.data_ptr<float>());
  at::Tensor result = at::_sparse_coo_tensor_unsafe(indices.to(gradient.device()),
                                                    values.to(gradient.device(), gradient.scalar_type()),
                                                    gradient.sizes(), gradient.options());
  result._coalesced_(true);
  return result;
}

}  // namespace

TensorSession::TensorSession(std::unique_ptr<C10dCommunicator> communicator, int threads)
    : communicator_(std::move(communicator)), executor_(make_cpu_executor(threads)) {}

void TensorSession::set(std::unique_ptr<Session> session, std::optional<int> device) {
  session_ = std::move(session);
  device_ = device;
  floats_.clear();
}

DeviceStaging::Guard TensorSession::on_stream_of(const at::Tensor& gradient) {
  const auto device = gradient.device();
  return device.is_cpu() ? DeviceStaging::Guard() : DeviceStaging::Guard(staging_.stream(device));
}

at::Tensor TensorSession::synchronize(const DdpBucket& bucket, StepReport& report) {
  const at::Tensor& gradient = bucket.gradient;
  if (gradient.is_sparse()) return synchronize_rows(bucket, report);
  const bool plain = is_summed_plainly(bucket);
  if (device_ && !plain) {
    synchronize_on_device(bucket, report);
  } else if (gradient.device().is_cpu()) {
    synchronize_on_host(bucket, gradient, report);
  } else if (plain && communicator_->reduces(Memory::cuda)) {
    const auto current = staging_.enter(gradient, bucket.complete);
    sum_plainly(bucket, gradient, report);
  } else {
    const at::Tensor host = staging_.to_host(gradient, bucket.complete);
    synchronize_on_host(bucket, host, report);
    staging_.to_device(host, gradient);
  }
  return gradient;
}

void TensorSession::end_step(bool ended, bool counts, const std::vector<std::string>& unused) {
  if (!ended) {
    session_->undo_step();
    return;
  }
  for (const std::string& name : unused) session_->leave_out(name);
  session_->next_step(counts);
}

/// gradient: the bucket's, in host memory.
void TensorSession::synchronize_on_host(const DdpBucket& bucket, const at::Tensor& gradient,
                                        StepReport& report) {
  if (is_summed_plainly(bucket)) {
    sum_plainly(bucket, gradient, report);
    return;
  }
  if (gradient.scalar_type() == at::kFloat) {
    report = session_->synchronize(id_of(bucket), floats_of(gradient));
    return;
  }
  at::Tensor& floats = floats_[bucket.index];
  if (!floats.defined()) floats = at::empty({gradient.numel()}, at::kFloat);
  const HalfFormat format = half_format(gradient.scalar_type());
  decode_half(*executor_, format, halves_of(gradient), floats_of(floats));
  report = session_->synchronize(id_of(bucket), floats_of(floats));
  report.raw_bytes = gradient.nbytes();
  // Also a mean that is too large for the type is for the optimizer to leave out. In a reduce-scatter its
  // owner alone sees it: the caller asks all ranks before the step counts, see DdpEngine::is_finite.
  const bool fits =
      encode_half(*executor_, format, Span<const float>(floats_of(floats)), {}, halves_of(gradient));
  report.finite = report.finite && fits;
}

/// Where the session has the gradient's device.
void TensorSession::synchronize_on_device(const DdpBucket& bucket, StepReport& report) {
  const at::Tensor& gradient = bucket.gradient;
  const auto current = staging_.enter(gradient, bucket.complete);
  const bool is_float = gradient.scalar_type() == at::kFloat;
  at::Tensor values = gradient;
  if (!is_float) {
    at::Tensor& floats = floats_[bucket.index];
    if (!floats.defined()) floats = at::empty({gradient.numel()}, gradient.options().dtype(at::kFloat));
    floats.copy_(gradient.view(-1));
    values = floats;
  }
  staging_.wait();  // the session's stream is another
  report = session_->synchronize(id_of(bucket), floats_of(values, Memory::cuda));
  report.raw_bytes = gradient.nbytes();
  if (is_float) return;
  gradient.view(-1).copy_(values);
  report.finite = report.finite && at::isfinite(gradient).all().item<bool>();
}

at::Tensor TensorSession::synchronize_rows(const DdpBucket& bucket, StepReport& report) {
  const at::Tensor& gradient = bucket.gradient;
  const auto current = staging_.enter(gradient, bucket.complete);
  copy_indices(gradient, row_indices_);
  const at::Tensor values = gradient._values().to(at::kCPU, at::kFloat).contiguous();
  RowSparse own;
  own.row_indices = row_indices_;
  own.values = floats_of(values);
  own.rows = static_cast<std::size_t>(gradient.size(0));
  own.width = row_width(bucket);
  const RowSparse mean = session_->synchronize_rows(id_of(bucket), own);
  report = session_->report(id_of(bucket));
  report.raw_bytes = report.elements * gradient.element_size();
  return sparse_tensor(mean, gradient);
}

bool TensorSession::is_summed_plainly(const DdpBucket& bucket) const {
  const at::ScalarType type = bucket.gradient.scalar_type();
  if (!is_compressible(type)) return true;
  return type != at::kFloat && session_->sums_plainly(id_of(bucket)) &&
         communicator_->sums(type, bucket.gradient.is_cuda());
}

/// In the gradient's own type.
void TensorSession::sum_plainly(const DdpBucket& bucket, const at::Tensor& gradient, StepReport& report) {
  StepClock clock;
  clock.enter(Phase::exchange);
  const std::string kind = std::string("sum of ") + c10::toString(gradient.scalar_type());
  Exchange exchange(*communicator_, {.bucket = id_of(bucket),
                                     .step = session_->step(),
                                     .elements = static_cast<std::uint64_t>(gradient.numel()),
                                     .kind = kind,
                                     .names = hash_of_names(bucket.parameters),
                                     .first_name = bucket.parameters.front().name});
  const Traffic before = communicator_->traffic();
  const std::uint64_t guards_before = communicator_->guard_bytes();
  // In the order of plain DDP, whose result this is to the last bit.
  gradient.mul_(1.0 / communicator_->size());
  if (!gradient.device().is_cpu()) staging_.wait();
  clock.enter(Phase::wait);
  communicator_->all_reduce_tensor(gradient);
  exchange.finish();
  clock.enter(Phase::exchange);
  report.step = session_->step();
  report.elements = static_cast<std::uint64_t>(gradient.numel());
  report.raw_bytes = static_cast<std::uint64_t>(gradient.nbytes());
  report.wire = communicator_->traffic() - before;
  report.frame_header_bytes = communicator_->guard_bytes() - guards_before;
  report.formula_bytes = report.wire.sent_bytes - report.frame_header_bytes;
  report.finite = at::isfinite(gradient).all().item<bool>();
  clock.enter(Phase::exchange);
  report.take_seconds(clock);
}

}  // namespace thinwire
