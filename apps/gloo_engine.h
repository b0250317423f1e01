#pragma once
// Gloo for run_on_engine. A library of its own: a program that links torch takes a second to start.

namespace thinwire::apps {

/// Ranks over Gloo, as torchrun, `thinwire launch` or srun started them. Nothing where torch has no Gloo.
void use_gloo_of_torch();

}  // namespace thinwire::apps
