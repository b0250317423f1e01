// Sparse PS: a sharded parameter server for sparse gradients, with even slices.
//
// Source: Parallax (S. Kim et al., EuroSys 2019), as a baseline of Zen (section 2.3).
//
//   rows --row_list to the owner of their slice--> rank-order sums / W --row_list--> everyone
//
// Rank p owns the p-th slice of the table, whose rows lie side by side: where gradients are skewed, one owner
// gets most of them. Bytes per rank: 8 per non-zero of the others' slices, and (W-1) * 8 |U_p|; rows of
// `width` values count 4 + 4 width.

#include "baselines/baselines.h"
#include "baselines/even_slices.h"

namespace thinwire {
SystemInfo sparse_ps_info() {
  SystemInfo info;
  info.name = "sparse_ps";
  info.summary = "sharded server with even slices, lists both ways";
  info.paper = "Kim et al. (Parallax), EuroSys 2019; baseline of Zen";
  info.formula = "8 nnz outside the own slice + (W-1) * 8 |U_p|";
  info.lossless = true;
  info.takes_rows = true;
  info.make = [](const Options&, Inner) -> std::unique_ptr<Synchronizer> { return make_even_slices(1); };
  return info;
}

}  // namespace thinwire
