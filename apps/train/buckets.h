#pragma once
// Gradients as few long vectors. Like DDP, parameters are taken in reverse order, because the last layers'
// gradients are ready first, until a bucket is full. The parameters' gradients are views into the buckets:
// backward() adds into them, and the synchronization works on them in place, without a copy.

#include <torch/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "thinwire/session.h"
#include "thinwire/span.h"

namespace thinwire::train {

/// Which parameters, by position, lie in which bucket: reverse order, at most `bucket_bytes` together; a
/// longer parameter has a bucket of its own.
std::vector<std::vector<std::size_t>> plan_buckets(const std::vector<std::size_t>& elements,
                                                   std::size_t bucket_bytes);

class GradientBuckets {
 public:
  /// Declares the buckets to the session and makes every parameter's grad a view into its bucket. The
  /// parameters are float32 on the CPU.
  GradientBuckets(const std::vector<std::pair<std::string, torch::Tensor>>& parameters, Session& session,
                  std::size_t bucket_bytes);

  std::size_t count() const { return buckets_.size(); }
  Span<float> bucket(std::size_t index);
  void zero();

 private:
  std::vector<torch::Tensor> buckets_;
};

}  // namespace thinwire::train
