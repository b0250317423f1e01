#include "apps/train/gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace thinwire::train {

namespace {

Span<const float> floats_of(const torch::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

/// The indices [1, k] of a sparse gradient as the library has them.
void read_indices(const torch::Tensor& gradient, std::vector<std::uint32_t>& indices) {
  const torch::Tensor listed = gradient._indices().contiguous();
  const auto* first = listed.data_ptr<std::int64_t>();
  indices.resize(static_cast<std::size_t>(listed.numel()));
  std::transform(first, first + listed.numel(), indices.begin(),
                 [](std::int64_t index) { return static_cast<std::uint32_t>(index); });
}

}  // namespace

Gradients::Named Gradients::dense_of(const Model& model) {
  const std::set<std::string> sparse = row_sparse_parameters(model);
  Named dense;
  for (const auto& item : model.named_parameters()) {
    if (!sparse.contains(item.key())) dense.emplace_back(item.key(), item.value());
  }
  return dense;
}

Gradients::Gradients(const Model& model, Session& session, std::size_t bucket_bytes)
    : session_(session), dense_named_(dense_of(model)), dense_(dense_named_, session, bucket_bytes) {
  for (const auto& [name, tensor] : dense_named_) dense_parameters_.push_back(tensor);
  const std::set<std::string> sparse = row_sparse_parameters(model);
  for (const auto& item : model.named_parameters()) {
    if (!sparse.contains(item.key())) continue;
    Table table;
    table.name = item.key();
    table.weight = item.value();
    table.bucket = session.add_rows(table.name, table.rows(), table.width());
    tables_.push_back(std::move(table));
  }
  call_.resize(buckets());
}

void Gradients::clear() {
  dense_.zero();
  for (auto& table : tables_) {
    table.weight.mutable_grad() = torch::Tensor();
    table.values = torch::Tensor();
  }
}

RowSparse Gradients::Table::take_gradient() {
  const torch::Tensor& gradient = weight.grad();
  if (!gradient.defined()) {
    indices.clear();
    return {.rows = rows(), .width = width()};
  }
  if (!gradient.is_sparse()) throw std::logic_error(fmt::format("the gradient of {} lists no rows", name));
  read_indices(gradient, indices);
  values = gradient._values().contiguous();
  return {.row_indices = indices, .values = floats_of(values), .rows = rows(), .width = width()};
}

void Gradients::synchronize() {
  for (std::size_t i = 0; i < dense_.count(); ++i) {
    call_[i] = {.bucket = static_cast<BucketId>(i), .dense = dense_.bucket(i)};
  }
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    call_[dense_.count() + i] = {.bucket = tables_[i].bucket, .rows = tables_[i].take_gradient()};
  }
  session_.synchronize(call_);
  for (std::size_t i = 0; i < tables_.size(); ++i) tables_[i].mean = call_[dense_.count() + i].mean_rows;
}

const StepReport& Gradients::report(std::size_t bucket) const {
  return session_.report(static_cast<BucketId>(bucket));
}

double Gradients::clip(double most) {
  double squares = 0;
  const auto add = [&squares](Span<const float> values) {
    for (const float value : values) squares += static_cast<double>(value) * value;
  };
  for (std::size_t i = 0; i < dense_.count(); ++i) add(dense_.bucket(i));
  for (const auto& table : tables_) add(table.mean.values);
  // As torch's clip_grad_norm_ guards against a norm of 0.
  const double factor = most / (std::sqrt(squares) + 1e-6);
  if (factor >= 1) return 1;
  for (std::size_t i = 0; i < dense_.count(); ++i) {
    for (float& value : dense_.bucket(i)) value *= static_cast<float>(factor);
  }
  return factor;
}

void Gradients::apply_rows(double learning_rate) {
  const auto rate = static_cast<float>(learning_rate);
  for (auto& table : tables_) {
    float* weights = table.weight.data_ptr<float>();
    for (std::size_t k = 0; k < table.mean.size(); ++k) {
      const Span<const float> row = table.mean.row(k);
      float* target = weights + table.mean.row_indices[k] * row.size();
      for (std::size_t i = 0; i < row.size(); ++i) target[i] -= rate * row[i];
    }
  }
}

apps::RecordedStep Gradients::record(std::uint64_t step) const {
  apps::RecordedStep recorded{.step = step};
  for (auto item = dense_named_.rbegin(); item != dense_named_.rend(); ++item) {
    const Span<const float> values = floats_of(item->second.grad());
    recorded.tensors.push_back(
        {.name = item->first, .rows = values.size(), .values = {values.begin(), values.end()}});
  }
  for (const auto& table : tables_) {
    apps::RecordedTensor tensor{
        .name = table.name, .row_sparse = true, .rows = table.rows(), .width = table.width()};
    if (const torch::Tensor& gradient = table.weight.grad(); gradient.defined()) {
      read_indices(gradient, tensor.indices);
      const torch::Tensor listed = gradient._values().contiguous();
      tensor.values.assign(floats_of(listed).begin(), floats_of(listed).end());
    }
    recorded.tensors.push_back(std::move(tensor));
  }
  return recorded;
}

}  // namespace thinwire::train
