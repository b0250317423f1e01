// OmniReduce: non-zero blocks to aggregators.
//
// Source: J. Fei et al., "Efficient sparse collective communication and its application to accelerate
// distributed deep learning", SIGCOMM 2021, as a baseline of Zen (section 2.3) and S2 Reducer.
//
//   blocks with a non-zero --to the aggregator of their slice--> rank-order sums / W --> everyone
//
// Blocks of 256 elements; of rows, every row is a block. Each rank is also an aggregator and owns an even
// slice, so skewed gradients load one of them: imbalance by design. Bytes per rank: 4 + 4 * 256 for each
// non-zero block of the others' slices, and (W-1) times the same for each block of its slice that any rank
// has.

#include "baselines/baselines.h"
#include "baselines/even_slices.h"

namespace thinwire {
SystemInfo omnireduce_info() {
  SystemInfo info;
  info.name = "omnireduce";
  info.summary = "non-zero blocks to aggregators that own even slices";
  info.paper = "Fei et al., SIGCOMM 2021; baseline of Zen and S2 Reducer";
  info.formula = "(4 + 4 block) per non-zero block outside the own slice + (W-1) * the same per block of U_p";
  info.lossless = true;
  info.takes_rows = true;
  info.options = {{"block", "256", "elements per block of a dense bucket, 1 to 65536"}};
  info.make = [](const Options& options, Inner) -> std::unique_ptr<Synchronizer> {
    return make_even_slices(static_cast<std::size_t>(options.integer("block", 1, 65536)));
  };
  return info;
}

}  // namespace thinwire
