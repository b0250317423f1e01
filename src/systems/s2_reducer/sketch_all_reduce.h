#pragma once
// S2 Reducer's exchange, one step of it: blocks that ranks hold, each its own, summed by dense all-reduces.
// The union of blocks travels as a bitmap, the values as a count sketch or as they are. The data flow stands
// in s2_reducer.cc.

#include "kernels/sketches/count_sketch.h"
#include "thinwire/synchronizer.h"

namespace thinwire {

enum class SketchSize { lambda, exact, automatic };

struct SketchSettings {
  SketchSize size = SketchSize::lambda;
  double cells_per_nonzero = 0.5;  ///< lambda, or what `auto` may spend
  std::size_t rows = 1;
  std::size_t run = 64;
  std::size_t block = 256;
  bool shrink = false;
};

/// What follows the bitmap. Equal arguments give equal plans on all ranks.
struct SketchPlan {
  bool exact = false;
  std::size_t columns = 1;

  /// mean_nonzeros: elements in a rank's non-zero blocks, mean over ranks.
  SketchPlan(const SketchSettings& settings, double mean_nonzeros, std::size_t union_elements);
  /// Floats to all-reduce.
  std::size_t values(const SketchSettings& settings, std::size_t union_elements) const {
    return exact ? union_elements : settings.rows * columns;
  }
};

/// A rank's non-zero blocks and where their values lie.
struct OwnBlocks {
  BlockList list;
  BlockLayout layout;
  Span<const float> values;
  Span<const float> residual;  ///< in_bucket only; may be empty
};

/// One step of one bucket.
class SketchAllReduce {
 public:
  /// elements: of the bucket, cut into blocks of `width`.
  SketchAllReduce(const SketchSettings& settings, BucketId bucket, std::size_t elements, std::size_t width,
                  Step& step);

  /// bits: this rank's non-zero blocks, those of own.list; becomes the union. finite: whether all values are.
  /// Returns the mean of the union's elements, block after block, in the step's scratch, and fills in the
  /// report's densities, formula and `finite`: where that is false the result holds nothing. Collective.
  /// Throws CorruptFrame for counts and bitmaps that cannot be.
  Span<const float> average(const OwnBlocks& own, Span<std::uint64_t> bits, bool finite);

  /// The blocks that some rank holds, after average(); empty when no rank has any.
  const BlockList& united() const { return union_; }
  /// Whether nothing was lost.
  bool exact() const { return exact_; }

 private:
  bool agree(std::size_t nonzeros, bool finite);
  void unite();
  Span<const float> sum_exactly(const OwnBlocks& own);
  Span<const float> sum_sketches(const OwnBlocks& own, std::size_t columns);

  const SketchSettings& settings_;
  BucketId bucket_;
  std::size_t elements_;
  std::size_t width_;
  std::size_t blocks_;
  std::size_t world_;
  Step& step_;
  double mean_nonzeros_ = 0;
  bool exact_ = false;
  Span<std::uint64_t> bits_;
  Span<std::uint32_t> before_;
  BlockList union_;
};

}  // namespace thinwire
