#pragma once
// Where benchmarks and simulations get their gradients: drawn (synthetic.h) or recorded in training.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "thinwire/row_sparse.h"
#include "thinwire/span.h"
#include "thinwire/state.h"

namespace thinwire::apps {

struct BucketShape {
  BucketLayout parameters;  ///< Of a row-sparse bucket: one.
  bool row_sparse = false;
  std::size_t rows = 0;  ///< Elements, when the bucket is dense.
  std::size_t width = 1;

  std::size_t elements() const { return rows * width; }
};

/// Memory for row-sparse gradients, kept between steps.
struct RowBuffer {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
};

class GradientSource {
 public:
  virtual ~GradientSource() = default;

  /// The same for all ranks and steps.
  virtual const std::vector<BucketShape>& buckets() const = 0;

  /// One rank's gradient of a dense bucket in a step. May be called by several threads at a time, as rows().
  virtual void dense(int rank, std::uint64_t step, std::size_t bucket, Span<float> gradient) const = 0;

  /// One rank's gradient of a row-sparse bucket in a step: a view of `buffer`.
  virtual RowSparse rows(int rank, std::uint64_t step, std::size_t bucket, RowBuffer& buffer) const = 0;
};

}  // namespace thinwire::apps
