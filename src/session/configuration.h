#pragma once
// The start-up comparison: ranks that are configured differently would compute nonsense or hang; better not
// to start.

#include <string>
#include <vector>

#include "thinwire/communicator.h"
#include "thinwire/state.h"

namespace thinwire {

struct Configuration {
  std::string spec;
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  const std::vector<BucketLayout>& buckets;
  std::string other;
};

/// A hash of the parameters' names, in their order.
std::uint64_t hash_of_names(const BucketLayout& parameters);

/// Collective. Throws std::runtime_error on every rank when any rank differs from rank 0, naming the first
/// that does and everything in which it differs, with the first values that do.
void compare_configurations(Communicator& communicator, const Configuration& configuration);

}  // namespace thinwire
