#pragma once
// Which systems trainings with Adam or momentum were measured to lose by, so that nobody finds out by a run.

#include <string>
#include <string_view>

namespace thinwire {

enum class TrainedWith { adam, momentum };

/// A sentence that says by how much a transformer's evaluation loss ended above dense's, at equal steps, with
/// the spec's dense part: a mean over stored seeds, from 0.05 nats on. Empty: it lost less, it was
/// not measured, or the stage guard stands in front. Throws std::invalid_argument for names and options that
/// do not exist.
std::string known_loss(std::string_view spec, TrainedWith optimizer);

}  // namespace thinwire
