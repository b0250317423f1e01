#pragma once
// How MPI ranks tell each other that they have failed: small messages on a communicator of their own. MPI has
// no store to write to, but unlike a broken socket it still delivers between the ranks that live.

#include <optional>
#include <string>
#include <vector>

#include "comm/fault_note.h"
#include "thinwire/mpi.h"

namespace thinwire {

class MpiNotes {
 public:
  /// `group` is a duplicate that belongs to this object until free().
  MpiNotes(MPI_Comm group, int rank, int size)
      : group_(group), rank_(rank), size_(size), notes_(static_cast<std::size_t>(size)) {}

  void free() { MPI_Comm_free(&group_); }

  /// To all other ranks. Waits for none of them: one is dead. Once per life.
  void send(const FaultNote& note) {
    sent_ = note.encode();
    for (int peer = 0; peer < size_; ++peer) {
      MPI_Request request = MPI_REQUEST_NULL;
      if (peer == rank_) continue;
      MPI_Isend(sent_.data(), static_cast<int>(sent_.size()), MPI_CHAR, peer, kTag, group_, &request);
    }
  }

  /// Reads what has come; true when there was anything.
  bool collect() {
    for (bool any = false;; any = true) {
      int waiting = 0;
      int bytes = 0;
      MPI_Status status;
      if (MPI_Iprobe(MPI_ANY_SOURCE, kTag, group_, &waiting, &status) != MPI_SUCCESS || waiting == 0)
        return any;
      MPI_Get_count(&status, MPI_CHAR, &bytes);
      std::string text(static_cast<std::size_t>(bytes), ' ');
      const int source = status.MPI_SOURCE;
      if (MPI_Recv(text.data(), bytes, MPI_CHAR, source, kTag, group_, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return any;
      notes_[static_cast<std::size_t>(source)] = FaultNote::parse(text, size_);
    }
  }

  /// By rank; nothing where none has come.
  const std::vector<std::optional<FaultNote>>& all() const { return notes_; }

 private:
  static constexpr int kTag = 1;
  MPI_Comm group_;
  int rank_;
  int size_;
  std::vector<std::optional<FaultNote>> notes_;
  std::string sent_;  // MPI may still read it
};

}  // namespace thinwire
