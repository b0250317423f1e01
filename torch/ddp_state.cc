// What DdpEngine keeps from step to step: its sessions, made anew when buckets or the spec change, and the
// state that moves from one to the next, into checkpoints and back.

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "torch/ddp_lane.h"

namespace thinwire {
namespace {

std::string residual_entry(const std::string& parameter) {
  return "residual/" + parameter;
}

/// Kinds of values in units of gradients. Everything else that systems keep is relative, or about time.
bool in_units_of_gradients(std::string_view name) {
  constexpr std::array<std::string_view, 6> kKinds = {"residual",     "velocity",           "casq_momentum",
                                                      "casq_centres", "casq_shard_centres", "marsit_eta"};
  return std::find(kKinds.begin(), kKinds.end(), name.substr(0, name.find('/'))) != kKinds.end();
}

/// The same state, what is in units of gradients times `factor`.
StateWriter rewritten(const StateReader& state, float factor) {
  StateWriter writer;
  for (const std::string& name : state.names("")) {
    switch (state.type(name)) {
      case StateReader::Type::floats: {
        std::vector<float> values(state.length(name));
        state.get(name, values);
        if (in_units_of_gradients(name)) {
          for (float& value : values) value *= factor;
        }
        writer.put(name, Span<const float>(values));
        break;
      }
      case StateReader::Type::integer:
        writer.put(name, state.get_integer(name));
        break;
      case StateReader::Type::real:
        writer.put(name, state.get_real(name));
        break;
      case StateReader::Type::text:
        writer.put(name, std::string_view(state.get_text(name)));
        break;
    }
  }
  return writer;
}

}  // namespace

StateWriter DdpEngine::merged_state() const {
  StateWriter writer;
  for (const auto& lane : lanes_) {
    StateWriter own;
    if (lane->session) lane->session->save(own);
    writer.absorb(std::move(own));
  }
  return writer;
}

/// The one on which a session can compress all of a lane's dense buckets, if there is one.
std::optional<int> DdpEngine::device_of_lane(const std::vector<Layout>& layouts, std::size_t lane) const {
  std::optional<int> device;
  for (std::size_t index = lane; index < layouts.size(); index += lanes_.size()) {
    const Layout& layout = layouts[index];
    if (!layout.compressible || layout.row_sparse) continue;
    if (!layout.device || (device && device != layout.device)) return std::nullopt;
    device = layout.device;
  }
  return device;
}

/// Sessions for these buckets; lanes must be idle. Moves over what the old sessions, or a loaded state, hold.
/// An exception leaves everything as it was.
void DdpEngine::rebuild(std::vector<Layout> layouts, const std::string& spec) {
  const KeepCurrentDevice current;
  std::optional<StateReader> state;
  auto owed = owed_;
  std::uint64_t step = step_;
  if (loaded_) {
    state = *loaded_;
    owed.clear();
    step = state->get_integer("step");
  } else if (lanes_[0]->session) {
    state.emplace(merged_state());
  }
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::optional<int>> devices;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    devices.push_back(device_of_lane(layouts, lane));
    sessions.push_back(std::make_unique<Session>(
        spec, *lanes_[lane]->communicator,
        SessionOptions{.seed = options_.seed,
                       .threads = options_.threads,
                       .cuda_device = devices.back(),
                       .configuration = "lane " + std::to_string(lane) + " of " +
                                        std::to_string(lanes_.size()) + ", compressed on " +
                                        (devices.back() ? "a CUDA device" : "the CPU")}));
    Session& session = *sessions.back();
    for (std::size_t index = 0; index < layouts.size(); ++index) {
      const Layout& layout = layouts[index];
      // Ids count over all lanes: randomness depends on them.
      if (index % lanes_.size() != lane || !layout.compressible) {
        session.add_bucket({});
      } else if (layout.row_sparse) {
        session.add_rows(layout.parameters[0].name, layout.rows, layout.width);
      } else {
        session.add_bucket(layout.parameters);
      }
    }
    if (state && state->get_text("spec") == session.spec()) session.load(*state);
  }
  // What the sessions did not load: residuals of another spec, or of one that has none.
  for (std::size_t index = 0; index < layouts.size(); ++index) {
    Session& session = *sessions[index % lanes_.size()];
    const auto id = static_cast<BucketId>(index);
    const bool feedback = session.pipeline(id).feedback;
    const bool loaded = feedback && state && state->get_text("spec") == session.spec();
    std::vector<float> owing(layouts[index].compressible && feedback ? layouts[index].elements() : 0);
    std::size_t begin = 0;
    bool owes = false;
    for (const Parameter& parameter : layouts[index].parameters) {
      auto& sum = owed[parameter.name];
      const std::string entry = residual_entry(parameter.name);
      if (!loaded && state && state->contains(entry)) {
        std::vector<float> values(parameter.elements);
        state->get(entry, values);
        sum.resize(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
      }
      if (owing.empty()) continue;
      owes = owes || !sum.empty();
      std::copy(sum.begin(), sum.end(), owing.begin() + static_cast<std::ptrdiff_t>(begin));
      sum.clear();
      begin += parameter.elements;
    }
    if (owes) session.add_to_residual(id, owing);
  }
  // From here on nothing throws.
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    while (sessions[lane]->step() < step) sessions[lane]->next_step();
    lanes_[lane]->session = std::move(sessions[lane]);
    lanes_[lane]->session_device = devices[lane];
    lanes_[lane]->staging.clear();
    lanes_[lane]->kept.clear();
    lanes_[lane]->kept_owed.clear();
  }
  step_ = step;
  loaded_.reset();
  owed_ = std::move(owed);
  reports_.assign(layouts.size(), StepReport());
  layouts_ = std::move(layouts);
  spec_ = lanes_[0]->session->spec();
}

