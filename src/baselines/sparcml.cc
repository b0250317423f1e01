// SparCML: recursive doubling on lists of non-zeros.
//
// Source: C. Renggli et al., "SparCML: High-performance sparse communication for machine learning", SC 2019,
// SSAR_Recursive_double; a baseline of Zen (section 2.3) and S2 Reducer.
//
// Bytes per rank: the sum over the stages of 8 times what the rank holds by then: nnz, |U_2|, |U_4|, ...;
// ranks beyond the largest power of two send their nnz once. As both papers measure it, lists stay lists
// however long they grow; SparCML's own switch to a dense vector above half of the elements is not taken.

#include "baselines/baselines.h"
#include "exchange/recursive_doubling.h"
#include "exchange/sparse_synchronizer.h"

namespace thinwire {
namespace {

class SparCml final : public SparseSynchronizer {
 public:
  std::uint64_t payload_bytes(const Workload& workload) const override {
    const Expected e = expected(workload);
    return recursive_doubling_bytes(e.rows, e.union_rows, e.world, static_cast<std::uint64_t>(workload.rank),
                                    e.width);
  }

 protected:
  RowMean exchange(BucketId bucket, const RowSparse& own, bool finite, Step& step) override {
    return recursive_doubling(bucket, own, finite, step);
  }
};

}  // namespace

SystemInfo sparcml_info() {
  SystemInfo info;
  info.name = "sparcml";
  info.summary = "recursive doubling on lists of non-zeros";
  info.paper = "Renggli et al., SC 2019; baseline of Zen and S2 Reducer";
  info.formula = "sum over stages i < log2 W of 8 |U_(2^i)|";
  info.lossless = true;
  info.takes_rows = true;
  info.make = [](const Options&, Inner) { return std::make_unique<SparCml>(); };
  return info;
}

}  // namespace thinwire
