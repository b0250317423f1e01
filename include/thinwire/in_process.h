#pragma once
// Ranks as threads of one process: the embedded default engine, and the one that tests run on.

#include <chrono>
#include <functional>

#include "thinwire/communicator.h"

namespace thinwire {

/// Runs body(communicator) on `workers` threads, one rank each, and returns when all have ended. If a body
/// throws, the others' communication is interrupted (they get a CommError naming that rank) and the first
/// exception is rethrown here. Throws std::invalid_argument when workers < 1.
void run_in_process(int workers, const std::function<void(Communicator&)>& body,
                    std::chrono::duration<double> deadline = std::chrono::minutes(5));

}  // namespace thinwire
