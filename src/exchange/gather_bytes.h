#pragma once
// What ranks tell each other outside of a bucket's step.

#include <string>
#include <string_view>
#include <vector>

#include "thinwire/communicator.h"

namespace thinwire {

/// Every rank's bytes in rank order; each rank may have another number of them. They travel in an Exchange of
/// `call`, the same on all ranks, with checksums. Collective. Throws CorruptFrame on every rank, before
/// memory is taken, where a rank announces more than `longest` bytes; else as Exchange and Communicator do.
std::vector<std::string> gather_bytes(Communicator& communicator, const ExchangeCall& call,
                                      std::string_view mine, std::size_t longest);

}  // namespace thinwire
