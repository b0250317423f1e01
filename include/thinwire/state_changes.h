#pragma once
// What happens to a state as a whole: another loss scale, another number of ranks, another model. Each entry
// is treated as its kind declares (StateKind); `registry` knows the kinds of states that were saved before
// they carried declarations.

#include <functional>
#include <string_view>
#include <vector>

#include "thinwire/registry.h"
#include "thinwire/state.h"

namespace thinwire {

/// The state with everything in units of gradients times `factor`. Throws std::invalid_argument for a factor
/// that is not finite.
StateWriter scaled_state(const StateReader& state, float factor, const Registry& registry);
/// The same with a factor for each parameter, of which factor_of says it by name.
StateWriter scaled_state(const StateReader& state, const std::function<float(std::string_view)>& factor_of,
                         const Registry& registry);

/// All ranks' states, in order of rank, as one. Kinds that differ between ranks become sums over ranks;
/// everything else is rank 0's. Throws std::invalid_argument when there is none, and for entries of one name
/// that differ in length.
StateWriter merged_state(const std::vector<StateReader>& ranks, const Registry& registry);

/// What every one of `ranks` ranks begins with, of a state that merged_state made of `merged_ranks` ranks'.
StateWriter shared_state(const StateReader& merged, int merged_ranks, int ranks, const Registry& registry);

/// Throws std::runtime_error for a state whose ranks had other parts of their host's mean, see
/// SessionOptions::ranks_per_host.
void require_same_hosts(const StateReader& state, int ranks_per_host);

/// The state for a model of these parameters: entries of others are left out. Where the model has parameters
/// that the state does not know by `known`, they begin without a residual; then only what each rank has of
/// its own is kept, since the rest is known for whole buckets, and is learnt again. Throws
/// std::invalid_argument for a residual of another length than its parameter; but a state of ranks_per_host
/// has pieces of parameters, and parameters that it does not know are left to whoever loads.
StateWriter state_for_model(const StateReader& state, const std::vector<Parameter>& model,
                            const std::vector<std::string>& known, const Registry& registry);

}  // namespace thinwire
