#pragma once
// What all lossless systems for sparse gradients share: they exchange distinct rows, whether these came as
// rows or as the non-zeros of a dense bucket, and deliver everything.

#include "exchange/push_pull.h"
#include "thinwire/synchronizer.h"

namespace thinwire {

class SparseSynchronizer : public Synchronizer {
 public:
  /// A dense bucket's unit of sparsity: single elements, or blocks of `block` elements of which a bucket's
  /// last one is filled up with zeros. rows_in_blocks: a table's unit is such a block as well, and not a row.
  explicit SparseSynchronizer(std::size_t block = 1, bool rows_in_blocks = false)
      : block_(block), rows_in_blocks_(rows_in_blocks) {}

  bool takes_rows() const final { return true; }
  /// Finds the non-zeros of gradient + residual and exchanges them as rows; the residual becomes 0.
  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) final;
  RowSparse synchronize_rows(BucketId bucket, const RowSparse& gradient, Span<float> residual,
                             Step& step) final;

 protected:
  /// own: ascending, distinct rows of a table with at least one row; finite: whether all of its values are.
  /// More than one rank. Returns the mean. Sets report.formula_bytes. Collective.
  virtual RowMean exchange(BucketId bucket, const RowSparse& own, bool finite, Step& step) = 0;

  /// What a formula of bytes needs to know of a workload, in units of sparsity.
  struct Expected {
    std::uint64_t table_rows = 0;
    std::uint64_t width = 1;
    std::uint64_t rows = 0;        ///< Of one rank.
    std::uint64_t union_rows = 0;  ///< Of all ranks.
    std::uint64_t world = 1;
  };
  Expected expected(const Workload& workload) const;

 private:
  RowMean exchange_checked(BucketId bucket, const RowSparse& own, Step& step);
  RowSparse collect(Span<const float> gradient, Span<const float> residual, Step& step) const;

  std::size_t block_;
  bool rows_in_blocks_;
};

}  // namespace thinwire
