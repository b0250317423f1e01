#include "thinwire/state_changes.h"

#include <cmath>
#include <map>
#include <set>
#include <stdexcept>

namespace thinwire {
namespace {

/// An entry "KIND/PARAMETER"; what has no '/' belongs to the state as a whole.
struct EntryName {
  explicit EntryName(std::string_view entry) {
    const std::size_t slash = entry.find('/');
    kind = entry.substr(0, slash);
    if (slash != std::string_view::npos) parameter = entry.substr(slash + 1);
  }
  bool of_parameter() const { return !parameter.empty() && !declares(); }
  bool declares() const { return kind == "kind"; }

  std::string_view kind;
  std::string_view parameter;
};

StateKind kind_of(const StateReader& state, std::string_view entry, const Registry& registry) {
  const EntryName name(entry);
  const bool values = name.of_parameter() && state.type(entry) == StateReader::Type::floats;
  return values ? registry.state_kind(state, name.kind) : StateKind{.name = name.kind};
}

bool differs_between_ranks(const StateReader& state, std::string_view entry, const Registry& registry) {
  return kind_of(state, entry, registry).ranks != StateKind::Ranks::same;
}

std::vector<float> floats_of(const StateReader& state, std::string_view entry) {
  std::vector<float> values(state.length(entry));
  state.get(entry, values);
  return values;
}

/// The same state, of which change(kind, parameter, value) says what becomes of each value.
template <class Change>
StateWriter changed(const StateReader& state, const Registry& registry, Change&& change) {
  StateWriter writer;
  for (const std::string& entry : state.names("")) {
    const StateKind kind = kind_of(state, entry, registry);
    if (state.type(entry) != StateReader::Type::floats) {
      writer.copy(state, entry);
      continue;
    }
    auto values = floats_of(state, entry);
    const EntryName name(entry);
    for (float& value : values) value = change(kind, name.parameter, value);
    writer.put(entry, Span<const float>(values));
  }
  return writer;
}

/// values += those of the entry.
void accumulate(std::vector<double>& sums, const StateReader& state, const std::string& entry) {
  const auto values = floats_of(state, entry);
  if (sums.empty()) sums.resize(values.size());
  if (sums.size() != values.size()) {
    throw std::invalid_argument("ranks' states have " + std::to_string(sums.size()) + " and " +
                                std::to_string(values.size()) + " values of '" + entry + "'");
  }
  for (std::size_t i = 0; i < values.size(); ++i) sums[i] += static_cast<double>(values[i]);
}

}  // namespace

StateWriter scaled_state(const StateReader& state, float factor, const Registry& registry) {
  if (!std::isfinite(factor)) throw std::invalid_argument("a state times a factor that is not finite");
  return scaled_state(
      state, [factor](std::string_view) { return factor; }, registry);
}

StateWriter scaled_state(const StateReader& state, const std::function<float(std::string_view)>& factor_of,
                         const Registry& registry) {
  return changed(state, registry, [&](const StateKind& kind, std::string_view parameter, float value) {
    return kind.unit == StateKind::Unit::gradient ? value * factor_of(parameter) : value;
  });
}

StateWriter merged_state(const std::vector<StateReader>& ranks, const Registry& registry) {
  if (ranks.empty()) throw std::invalid_argument("no state to merge: give those of all ranks");
  StateWriter merged;
  std::map<std::string, std::vector<double>> sums;
  std::set<std::string> declared;
  for (const StateReader& state : ranks) {
    for (const std::string& entry : state.names("")) {
      if (differs_between_ranks(state, entry, registry)) {
        accumulate(sums[entry], state, entry);
      } else if (EntryName(entry).declares() ? declared.insert(entry).second : &state == &ranks.front()) {
        merged.copy(state, entry);
      }
    }
  }
  for (const auto& [entry, sum] : sums) {
    const std::vector<float> values(sum.begin(), sum.end());
    merged.put(entry, Span<const float>(values));
  }
  return merged;
}

StateWriter shared_state(const StateReader& merged, int merged_ranks, int ranks, const Registry& registry) {
  return changed(merged, registry, [&](const StateKind& kind, std::string_view, float value) {
    switch (kind.ranks) {
      case StateKind::Ranks::sum:
        return value / static_cast<float>(ranks);
      case StateKind::Ranks::mean:
        return value / static_cast<float>(merged_ranks);
      case StateKind::Ranks::same:
        break;
    }
    return value;
  });
}

namespace {

bool is_of_parts(const StateReader& state) {
  return state.contains("ranks_per_host");
}

}  // namespace

void require_same_hosts(const StateReader& state, int ranks_per_host) {
  const std::uint64_t saved = is_of_parts(state) ? state.get_integer("ranks_per_host") : std::uint64_t{1};
  if (saved == static_cast<std::uint64_t>(ranks_per_host)) return;
  throw std::runtime_error("the state was saved with ranks_per_host=" + std::to_string(saved) +
                           ", this one has ranks_per_host=" + std::to_string(ranks_per_host) +
                           ": what a rank has not delivered is of its part; resume with the same one");
}

StateWriter state_for_model(const StateReader& state, const std::vector<Parameter>& model,
                            const std::vector<std::string>& known, const Registry& registry) {
  std::map<std::string_view, std::size_t> elements;
  for (const Parameter& parameter : model) elements[parameter.name] = parameter.elements;
  std::set<std::string_view> added;
  for (const auto& [name, size] : elements) added.insert(name);
  for (const std::string& name : known) added.erase(name);

  StateWriter writer;
  std::set<std::string, std::less<>>
      of_elements;  // kinds of which each rank has its own, an element's value each
  for (const std::string& entry : state.names("")) {
    const EntryName name(entry);
    if (name.of_parameter()) {
      const auto found = elements.find(name.parameter);
      if (found == elements.end()) continue;
      if (differs_between_ranks(state, entry, registry)) {
        const bool fits = state.length(entry) == found->second;
        if (name.kind == kResidual.name && !fits && !is_of_parts(state)) {
          throw std::invalid_argument("the state's '" + entry + "' has " +
                                      std::to_string(state.length(entry)) + " elements, the parameter " +
                                      std::to_string(found->second));
        }
        if (fits) of_elements.emplace(name.kind);
      } else if (!added.empty()) {
        continue;
      }
    }
    writer.copy(state, entry);
  }
  // Of parts whoever loads knows how long they are.
  if (is_of_parts(state)) added.clear();
  for (const std::string_view name : added) {
    const std::vector<float> nothing(elements[name]);
    for (const std::string& kind : of_elements) {
      writer.put(kind + "/" + std::string(name), Span<const float>(nothing));
    }
  }
  return writer;
}

}  // namespace thinwire
