// DdpEngine's lanes at work: one bucket's step.

#include <algorithm>
#include <utility>

#include "core/stopwatch.h"
#include "kernels/dense/half.h"
#include "torch/ddp_lane.h"

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

/// values += what is owed, wherever `values` lies.
void add_owed(const at::Tensor& values, std::vector<float>& owed) {
  values.add_(
      at::from_blob(owed.data(), {static_cast<std::int64_t>(owed.size())}, at::kFloat).to(values.device()));
}

}  // namespace

/// Before the bucket's step, in case that it is left out.
void DdpEngine::keep(Lane& lane, const Bucket& bucket) {
  if (!options_.skips_steps) return;
  const auto id = static_cast<BucketId>(bucket.index);
  lane.session->keep_residual(id);
  lane.kept.push_back(id);
  for (const Parameter& parameter : bucket.parameters) {
    const auto owed = owed_.find(parameter.name);
    if (owed != owed_.end()) lane.kept_owed[parameter.name] = owed->second;
  }
}

at::Tensor DdpEngine::synchronize(Lane& lane, const Bucket& bucket, StepReport& report) {
  keep(lane, bucket);
  lane.session->set_learning_rate(learning_rate_);
  const at::Tensor& gradient = bucket.gradient;
  if (gradient.is_sparse()) return synchronize_rows(lane, bucket, report);
  const bool on_host = gradient.device().is_cpu();
  if (lane.session_device && is_compressible(gradient.scalar_type())) {
    synchronize_on_device(lane, bucket, report);
  } else if (!on_host && !is_compressible(gradient.scalar_type()) &&
             lane.communicator->reduces(Memory::cuda)) {
    const auto current = lane.device.enter(gradient, bucket.complete);
    synchronize_plainly(lane, bucket, gradient, report);
  } else if (on_host) {
    synchronize_dense(lane, bucket, gradient, report);
  } else {
    const at::Tensor host = lane.device.to_host(gradient, bucket.complete);
    synchronize_dense(lane, bucket, host, report);
    lane.device.to_device(host, gradient);
  }
  return gradient;
}

/// gradient: the bucket's, in host memory.
void DdpEngine::synchronize_dense(Lane& lane, const Bucket& bucket, const at::Tensor& gradient,
                                  StepReport& report) {
  if (!is_compressible(gradient.scalar_type())) {
    synchronize_plainly(lane, bucket, gradient, report);
  } else if (gradient.scalar_type() == at::kFloat) {
    synchronize_floats(lane, bucket, gradient, Memory::host, report);
  } else {
    at::Tensor& staging = lane.staging[bucket.index];
    if (!staging.defined()) staging = at::empty({gradient.numel()}, at::kFloat);
    const HalfFormat format = half_format(gradient.scalar_type());
    decode_half(*lane.executor, format, halves_of(gradient), floats_of(staging));
    synchronize_floats(lane, bucket, staging, Memory::host, report);
    // Also a mean that is too large for the type is for the optimizer to leave out.
    report.finite =
        encode_half(*lane.executor, format, Span<const float>(floats_of(staging)), {}, halves_of(gradient)) &&
        report.finite;
  }
}

/// Where the session has the gradient's device.
void DdpEngine::synchronize_on_device(Lane& lane, const Bucket& bucket, StepReport& report) {
  const at::Tensor& gradient = bucket.gradient;
  const auto current = lane.device.enter(gradient, bucket.complete);
  if (gradient.scalar_type() == at::kFloat) {
    synchronize_floats(lane, bucket, gradient, Memory::cuda, report);
  } else {
    at::Tensor& staging = lane.staging[bucket.index];
    if (!staging.defined()) staging = at::empty({gradient.numel()}, gradient.options().dtype(at::kFloat));
    staging.copy_(gradient.view(-1));
    synchronize_floats(lane, bucket, staging, Memory::cuda, report);
    gradient.view(-1).copy_(staging);
    report.finite = report.finite && at::isfinite(gradient).all().item<bool>();
  }
}

/// values: float32, of the bucket's elements in their order.
void DdpEngine::synchronize_floats(Lane& lane, const Bucket& bucket, const at::Tensor& values, Memory memory,
                                   StepReport& report) {
  std::vector<std::vector<float>*> delivering;
  if (!owed_.empty()) {
    std::int64_t begin = 0;
    for (const Parameter& parameter : bucket.parameters) {
      const auto elements = static_cast<std::int64_t>(parameter.elements);
      const auto owed = owed_.find(parameter.name);
      if (owed != owed_.end() && !owed->second.empty()) {
        add_owed(values.view(-1).narrow(0, begin, elements), owed->second);
        delivering.push_back(&owed->second);
      }
      begin += elements;
    }
  }
  // The session's stream is another.
  if (memory == Memory::cuda) lane.device.wait();
  report = lane.session->synchronize(static_cast<BucketId>(bucket.index), floats_of(values, memory));
  if (report.finite) {
    for (auto* owed : delivering) owed->clear();
  }
}

