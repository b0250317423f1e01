#include "session/replicas.h"

#include <algorithm>
#include <functional>

#include "comm/fault_note.h"

namespace thinwire {

std::optional<std::string> replica_difference(const std::vector<std::uint64_t>& hashes) {
  struct Holders {
    std::uint64_t hash;
    std::vector<int> ranks;
  };
  std::vector<Holders> sets;  // in order of their first ranks
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    auto set = std::ranges::find(sets, hashes[rank], &Holders::hash);
    if (set == sets.end()) set = sets.insert(sets.end(), Holders{hashes[rank], {}});
    set->ranks.push_back(static_cast<int>(rank));
  }
  if (sets.size() < 2) return std::nullopt;
  std::ranges::stable_sort(sets, std::greater(), [](const Holders& one) { return one.ranks.size(); });
  if (sets[0].ranks.size() == sets[1].ranks.size()) {
    std::string all;
    for (const Holders& set : sets) all += (all.empty() ? "" : ", ") + name_ranks(set.ranks);
    return "no set of parameters is that of most ranks: " + all + " hold different ones";
  }
  std::vector<int> others;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    if (hashes[rank] != sets[0].hash) others.push_back(static_cast<int>(rank));
  }
  return name_ranks(others) + (others.size() == 1 ? " holds" : " hold") +
         " other parameters than the rest of " + std::to_string(hashes.size()) + " ranks";
}

}  // namespace thinwire
