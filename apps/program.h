#pragma once
// The command line is two programs. `thinwire` starts at once and has what needs no torch. What needs torch
// is `thinwire-torch` beside it, which takes a second to start; it has all commands.

namespace thinwire::apps {

/// What main does first. In `thinwire`, does not return where the command needs torch: `thinwire-torch` goes
/// on as this process, with the same arguments. Throws std::runtime_error where that is not found.
void prepare_program(int argc, char** argv);

}  // namespace thinwire::apps
