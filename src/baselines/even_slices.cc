// Sparse PS and OmniReduce: rank p owns the p-th slice of the table, whose rows lie side by side, and lists
// of rows go both ways. Where gradients are skewed, one owner gets most of them: imbalance by design.
//
// Sparse PS is a sharded parameter server for sparse gradients. Source: Parallax (S. Kim et al., EuroSys
// 2019), as a baseline of Zen (section 2.3).
//
//   rows --row_list to the owner of their slice--> rank-order sums / W --row_list--> everyone
//
// Bytes per rank: 8 per non-zero of the others' slices, and (W-1) * 8 |U_p|; rows of `width` values count 4 +
// 4 width.
//
// OmniReduce sends non-zero blocks to aggregators. Source: J. Fei et al., "Efficient sparse collective
// communication and its application to accelerate distributed deep learning", SIGCOMM 2021, as a baseline of
// Zen (section 2.3) and S2 Reducer.
//
//   blocks with a non-zero --to the aggregator of their slice--> rank-order sums / W --> everyone
//
// Blocks of 256 elements; of rows, every row is a block. Each rank is also an aggregator. Bytes per rank: 4 +
// 4 * 256 for each non-zero block of the others' slices, and (W-1) times the same for each block of its slice
// that any rank has.

#include "baselines/baselines.h"
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

SystemInfo sparse_ps_info() {
  SystemInfo info;
  info.name = "sparse_ps";
  info.summary = "sharded server with even slices, lists both ways";
  info.paper = "Kim et al. (Parallax), EuroSys 2019; baseline of Zen";
  info.formula = "8 nnz outside the own slice + (W-1) * 8 |U_p|";
  info.lossless = true;
  info.takes_rows = true;
  info.make = [](const Options&, Inner) { return std::make_unique<EvenSlices>(1); };
  return info;
}

SystemInfo omnireduce_info() {
  SystemInfo info;
  info.name = "omnireduce";
  info.summary = "non-zero blocks to aggregators that own even slices";
  info.paper = "Fei et al., SIGCOMM 2021; baseline of Zen and S2 Reducer";
  info.formula = "(4 + 4 block) per non-zero block outside the own slice + (W-1) * the same per block of U_p";
  info.lossless = true;
  info.takes_rows = true;
  info.options = {{"block", "256", "elements per block of a dense bucket, 1 to 65536"}};
  info.make = [](const Options& options, Inner) {
    return std::make_unique<EvenSlices>(static_cast<std::size_t>(options.integer("block", 1, 65536)));
  };
  return info;
}

}  // namespace thinwire
