#pragma once
// Gradients that `thinwire train --record` wrote, as a source for simulations.

#include <string>
#include <vector>

#include "apps/gradients/gradient_file.h"
#include "apps/gradients/gradient_source.h"

namespace thinwire::apps {

class RecordedSource final : public GradientSource {
 public:
  /// One file per rank, in any order. A table is a row-sparse bucket; dense tensors fill buckets of up to
  /// `bucket_bytes` in the order in which they were recorded, 0: each its own. Throws std::runtime_error for
  /// files that cannot be read, or do not belong to one run: a rank that is missing or there twice, other
  /// steps, other tensors.
  RecordedSource(const std::vector<std::string>& paths, std::size_t bucket_bytes);

  int workers() const { return static_cast<int>(files_.size()); }
  std::size_t steps() const { return files_[0].steps.size(); }

  const std::vector<BucketShape>& buckets() const override { return buckets_; }
  /// Steps begin anew after the last one recorded.
  void dense(int rank, std::uint64_t step, std::size_t bucket, Span<float> gradient) const override;
  RowSparse rows(int rank, std::uint64_t step, std::size_t bucket, RowBuffer& buffer) const override;

 private:
  const RecordedStep& recorded(int rank, std::uint64_t step) const {
    return files_[static_cast<std::size_t>(rank)].steps[step % steps()];
  }

  std::vector<GradientFile> files_;  // by rank
  std::vector<BucketShape> buckets_;
  std::vector<std::vector<std::size_t>> tensors_;  // of each bucket, by their place in a step
};

}  // namespace thinwire::apps
