#include "fuzz/exchange.h"

#include <deque>
#include <map>

#include "fuzz/input.h"
#include "fuzz/replay.h"
#include "session/contract_specs.h"

namespace {

using namespace thinwire;
using thinwire::fuzz::require;

constexpr std::size_t kSteps = 3;
constexpr std::size_t kMostDamages = 4;

/// Which of the targets a system belongs to.
std::string group_of(const std::string& spec) {
  static const std::map<std::string, std::string> groups = {{"marsit", "one_bit"},
                                                            {"signsgd", "votes"},
                                                            {"ef_signsgd", "one_bit"},
                                                            {"ssdm", "one_bit"},
                                                            {"cascading_sign", "one_bit"},
                                                            {"half", "half"},
                                                            {"one_bit_adam", "one_bit"},
                                                            {"zero_one_adam", "one_bit"},
                                                            {"demo", "code_tables"},
                                                            {"blocks", "code_tables"},
                                                            {"ecsq", "code_tables"},
                                                            {"qsgd", "code_tables"},
                                                            {"terngrad", "code_tables"},
                                                            {"nuqsgd", "code_tables"},
                                                            {"alq", "adaptive_levels"},
                                                            {"amq", "adaptive_levels"},
                                                            {"casq", "casq"},
                                                            {"zen", "push_pull"},
                                                            {"sparse_ps", "push_pull"},
                                                            {"omnireduce", "push_pull"},
                                                            {"sparcml", "row_lists"},
                                                            {"agsparse", "row_lists"},
                                                            {"s2_reducer", "s2_reducer"}};
  const auto found = groups.find(parse_spec(builtin_registry().make(spec).spec).back().name);
  return found == groups.end() ? "sums" : found->second;
}

struct Case {
  fuzz::Scenario scenario;
  std::vector<fuzz::Received> honest;  // by rank
};

std::deque<Case> cases_of(const std::string& group) {
  std::deque<Case> made;
  for (const auto& spec : kContractSpecs) {
    if (group_of(spec) != group) continue;
    const int world = spec.find("torus") == std::string::npos ? 3 : 5;
    for (const bool rows : {false, true}) made.push_back({{spec, rows, world}, {}});
  }
  require(!made.empty());
  return made;
}

/// Recorded when first asked for. A program has one group.
Case& case_of(const std::string& group, std::size_t number) {
  static std::deque<Case> cases = cases_of(group);
  Case& one = cases[number % cases.size()];
  if (one.honest.empty()) {
    one.honest = fuzz::record(one.scenario, kSteps);
    // What nobody touched must come out as it did.
    for (int rank = 0; rank < one.scenario.world; ++rank) {
      bool covered = false;
      const fuzz::Attack none{.rank = rank, .step = kSteps - 1};
      const auto& honest = one.honest[static_cast<std::size_t>(rank)];
      require(fuzz::replay(one.scenario, honest, none, covered) == fuzz::Outcome::right);
    }
  }
  return one;
}

}  // namespace

void thinwire::fuzz::run_exchange(const char* group, const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const Case& one = case_of(group, input.take<std::uint8_t>());
  const auto choice = input.take<std::uint8_t>();
  fuzz::Attack attack;
  attack.sealed = choice % 2 != 0;
  attack.step = choice / 2 % kSteps;
  attack.rank = choice / 2 / static_cast<int>(kSteps) % one.scenario.world;
  while (!input.empty() && attack.damages.size() < kMostDamages) {
    fuzz::Damaged damaged;
    damaged.message = input.take<std::uint8_t>();
    damaged.how.kind = static_cast<Damage>(input.take<std::uint8_t>() % kDamages);
    damaged.how.at = input.take<std::uint16_t>();
    damaged.how.value = input.take<std::uint64_t>();
    attack.damages.push_back(damaged);
  }
  bool covered = false;
  const auto outcome =
      fuzz::replay(one.scenario, one.honest[static_cast<std::size_t>(attack.rank)], attack, covered);
  require(outcome != fuzz::Outcome::wrong || attack.sealed || !covered);
}
