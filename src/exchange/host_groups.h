#pragma once
// Ranks of one host as one worker: they add up among themselves, and each exchanges a part of the host's mean
// with the ranks of its place on the other hosts.
//
//   gradient --reduce()--> the host's mean of this rank's part --the system, across hosts--> mean of the part
//            <--gather()-- the whole mean
//
// Source: Z. Wang et al., "Zen", section 3.4 (ranks of a machine first).
//
// A bucket is cut between rows of its matrices, as nearly to equal parts as that goes: so each part is
// matrices again, with fewer rows, for systems that know of them.

#include <cstddef>
#include <vector>

#include "exchange/group_communicator.h"
#include "thinwire/executor.h"
#include "thinwire/row_sparse.h"
#include "thinwire/state.h"
#include "thinwire/workspace.h"

namespace thinwire {

class HostGroups {
 public:
  /// Host h has the ranks from h * ranks_per_host on. Throws std::invalid_argument unless ranks_per_host is a
  /// divisor of the number of ranks. `all` must outlive it.
  HostGroups(Communicator& all, int ranks_per_host);

  /// This host's ranks.
  GroupCommunicator& inside() { return inside_; }
  /// The ranks of this one's place on all hosts: rank h is of host h.
  GroupCommunicator& across() { return across_; }

  /// Where the parts of a bucket begin, one for each rank of a host; the last entry is its length.
  std::vector<std::size_t> cut(const BucketLayout& parameters) const;
  /// The same for a table, in rows.
  std::vector<std::size_t> cut(std::size_t rows) const;
  /// What this rank's part has of each parameter, under its name.
  BucketLayout part(const BucketLayout& parameters, const std::vector<std::size_t>& begins) const;
  std::size_t place() const { return static_cast<std::size_t>(inside_.rank()); }

  // All below is collective over the host's ranks, within an exchange of inside(), on host memory. begins: of
  // cut(). Bytes from other ranks carry checksums where the engine moves them over a network. Throw
  // CorruptFrame and CommError.

  /// gradient: this rank's part becomes the mean over the host's ranks. Returns whether the host's means are
  /// all finite. If not, every part that has an element has one that is NaN, so that other hosts hear of it.
  bool reduce(Executor& executor, Workspace& workspace, Span<float> gradient,
              const std::vector<std::size_t>& begins);
  /// gradient: this rank's part in, all parts out.
  void gather(Workspace& workspace, Span<float> gradient, const std::vector<std::size_t>& begins);

  /// The same for a table. gradient: rows ascending and distinct. Returns the part's rows, counted from its
  /// begin, in the workspace.
  RowSparse reduce_rows(Executor& executor, Workspace& workspace, const RowSparse& gradient,
                        const std::vector<std::size_t>& begins);
  /// mean: of this rank's part. Returns that of the whole table, in the workspace.
  RowSparse gather_rows(Workspace& workspace, const RowSparse& mean, const std::vector<std::size_t>& begins);

  /// Whether `good` holds on all ranks of the host.
  bool all_say(Workspace& workspace, bool good);

 private:
  RowSparse scatter_rows(Workspace& workspace, const RowSparse& gradient,
                         const std::vector<std::size_t>& begins);
  Span<std::uint32_t> counts_of_all(Workspace& workspace, Span<const std::uint32_t> mine);

  GroupCommunicator inside_;
  GroupCommunicator across_;
};

}  // namespace thinwire
