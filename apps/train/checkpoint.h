#pragma once
// Where training can be taken up again. A checkpoint is a folder `epoch-N` with one file that all ranks share
// (model, optimizer, history) and one per rank (what only that rank knows: its residuals). The folder is
// written beside its place and renamed when all ranks are done. So there is a complete checkpoint or none, at
// whatever moment a machine stops.

#include <cstdint>
#include <string>
#include <vector>

#include "apps/train/results.h"
#include "thinwire/communicator.h"
#include "thinwire/state.h"

namespace thinwire::train {

/// Epochs of the checkpoints in `folder`, the newest first.
std::vector<std::uint64_t> checkpoints(const std::string& folder);

/// Epoch of the newest checkpoint in `folder`; 0 if it holds none.
std::uint64_t latest_checkpoint(const std::string& folder);

/// Collective; `folder` lies on a file system that all ranks share. `shared` is rank 0's. Once
/// this one is whole and on the disk, of the older ones the newest stays and the others are removed. Throws
/// std::runtime_error on every rank if one of them cannot write; what was there before is there still.
void write_checkpoint(const std::string& folder, std::uint64_t epoch, const StateWriter& shared,
                      const StateWriter& mine, Communicator& communicator);

/// What one rank goes on from.
struct Checkpoint {
  std::uint64_t epoch;
  StateReader shared;
  StateReader mine;
  std::string passed_over;  ///< What was wrong with newer ones; empty: this is the newest.
};

/// The newest that every rank can read whole. Collective. Throws std::runtime_error on every rank when there
/// is none, with what was wrong with each.
Checkpoint read_newest_checkpoint(const std::string& folder, Communicator& communicator);

/// An entry "epoch" or "rank" must be what is asked for, where it is there. Throws std::runtime_error naming
/// the file that is missing, damaged or of another place.
StateReader read_shared_state(const std::string& folder, std::uint64_t epoch);
StateReader read_rank_state(const std::string& folder, std::uint64_t epoch, int rank);

/// Throws std::runtime_error naming the first option in which a checkpoint differs from what is asked for
/// now; both are texts of trajectory().
void require_same_trajectory(const std::string& saved, const std::string& asked, const std::string& folder);

void put_history(StateWriter& writer, const std::vector<EpochResult>& epochs);
std::vector<EpochResult> get_history(const StateReader& reader);
void put_costs(StateWriter& writer, const Costs& costs);
Costs get_costs(const StateReader& reader);

}  // namespace thinwire::train
