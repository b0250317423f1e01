#include "thinwire/errors.h"

namespace thinwire {

CommError::CommError(int rank, int peer, std::uint32_t bucket, std::uint64_t step, const std::string& what)
    : std::runtime_error("rank " + std::to_string(rank) + ": " + what + " (bucket " + std::to_string(bucket) +
                         ", step " + std::to_string(step) + ")"),
      rank_(rank),
      peer_(peer),
      bucket_(bucket),
      step_(step) {}

}  // namespace thinwire
