#pragma once
// One rank of an exchange by itself, without threads: what it receives is what it received in an honest run,
// with some messages damaged. So a fuzzer drives every system at the speed of its decoders.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/hostile_messages.h"
#include "tests/tapped_communicator.h"
#include "thinwire/session.h"

namespace thinwire::fuzz {

/// A system, on a dense bucket of two parameters or on a table of rows.
struct Scenario {
  std::string spec;
  bool rows = false;
  int world = 3;
};

/// A checksum of all messages to a peer with a tag, in their order.
using SentSums = std::map<std::pair<int, Communicator::Tag>, std::uint32_t>;

/// What one rank receives, and the mean that it hands out.
struct Received {
  std::map<MessagePlace, std::vector<std::byte>> messages;
  /// How many of each peer and tag had come before each step began; a step's are between two entries.
  std::vector<std::map<std::pair<int, Communicator::Tag>, std::size_t>> before_step;
  std::vector<std::vector<float>> means;  ///< Of each step; of rows: indices, then values.
  std::vector<SentSums> sent;             ///< After each step: of all that was sent so far.
};

/// An honest run of `steps` steps on threads. [rank]
std::vector<Received> record(const Scenario& scenario, int steps);

/// One message's damage: of which message of the step, counted in the order of their places.
struct Damaged {
  std::size_t message = 0;
  DamageAt how{};
};

struct Attack {
  int rank = 0;  ///< Whose messages are damaged.
  std::size_t step = 0;
  bool sealed = false;  ///< Whether frames get a checksum that is right for what they have become.
  std::vector<Damaged> damages{};
};

enum class Outcome { refused, right, wrong };

/// What the rank makes of it: CorruptFrame or CommError, or a mean. A mean is right when it has the honest
/// run's bits, and the rank has sent others what it sent then. Lets other errors out. protected_only:
/// set to whether whatever was changed is part of a frame whose checksum covers it.
Outcome replay(const Scenario& scenario, const Received& honest, const Attack& attack, bool& protected_only);

}  // namespace thinwire::fuzz
