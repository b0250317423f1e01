#pragma once
// The start-up comparison: ranks that are configured differently would compute nonsense or hang; better not
// to start. And how ranks say that they do not hold the same parameters any more.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "thinwire/communicator.h"
#include "thinwire/state.h"

namespace thinwire {

struct Configuration {
  std::string spec;  ///< With all options.
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  const std::vector<BucketLayout>& buckets;
  std::string other;
  std::string occasion;  ///< Not compared, see SessionOptions.
  /// How a message shows a spec, which may be another rank's.
  std::function<std::string(const std::string&)> shown_spec;
};

/// A hash of the parameters' names, in their order.
std::uint64_t hash_of_names(const BucketLayout& parameters);

/// Collective. Throws std::runtime_error on every rank when any rank differs from rank 0, naming the first
/// that does and everything in which it differs, with the first values that do.
void compare_configurations(Communicator& communicator, const Configuration& configuration);

/// hashes: of what each rank holds, in rank order. "rank 1 holds other parameters than the rest of 3 ranks",
/// or who holds what where no set is that of more ranks than any other; nothing where all are the same.
std::optional<std::string> replica_difference(const std::vector<std::uint64_t>& hashes);

}  // namespace thinwire
