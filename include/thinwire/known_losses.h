#pragma once
// What trainings with Adam or momentum were measured to lose by a system, told before another one begins.

#include <string>
#include <string_view>

namespace thinwire {

enum class TrainedWith { adam, momentum };

/// A sentence that says by how much a transformer's evaluation loss ended above dense's, at equal steps, with
/// the spec's dense part: a mean over stored seeds, from 0.05 nats on. Of systems alone, behind warm_up, and
/// of some behind clip.
/// Empty: another system or stage is there, it lost less, or it was not measured. Throws
/// std::invalid_argument for names and options that do not exist.
std::string known_loss(std::string_view spec, TrainedWith optimizer);

/// A sentence that says that no training with this optimizer, of another kind than Adam and SGD, was compared
/// with dense's, where the spec's dense part changes gradients by more than rounding to 16 bits. Empty: it
/// does not. optimizer: its name. Throws std::invalid_argument as known_loss() does.
std::string unmeasured_loss(std::string_view spec, std::string_view optimizer);

}  // namespace thinwire