at::Tensor DdpEngine::synchronize_rows(Lane& lane, const Bucket& bucket, StepReport& report) {
  const at::Tensor& gradient = bucket.gradient;
  const auto current = lane.device.enter(gradient, bucket.complete);
  const auto rows = static_cast<std::size_t>(gradient.size(0));
  const auto width = layouts_[bucket.index].width;
  const at::Tensor indices = gradient._indices().to(at::kCPU, at::kLong).contiguous();
  const at::Tensor values = gradient._values().to(at::kCPU, at::kFloat).contiguous();
  const auto count = static_cast<std::size_t>(indices.numel());
  lane.row_indices.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t row = indices.data_ptr<std::int64_t>()[i];
    // Only the session can say it well; it refuses what is not below `rows`.
    lane.row_indices[i] = row < 0 || static_cast<std::uint64_t>(row) >= rows
                              ? static_cast<std::uint32_t>(rows)
                              : static_cast<std::uint32_t>(row);
  }
  Span<float> row_values = floats_of(values);
  std::vector<float>* delivering = nullptr;
  if (const auto owed = owed_.find(bucket.parameters[0].name); owed != owed_.end() && !owed->second.empty()) {
    delivering = &owed->second;
    lane.row_values.assign(row_values.begin(), row_values.end());
    for (std::size_t row = 0; row < rows; ++row) {
      const auto begin = delivering->begin() + static_cast<std::ptrdiff_t>(row * width);
      const auto end = begin + static_cast<std::ptrdiff_t>(width);
      if (std::all_of(begin, end, [](float value) { return value == 0; })) continue;
      lane.row_indices.push_back(static_cast<std::uint32_t>(row));
      lane.row_values.insert(lane.row_values.end(), begin, end);
    }
    row_values = lane.row_values;
  }
  RowSparse own;
  own.row_indices = lane.row_indices;
  own.values = row_values;
  own.rows = rows;
  own.width = width;
  const auto id = static_cast<BucketId>(bucket.index);
  const RowSparse mean = lane.session->synchronize_rows(id, own);
  report = lane.session->report(id);
  if (delivering != nullptr && report.finite) delivering->clear();

  const auto kept = static_cast<std::int64_t>(mean.size());
  at::Tensor mean_indices = at::empty({1, kept}, at::kLong);
  std::copy(mean.row_indices.begin(), mean.row_indices.end(), mean_indices.data_ptr<std::int64_t>());
  std::vector<std::int64_t> shape = gradient.sizes().vec();
  shape[0] = kept;
  at::Tensor mean_values = at::empty(shape, at::kFloat);
  std::copy(mean.values.begin(), mean.values.end(), mean_values.data_ptr<float>());
  at::Tensor result = at::_sparse_coo_tensor_unsafe(mean_indices.to(gradient.device()),
                                                    mean_values.to(gradient.device(), gradient.scalar_type()),
                                                    gradient.sizes(), gradient.options());
  result._coalesced_(true);
  return result;
}

/// For types that no system takes.
void DdpEngine::synchronize_plainly(Lane& lane, const Bucket& bucket, const at::Tensor& gradient,
                                    StepReport& report) {
  Stopwatch watch;
  C10dCommunicator& communicator = *lane.communicator;
  communicator.set_context(static_cast<BucketId>(bucket.index), lane.session->step());
  const Traffic before = communicator.traffic();
  // In the order of plain DDP, whose result this is to the last bit.
  gradient.mul_(1.0 / communicator.size());
  if (!gradient.device().is_cpu()) lane.device.wait();
  const double before_sum = watch.seconds();
  communicator.all_reduce_tensor(gradient);
  report.seconds_wait = watch.seconds() - before_sum;
  report.step = lane.session->step();
  report.elements = static_cast<std::uint64_t>(gradient.numel());
  report.raw_bytes = static_cast<std::uint64_t>(gradient.nbytes());
  report.wire = communicator.traffic() - before;
  report.formula_bytes = report.wire.sent_bytes;
  report.finite = at::isfinite(gradient).all().item<bool>();
  report.seconds_total = watch.seconds();
  report.seconds_communicate = report.seconds_total;
}

}  // namespace thinwire