void DdpEngine::scale_state(float factor) {
  if (!std::isfinite(factor)) throw std::invalid_argument("a state times a factor that is not finite");
  Lock lock(mutex_);
  conclude_step(lock);
  if (loaded_) {
    loaded_.emplace(rewritten(*loaded_, factor));
  } else if (!layouts_.empty()) {
    const KeepCurrentDevice current;
    loaded_.emplace(rewritten(StateReader(whole_state()), factor));
    rebuild(layouts_, spec_);
  }
}

StateWriter DdpEngine::save() {
  Lock lock(mutex_);
  conclude_step(lock);
  const KeepCurrentDevice current;
  return whole_state();
}

StateWriter DdpEngine::whole_state() const {
  if (loaded_) return rewritten(*loaded_, 1.0f);
  StateWriter writer = merged_state();
  if (!lanes_[0]->session) {
    writer.put("spec", spec_);
    writer.put("seed", options_.seed);
    writer.put("step", step_);
  }
  save_layouts(layouts_, writer);
  for (const auto& [name, values] : owed_) {
    if (!values.empty()) writer.put(residual_entry(name), Span<const float>(values));
  }
  return writer;
}

void DdpEngine::load(StateReader state) {
  Lock lock(mutex_);
  if (closed_) throw std::runtime_error("Thinwire's engine was closed: register the model again");
  give_up_step(lock);
  conclude_step(lock);
  // What a session would refuse, said now although its buckets may not be known yet.
  if (const std::uint64_t seed = state.get_integer("seed");
      state.get_text("spec") == spec_ && seed != options_.seed) {
    throw std::runtime_error("the state was saved with seed " + std::to_string(seed) +
                             ", this engine has seed " + std::to_string(options_.seed) +
                             ": register with the same seed");
  }
  state.get_integer("step");
  auto before = std::exchange(loaded_, std::move(state));
  bool resumes = true;
  if (!layouts_.empty()) {
    try {
      std::vector<Layout> saved = saved_layouts(*loaded_, layouts_);
      resumes = !saved.empty();
      rebuild(resumes ? std::move(saved) : layouts_, spec_);
    } catch (...) {
      loaded_ = std::move(before);
      throw;
    }
  }
  resumes_ = resumes;
  // Buckets may change in the second step from here, as they do in a process's.
  submitted_steps_ = 0;
}

}  // namespace thinwire
