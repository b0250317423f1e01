#pragma once
// The store of residuals: what each bucket of this rank still owes. Systems never own a residual; they are
// lent the span for the duration of a step.

#include <cstdint>
#include <map>
#include <vector>

#include "thinwire/state.h"

namespace thinwire {

class Residuals {
 public:
  /// The bucket's residual, `elements` zeros when it is opened for the first time. The span stays valid as
  /// long as the store. Throws std::invalid_argument when the bucket was opened with another size.
  Span<float> open(std::uint32_t bucket, std::size_t elements);

  /// Empty when the bucket was never opened.
  Span<const float> find(std::uint32_t bucket) const;

  /// Under the kind "residual".
  void save(BucketWriter& writer) const;

 private:
  std::map<std::uint32_t, std::vector<float>> buckets_;
};

}  // namespace thinwire
