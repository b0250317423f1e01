// A system from outside the library, in a registry of its own, with state of every sort: through checkpoints,
// other numbers of ranks, another loss scale and another spec. Nothing but its declarations says what its
// state is.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <sstream>

#include "session/own_state.h"
#include "thinwire/in_process.h"
#include "thinwire/session.h"
#include "thinwire/state_changes.h"

namespace thinwire::own_state_test {
namespace {

using own_state::left_in;
using own_state::Values;
using own_state::values_of;

const Registry& registry() {
  static const Registry own = own_state::registry();
  return own;
}

struct Trained {
  std::vector<StateReader> states;                         // by rank
  std::vector<float> undelivered = std::vector<float>(5);  // sums over ranks: three elements of a, two of b
};

struct OneBucket : Session {
  OneBucket(const std::string& spec, Communicator& communicator)
      : Session(spec, communicator, {.registry = &registry()}) {
    add_bucket({{"a", 3}, {"b", 2}});
  }
};

StateReader state_of(const Session& session) {
  StateWriter writer;
  session.save(writer);
  return StateReader(std::move(writer));
}

std::vector<float> gradient_of(int rank, std::uint64_t step) {
  std::vector<float> gradient(5);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>((rank + 1) * static_cast<int>(4 * i + 8 * step) - 6);
  }
  return gradient;
}

/// One step; adds to `undelivered` what went in and did not come out, once for all ranks.
std::vector<float> step_of(Session& session, std::vector<float>* undelivered = nullptr) {
  Communicator& communicator = session.communicator();
  std::vector<float> gradient = gradient_of(communicator.rank(), session.step());
  std::vector<float> sums = gradient;
  communicator.all_reduce_sum(sums);
  session.synchronize(0, gradient);
  session.next_step();
  for (std::size_t i = 0; undelivered != nullptr && i < sums.size(); ++i) {
    (*undelivered)[i] += sums[i] - gradient[i] * static_cast<float>(communicator.size());
  }
  return gradient;
}

Trained train(const std::string& spec, int ranks) {
  Trained trained;
  std::map<int, StateReader> states;
  std::mutex mutex;
  run_in_process(ranks, [&](Communicator& communicator) {
    OneBucket session(spec, communicator);
    for (int step = 0; step < 3; ++step) {
      step_of(session, communicator.rank() == 0 ? &trained.undelivered : nullptr);
    }
    const std::lock_guard lock(mutex);
    states.emplace(communicator.rank(), state_of(session));
  });
  for (auto& [rank, state] : states) trained.states.push_back(std::move(state));
  return trained;
}

StateReader reread(StateWriter writer) {
  std::stringstream stream;
  writer.write(stream);
  return StateReader(stream);
}

/// As it would have been saved before states had declarations.
StateReader undeclared(const StateReader& state) {
  StateWriter writer;
  for (const std::string& name : state.names("")) {
    if (!name.starts_with("kind/")) writer.copy(state, name);
  }
  return StateReader(std::move(writer));
}

TEST(OwnState, TheStateOfEverySortIsInUse) {
  const Trained trained = train("holder", 2);
  EXPECT_EQ(left_in(trained.states), trained.undelivered);
  for (const StateReader& state : trained.states) {
    const Values values = values_of(state);
    ASSERT_EQ(values.size(), 10u);  // the residual and four kinds of its own, of two parameters
    for (const auto& [name, list] : values) EXPECT_NE(list, std::vector<float>(list.size())) << name;
  }
  EXPECT_NE(values_of(trained.states[0])["own_speed/a"], values_of(trained.states[1])["own_speed/a"]);
}

TEST(OwnState, ComesBackFromACheckpointInOtherBuckets) {
  const Trained trained = train("holder", 2);
  run_in_process(2, [&](Communicator& communicator) {
    const StateReader& saved = trained.states[static_cast<std::size_t>(communicator.rank())];
    OneBucket same("holder", communicator);
    same.load(saved);
    EXPECT_EQ(values_of(state_of(same)), values_of(saved));
    Session regrouped("holder", communicator, {.registry = &registry()});
    regrouped.add_bucket({{"b", 2}});
    regrouped.add_bucket({{"a", 3}});
    regrouped.load(saved);
    EXPECT_EQ(values_of(state_of(regrouped)), values_of(saved));
    const std::vector<float> gradient = gradient_of(communicator.rank(), same.step());
    std::vector<float> a(gradient.begin(), gradient.begin() + 3), b(gradient.begin() + 3, gradient.end());
    regrouped.synchronize(0, b);
    regrouped.synchronize(1, a);
    a.insert(a.end(), b.begin(), b.end());
    EXPECT_EQ(a, step_of(same));
  });
}

TEST(OwnState, FollowsTheLossScaleWhereItIsInUnitsOfGradients) {
  const Trained trained = train("holder", 1);
  const Values before = values_of(trained.states[0]);
  run_in_process(1, [&](Communicator& communicator) {
    OneBucket session("holder", communicator);
    session.load(trained.states[0]);
    session.scale_state(4);
    Values expected = before;
    for (auto& [name, values] : expected) {
      for (float& value : values) value *= name.starts_with("own_count/") ? 1.0f : 4.0f;
    }
    EXPECT_EQ(values_of(state_of(session)), expected);
    EXPECT_EQ(values_of(StateReader(scaled_state(undeclared(trained.states[0]), 4, registry()))), expected)
        << "saved without declarations";
    EXPECT_THROW(session.scale_state(INFINITY), std::invalid_argument);
  });
  // A registry without the system has the state's own word.
  const Registry other;
  EXPECT_EQ(values_of(StateReader(scaled_state(trained.states[0], 4, other)))["own_speed/a"][0],
            4 * before.at("own_speed/a")[0]);
  EXPECT_EQ(values_of(StateReader(scaled_state(undeclared(trained.states[0]), 4, other)))["own_speed/a"],
            before.at("own_speed/a"));
}

TEST(OwnState, GoesToAnotherNumberOfRanks) {
  const Trained trained = train("holder", 4);
  std::vector<StateReader> old;
  for (const StateReader& state : trained.states) old.push_back(undeclared(state));
  for (const std::vector<StateReader>& states : {trained.states, old}) {
    const StateReader merged = reread(merged_state(states, registry()));
    const StateReader share = reread(shared_state(merged, 4, 2, registry()));
    Values speeds;
    for (const StateReader& state : trained.states) {
      for (auto& [name, values] : values_of(state)) {
        speeds[name].resize(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) speeds[name][i] += values[i] / 4;
      }
    }
    for (auto& [name, values] : values_of(share)) {
      if (name.starts_with("own_speed/")) {
        EXPECT_EQ(values, speeds[name]) << name;
      }
      const bool same = name.starts_with("own_size/") || name.starts_with("own_count/");
      if (same) {
        EXPECT_EQ(values, values_of(trained.states[0])[name]) << name;
      }
    }
    run_in_process(2, [&](Communicator& communicator) {
      OneBucket session("holder", communicator);
      session.load(share);
      EXPECT_EQ(session.step(), 3u);
      std::vector<float> left = left_in({state_of(session)});
      communicator.all_reduce_sum(left);
      EXPECT_EQ(left, trained.undelivered);
      step_of(session);
    });
  }
}

TEST(OwnState, ChangesTheSpecWithWhatMoves) {
  for (const std::string spec : {"releaser", "releaser:feedback=off", "plain"}) {
    const Trained trained = train("holder", 2);
    std::vector<float> undelivered = trained.undelivered;
    std::vector<StateReader> after(2, StateReader(StateWriter()));
    run_in_process(2, [&](Communicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      OneBucket session(spec, communicator);
      EXPECT_THROW(session.load(trained.states[rank]), std::runtime_error);
      session.take_over(trained.states[rank]);
      Values expected = values_of(trained.states[rank]);
      // Of the other kinds the next system knows own_held alone, and no other moves.
      std::erase_if(expected, [&](const auto& entry) {
        const bool held = entry.first.starts_with("own_held/") && spec != "plain";
        return !held && !entry.first.starts_with("residual/");
      });
      EXPECT_EQ(values_of(state_of(session)), expected) << spec;
      EXPECT_EQ(session.step(), 3u);
      step_of(session, rank == 0 ? &undelivered : nullptr);
      after[rank] = state_of(session);
    });
    // What a system holds back by itself and the next one does not know is lost; residuals never are.
    if (spec != "plain") {
      EXPECT_EQ(left_in(after), undelivered) << spec;
    }
    EXPECT_EQ(left_in(after), std::vector<float>(5)) << spec;
  }
}

TEST(OwnState, IsFittedToAnotherModel) {
  const StateReader state = train("holder", 1).states[0];
  const auto fitted = [&](const std::vector<Parameter>& model, const std::vector<std::string>& known) {
    return values_of(StateReader(state_for_model(state, model, known, registry())));
  };
  Values expected = values_of(state);
  EXPECT_EQ(fitted({{"a", 3}, {"b", 2}}, {"a", "b"}), expected);
  EXPECT_THROW(fitted({{"a", 4}, {"b", 2}}, {"a", "b"}), std::invalid_argument);
  std::erase_if(expected, [](const auto& entry) { return entry.first.ends_with("/b"); });
  EXPECT_EQ(fitted({{"a", 3}}, {"a", "b"}), expected);
  std::erase_if(expected, [](const auto& entry) {
    return entry.first.starts_with("own_size/") || entry.first.starts_with("own_count/");
  });
  for (const char* entry : {"residual/c", "own_held/c", "own_speed/c"}) expected[entry] = {0, 0};
  EXPECT_EQ(fitted({{"a", 3}, {"c", 2}}, {"a", "b"}), expected);
}

TEST(OwnState, AMergeWantsStatesThatFit) {
  EXPECT_THROW(merged_state({}, registry()), std::invalid_argument);
  StateWriter one, other;
  const std::vector<float> values = {1, 2, 3};
  one.put("residual/a", Span<const float>(values));
  other.put("residual/a", Span<const float>(values).first(2));
  std::vector<StateReader> states;
  states.emplace_back(std::move(one));
  states.emplace_back(std::move(other));
  EXPECT_THROW(merged_state(states, registry()), std::invalid_argument);
}

TEST(OwnState, AKindHasOneDeclaration) {
  Registry twice = own_state::registry();
  SystemInfo info = twice.find("holder");
  info.name = "another";
  EXPECT_NO_THROW(twice.add(info));
  info.name = "a third";
  info.state.front().moves = !info.state.front().moves;
  EXPECT_THROW(twice.add(info), std::invalid_argument);
}

}  // namespace
}  // namespace thinwire::own_state_test
