// A state whose checksum is right and whose entries are not: a session refuses it with an error and stays as
// it was, or loads it, goes on, and saves again. The same for what changes states as a whole.

#include <cmath>
#include <deque>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "fuzz/input.h"
#include "thinwire/in_process.h"
#include "thinwire/session.h"
#include "thinwire/state_changes.h"

namespace {

using namespace thinwire;
using thinwire::fuzz::require;

constexpr std::size_t kElements = 60;
/// Systems with state of every kind.
const std::vector<std::string> kSpecs = {"marsit:full_every=2",
                                         "casq:interval=1:double_momentum=0.5",
                                         "casq:scope=bucket:allocation=error",
                                         "alq:bits=3:feedback=on",
                                         "amq:bits=4:zero=off:every=1",
                                         "power_sgd:rank=1",
                                         "acp_sgd:rank=1",
                                         "dgc:ratio=0.1:clip=1:warmup_steps=2",
                                         "mc:momentum=0.5+block_top_k:ratio=0.5:block=10",
                                         "sketched_sgd:k=5:momentum=0.9",
                                         "top_k:k=5+zen:profile_steps=2",
                                         "ef_signsgd",
                                         "guard:every=8+power_sgd:rank=1",
                                         "auto:settle=0:rounds=1:steps=1",
                                         "one_bit_adam:freeze=1"};

std::string bytes_of(const StateWriter& writer) {
  std::ostringstream stream;
  writer.write(stream);
  return stream.str();
}

std::string saved(const Session& session) {
  StateWriter writer;
  session.save(writer);
  return bytes_of(writer);
}

void step(Session& session) {
  std::vector<float> gradient(kElements);
  for (std::size_t i = 0; i < kElements; ++i) {
    gradient[i] = static_cast<float>((i * 37 + session.step() * 11) % 64) / 16.0f - 2.0f;
  }
  session.synchronize(0, gradient);
  session.next_step();
}

/// Runs `body` with a session of one rank.
template <class Body>
void with_session(const std::string& spec, Body body) {
  run_in_process(1, [&](Communicator& communicator) {
    Session session(spec, communicator);
    session.add_bucket({{"a", 40, 4}, {"b", kElements - 40}});
    body(session);
  });
}

const std::string& honest_state(std::size_t spec) {
  static std::vector<std::string> states(kSpecs.size());
  if (states[spec].empty()) {
    with_session(kSpecs[spec], [&](Session& session) {
      step(session);
      step(session);
      states[spec] = saved(session);
    });
  }
  return states[spec];
}

/// One entry of a state becomes another.
struct Mutation {
  std::size_t entry;
  int kind;
  std::size_t at;
  std::uint32_t value;
};

void put_changed(StateWriter& writer, const StateReader& state, const std::string& name,
                 const Mutation& change) {
  float real = 0;
  std::memcpy(&real, &change.value, sizeof real);
  switch (state.type(name)) {
    case StateReader::Type::floats: {
      std::vector<float> values(state.length(name));
      state.get(name, values);
      if (change.kind == 0 && !values.empty()) values[change.at % values.size()] = real;
      if (change.kind == 1) values.resize(change.at % 100);
      if (change.kind == 2) std::fill(values.begin(), values.end(), real);
      return writer.put(name, Span<const float>(values));
    }
    case StateReader::Type::integer:
      return writer.put(name, change.kind == 0
                                  ? std::uint64_t{change.value}
                                  : state.get_integer(name) ^ (std::uint64_t{1} << change.at % 64));
    case StateReader::Type::real:
      return writer.put(name, static_cast<double>(real));
    case StateReader::Type::text: {
      std::string text = state.get_text(name);
      if (!text.empty()) text[change.at % text.size()] = static_cast<char>(change.value);
      return writer.put(name, std::string_view(text));
    }
  }
}

StateReader changed(const StateReader& state, const Mutation& change) {
  StateWriter writer;
  const auto names = state.names("");
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i != change.entry % names.size()) {
      writer.copy(state, names[i]);
    } else if (change.kind == 3) {
      writer.put(names[i], std::string_view("text"));
    } else if (change.kind == 4) {
      writer.put(names[i] + "x", 1.0);
    } else if (change.kind != 5) {
      put_changed(writer, state, names[i], change);
    }
  }
  return StateReader(std::move(writer));
}

/// Loads, goes on and saves; refusals leave the session as it was.
void load(const std::string& spec, const StateReader& state, bool takes_over) {
  with_session(spec, [&](Session& session) {
    step(session);
    const std::string before = saved(session);
    try {
      takes_over ? session.take_over(state) : session.load(state);
    } catch (const std::runtime_error&) {
      require(saved(session) == before);
      return;
    }
    try {
      step(session);
    } catch (const std::runtime_error&) {
      // What it loaded cannot be gone on with.
    }
    saved(session);
  });
}

void change_as_a_whole(const StateReader& state, const StateReader& other) {
  const Registry& registry = builtin_registry();
  try {
    (void)scaled_state(state, 0.5f, registry);
    std::vector<StateReader> ranks = {state, other};
    const StateReader merged(merged_state(ranks, registry));
    (void)shared_state(merged, 2, 3, registry);
    (void)state_for_model(merged, {{"a", 40, 4}, {"c", 7}}, {"a", "b"}, registry);
  } catch (const std::runtime_error&) {
  } catch (const std::invalid_argument&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::size_t spec = input.take<std::uint8_t>() % kSpecs.size();
  const auto mode = input.take<std::uint8_t>();
  std::istringstream stream(honest_state(spec));
  const StateReader honest(stream);
  StateReader state = honest;
  for (int changes = 0; changes < 3 && !input.empty(); ++changes) {
    Mutation change{};
    change.entry = input.take<std::uint8_t>();
    change.kind = input.take<std::uint8_t>() % 6;
    change.at = input.take<std::uint8_t>();
    change.value = input.take<std::uint32_t>();
    try {
      state = changed(state, change);
    } catch (const std::invalid_argument&) {
      // A name that stands in it already.
    }
  }
  if (mode % 3 == 2) {
    change_as_a_whole(state, honest);
  } else {
    load(kSpecs[mode % 3 == 0 ? spec : (spec + mode / 3) % kSpecs.size()], state, mode % 3 == 1);
  }
  return 0;
}
