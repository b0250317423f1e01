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

/// Epoch of the newest checkpoint in `folder`; 0 if it holds none.
std::uint64_t latest_checkpoint(const std::string& folder);

/// Collective; `folder` lies on a file system that all ranks share. `shared` is rank 0's. Removes older
/// checkpoints once this one is whole. Throws std::runtime_error on every rank if one of them cannot write.
void write_checkpoint(const std::string& folder, std::uint64_t epoch, const StateWriter& shared,
                      const StateWriter& mine, Communicator& communicator);

/// Throws std::runtime_error naming the file that is missing or damaged.
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
