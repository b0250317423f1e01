#include "baselines/even_slices.h"

#include "exchange/sparse_synchronizer.h"

namespace thinwire {
namespace {

class EvenSlices final : public SparseSynchronizer {
 public:
  using SparseSynchronizer::SparseSynchronizer;

  std::uint64_t payload_bytes(const Workload& workload) const override {
    const Expected e = expected(workload);
    return row_list_bytes(e.rows - e.rows / e.world, e.width) +
           (e.world - 1) * row_list_bytes(e.union_rows / e.world, e.width);
  }

 protected:
  RowMean exchange(BucketId bucket, const RowSparse& own, bool finite, Step& step) override {
    return push_pull(bucket, own, finite, {.slots = IndexPermutation::none(own.rows), .pull_bitmaps = false},
                     step);
  }
};

}  // namespace

std::unique_ptr<Synchronizer> make_even_slices(std::size_t block) {
  return std::make_unique<EvenSlices>(block);
}

}  // namespace thinwire
