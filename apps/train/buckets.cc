#include "apps/train/buckets.h"

#include <utility>

namespace thinwire::train {

std::vector<std::vector<std::size_t>> plan_buckets(const std::vector<std::size_t>& elements,
                                                   std::size_t bucket_bytes) {
  std::vector<std::vector<std::size_t>> plan;
  std::size_t filled = 0;
  for (std::size_t i = elements.size(); i-- > 0;) {
    const std::size_t bytes = elements[i] * sizeof(float);
    if (plan.empty() || filled + bytes > bucket_bytes) {
      plan.emplace_back();
      filled = 0;
    }
    plan.back().push_back(i);
    filled += bytes;
  }
  return plan;
}

GradientBuckets::GradientBuckets(const std::vector<std::pair<std::string, torch::Tensor>>& parameters,
                                 Session& session, std::size_t bucket_bytes) {
  std::vector<std::size_t> elements;
  for (const auto& [name, tensor] : parameters) elements.push_back(static_cast<std::size_t>(tensor.numel()));
  for (const auto& members : plan_buckets(elements, bucket_bytes)) {
    std::vector<Parameter> declared;
    std::size_t length = 0;
    for (const std::size_t i : members) {
      const torch::Tensor& tensor = parameters[i].second;
      const auto rows = tensor.dim() == 0 ? 0 : static_cast<std::size_t>(tensor.size(0));
      declared.push_back({parameters[i].first, elements[i], rows});
      length += elements[i];
    }
    session.add_bucket(std::move(declared));
    const torch::Tensor flat = torch::zeros({static_cast<std::int64_t>(length)}, torch::kFloat32);
    std::int64_t offset = 0;
    for (const std::size_t i : members) {
      torch::Tensor parameter = parameters[i].second;
      parameter.mutable_grad() = flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
      offset += parameter.numel();
    }
    buckets_.push_back(flat);
  }
}

Span<float> GradientBuckets::bucket(std::size_t index) {
  const torch::Tensor& flat = buckets_[index];
  return {flat.data_ptr<float>(), static_cast<std::size_t>(flat.numel())};
}

void GradientBuckets::zero() {
  for (auto& bucket : buckets_) bucket.zero_();
}

}  // namespace thinwire::train
