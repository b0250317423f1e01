#pragma once
// Ranks of one host as one worker: they add up among themselves, and each exchanges a part of the host's mean
// with the ranks of its place on the other hosts.
//
//   gradient --reduce()--> the host's mean of this rank's part --the system, across hosts--> mean of the part
//            <--gather()-- the whole mean
//
// Source: Z. Wang et al., "Zen", section 3.4 (ranks of a machine first).
//
// Which part of a parameter goes to which place depends on the parameter alone, so that state stays where
// it is when parameters are grouped into other buckets. A matrix is cut along its longer side, into pieces
// that are hardly longer than wide. So each piece is a matrix again, for systems that know of them, and low
// ranks of all pieces are at most twice as large as one of the whole. Whatever is small goes to one place.

#include <cstddef>
#include <vector>

#include "exchange/group_communicator.h"
#include "kernels/dense/dense.h"
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

  Communicator& all() { return all_; }
  /// This host's ranks.
  GroupCommunicator& inside() { return inside_; }
  /// The ranks of this one's place on all hosts: rank h is of host h.
  GroupCommunicator& across() { return across_; }

  /// Who has what of a bucket. Its parts lie one behind the other, place by place.
  struct Parts {
    /// Where each part begins; the last entry is the bucket's length.
    std::vector<std::size_t> begins;
    /// What each has of the bucket, ascending; offsets count within the part.
    std::vector<std::vector<VectorChunk>> slices;
    /// This rank's part, of each parameter the piece that it has, under the parameter's name.
    BucketLayout own;
  };
  Parts parts(const BucketLayout& parameters) const;
  /// For a table, whose parts are rows side by side: where each begins; the last entry is their number.
  std::vector<std::size_t> parts_of_rows(std::size_t rows) const;
  std::size_t place() const { return static_cast<std::size_t>(inside_.rank()); }

  /// Both groups take part in the exchange of all() that is under way, for as long as this lives.
  class Joined {
   public:
    Joined(HostGroups& groups, std::uint32_t bucket, std::uint64_t step) : groups_(groups) {
      groups.inside_.join(bucket, step);
      groups.across_.join(bucket, step);
    }
    ~Joined() {
      groups_.inside_.leave();
      groups_.across_.leave();
    }
    Joined(const Joined&) = delete;
    Joined& operator=(const Joined&) = delete;

   private:
    HostGroups& groups_;
  };

  // All below is collective over the host's ranks, while they are joined, on host memory. Bytes from
  // other ranks carry checksums where the engine moves them over a network. Throw CorruptFrame and CommError.

  /// gradient: parts one behind the other. This rank's becomes the mean over the host's ranks. Where not all
  /// of the host's means are finite, every part that has an element has one that is NaN, so that other hosts
  /// hear of it.
  void reduce(Executor& executor, Workspace& workspace, Span<float> gradient,
              const std::vector<std::size_t>& begins);
  /// gradient: this rank's part in, all parts out.
  void gather(Workspace& workspace, Span<float> gradient, const std::vector<std::size_t>& begins);

  /// The same for a table, with begins of parts_of_rows(). gradient: rows ascending and distinct. Returns the
  /// part's rows, counted from its begin, in the workspace.
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

  Communicator& all_;
  GroupCommunicator inside_;
  GroupCommunicator across_;
};

}  // namespace thinwire
