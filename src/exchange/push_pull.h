#pragma once
// Synchronizing rows through owners: every place of a table has one owner among the ranks; each rank pushes
// to each owner the rows that it owns, the owner adds them up in rank order and all pull the result. Zen,
// Sparse PS and OmniReduce differ in who owns what and in how the pull is written.
//
//   rows --permute--> places --split by owner--> row_list to each owner
//        owner: union as a bitmap, sums by rank in it, / W --row_bitmap or row_list--> everyone
//
// Bytes sent per rank, rows of `width` values: push (4 + 4 width) per row that another rank owns; pull (W-1)
// times the smaller of 4 width |U_p| + |I_p| / 8 and (4 + 4 width) |U_p|, where I_p are the places owned and
// U_p those of them that any rank has.

#include "exchange/row_messages.h"
#include "kernels/rows/index_permutation.h"
#include "thinwire/synchronizer.h"

namespace thinwire {

struct PushPullScheme {
  /// Owner of place x is the part of the table in which it lies; the permutation gives rows their places.
  IndexPermutation places;
  bool pull_bitmaps = true;  ///< Whether a pull may be a bitmap where that is smaller.
};

/// What an exchange of rows ends with.
struct RowMean {
  RowSparse rows;      ///< Distinct; ascending if `ascending`. Without meaning unless `finite`.
  bool finite = true;  ///< The same on all ranks.
  bool ascending = true;
  /// Rows of the rank that has fewest, where an exchange shows it to all ranks alike (push_pull), else 0.
  std::uint64_t smallest = 0;
};

/// Watches an exchange, for whoever has to predict another one. Lists of counts lie in the
/// step's workspace, places in its scratch memory.
class PushPullObserver {
 public:
  virtual ~PushPullObserver() = default;
  /// places[r]: what rank r holds of the `owned` places that belong to this rank, counted from 0.
  virtual void merged(Span<const Span<const std::uint32_t>> places, std::size_t owned) = 0;
  /// [W] each: rows that this rank pushed to each owner, rows of each owner's result, bytes of each one's
  /// pull.
  virtual void exchanged(Span<const std::size_t> pushed, Span<const std::uint64_t> pulled_rows,
                         Span<const std::uint64_t> pulled_bytes) = 0;
};

/// own: ascending, distinct rows of a table with at least one row; finite: whether this rank's values are.
/// More than one rank. Collective. Fills in seconds, frame_header_bytes, formula_bytes and both imbalances of
/// the report. observer may be null.
RowMean push_pull(BucketId bucket, const RowSparse& own, bool finite, const PushPullScheme& scheme,
                  RowMessageStorage& storage, Step& step, PushPullObserver* observer = nullptr);

}  // namespace thinwire
