#include "torch/tensor_session.h"

#include <algorithm>
#include <utility>

#include "kernels/dense/half.h"
#include "session/configuration.h"

namespace thinwire {
namespace {

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
  std::ranges::copy(rows.row_indices, indices.data_ptr<std::int64_t>());
  std::vector<std::int64_t> shape = gradient.sizes().vec();
  shape[0] = count;
  const at::Tensor values = at::empty(shape, at::kFloat);
  std::ranges::copy(rows.values, values.data_ptr<float>());
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
  if (!is_compressible(gradient.scalar_type())) {
    sum_others(bucket, report);
  } else if (gradient.scalar_type() == at::kFloat) {
    synchronize_floats(bucket, report);
  } else {
    synchronize_halves(bucket, report);
  }
  return gradient;
}

void TensorSession::end_step(bool ended, bool counts, const std::vector<std::string>& unused,
                             double squares) {
  if (!ended) {
    session_->undo_step();
    return;
  }
  for (const std::string& name : unused) session_->leave_out(name);
  session_->next_step(counts, squares);
}

void TensorSession::synchronize_floats(const DdpBucket& bucket, StepReport& report) {
  const at::Tensor& gradient = bucket.gradient;
  if (device_) {
    const auto current = staging_.enter(gradient, bucket.complete);
    staging_.wait();  // the session's stream is another
    report = session_->synchronize(id_of(bucket), floats_of(gradient, Memory::cuda));
  } else if (gradient.is_cpu()) {
    report = session_->synchronize(id_of(bucket), floats_of(gradient));
  } else {
    const at::Tensor host = staging_.to_host(gradient, bucket.complete);
    report = session_->synchronize(id_of(bucket), floats_of(host));
    staging_.to_device(host, gradient);
  }
}

/// A bucket in float16 or bfloat16: summed in its type, or as floats where the session is.
class TensorSession::Halves final : public TypedGradient {
 public:
  Halves(TensorSession& owner, const DdpBucket& bucket)
      : owner_(owner), bucket_(bucket), gradient_(bucket.gradient) {}

  std::size_t size() const override { return static_cast<std::size_t>(gradient_.numel()); }
  std::size_t element_bytes() const override { return gradient_.element_size(); }
  std::string_view type() const override { return c10::toString(gradient_.scalar_type()); }
  bool sums() const override {
    return owner_.communicator_->sums(gradient_.scalar_type(), gradient_.is_cuda());
  }
  bool sum(Step& step) override { return owner_.sum(gradient_, bucket_.complete, step.clock); }

  Span<float> floats() override {
    floats_ = owner_.floats_[bucket_.index];
    const auto device = owner_.device_ ? gradient_.device() : at::Device(at::kCPU);
    if (!floats_.defined()) floats_ = at::empty({gradient_.numel()}, at::device(device).dtype(at::kFloat));
    owner_.floats_[bucket_.index] = floats_;
    if (owner_.device_) {
      floats_.copy_(gradient_.view(-1));
      owner_.staging_.wait();  // the session's stream is another
      return floats_of(floats_, Memory::cuda);
    }
    host_ = gradient_.is_cpu() ? gradient_ : owner_.staging_.to_host(gradient_, bucket_.complete);
    decode_half(*owner_.executor_, format(), halves_of(host_), floats_of(floats_));
    return floats_of(floats_);
  }

  /// Where floats() were synchronized: the mean as a gradient again. Returns whether it is finite in its
  /// type: a mean that is too large for that is for the optimizer to leave out, too. In a reduce-scatter its
  /// owner alone sees it: the caller asks all ranks before the step counts, see DdpEngine::is_finite.
  bool take_mean() {
    if (!floats_.defined()) return true;
    if (owner_.device_) {
      gradient_.view(-1).copy_(floats_);
      return at::isfinite(gradient_).all().item<bool>();
    }
    const bool fits =
        encode_half(*owner_.executor_, format(), Span<const float>(floats_of(floats_)), {}, halves_of(host_));
    if (!gradient_.is_cpu()) owner_.staging_.to_device(host_, gradient_);
    return fits;
  }

 private:
  HalfFormat format() const {
    return gradient_.scalar_type() == at::kHalf ? HalfFormat::fp16 : HalfFormat::bf16;
  }

  TensorSession& owner_;
  const DdpBucket& bucket_;
  const at::Tensor& gradient_;
  at::Tensor floats_;  // defined once they were asked for
  at::Tensor host_;    // the gradient in host memory, where the session is there
};

void TensorSession::synchronize_halves(const DdpBucket& bucket, StepReport& report) {
  const auto current = device_ ? staging_.enter(bucket.gradient, bucket.complete) : DeviceStaging::Guard();
  Halves halves(*this, bucket);
  report = session_->synchronize(id_of(bucket), halves);
  report.finite = halves.take_mean() && report.finite;
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

void TensorSession::sum_others(const DdpBucket& bucket, StepReport& report) {
  const at::Tensor& gradient = bucket.gradient;
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
  report.finite = sum(gradient, bucket.complete, clock);
  exchange.finish();
  report.step = session_->step();
  report.elements = static_cast<std::uint64_t>(gradient.numel());
  report.raw_bytes = static_cast<std::uint64_t>(gradient.nbytes());
  report.wire = communicator_->traffic() - before;
  report.frame_header_bytes = communicator_->guard_bytes() - guards_before;
  report.formula_bytes = report.wire.sent_bytes - report.frame_header_bytes;
  clock.enter(Phase::exchange);
  report.take_seconds(clock);
}

/// In the gradient's own type, in the order of plain DDP, whose result this is to the last bit. Returns
/// whether it is finite. Collective.
bool TensorSession::sum(const at::Tensor& gradient, const Completion& complete, StepClock& clock) {
  const bool goes_direct = gradient.is_cpu() || communicator_->reduces(Memory::cuda);
  const auto current = goes_direct ? staging_.enter(gradient, complete) : DeviceStaging::Guard();
  const at::Tensor values = goes_direct ? gradient : staging_.to_host(gradient, complete);
  communicator_->commit_exchange();
  values.mul_(1.0 / communicator_->size());
  if (!values.is_cpu()) staging_.wait();
  {
    const StepClock::During waiting(&clock, Phase::wait);
    communicator_->all_reduce_tensor(values);
  }
  const bool finite = at::isfinite(values).all().item<bool>();
  if (!goes_direct) staging_.to_device(values, gradient);
  return finite;
}

}  // namespace thinwire
