#include "torch/ddp_sessions.h"

#include <stdexcept>
#include <utility>

#include "thinwire/state_changes.h"
#include "torch/device_staging.h"

namespace thinwire {

std::uint64_t DdpSessions::step() const {
  return loaded_ ? loaded_->get_integer("step") : step_;
}

std::optional<int> DdpSessions::device(std::size_t bucket) const {
  const DdpLayout& layout = layouts_[bucket];
  const bool may = layout.compressible && !layout.row_sparse;
  return may ? lanes_[bucket % lanes_.size()]->tensor_session().device() : std::nullopt;
}

/// The one on which a session can compress all of a lane's dense buckets, if there is one.
std::optional<int> DdpSessions::common_device(const std::vector<DdpLayout>& layouts, std::size_t lane) const {
  std::optional<int> device;
  for (std::size_t index = lane; index < layouts.size(); index += lanes_.size()) {
    const DdpLayout& layout = layouts[index];
    if (!layout.compressible || layout.row_sparse) continue;
    if (!layout.device || (device && device != layout.device)) return std::nullopt;
    device = layout.device;
  }
  return device;
}

DdpSessions::Made DdpSessions::make(const std::vector<DdpLayout>& layouts, const std::string& spec,
                                    std::size_t lane) const {
  Made made;
  made.device = common_device(layouts, lane);
  const std::string place = "lane " + std::to_string(lane) + " of " + std::to_string(lanes_.size()) +
                            ", compressed on " + (made.device ? "a CUDA device" : "the CPU");
  made.session = std::make_unique<Session>(spec, lanes_[lane]->tensor_session().communicator(),
                                           SessionOptions{.seed = options_.seed,
                                                          .threads = options_.threads,
                                                          .cuda_device = made.device,
                                                          .configuration = place,
                                                          .registry = options_.registry,
                                                          .undoes_steps = options_.skips_steps});
  for (std::size_t index = 0; index < layouts.size(); ++index) {
    const DdpLayout& layout = layouts[index];
    // Ids count over all lanes: randomness depends on them.
    if (index % lanes_.size() != lane || !layout.compressible) {
      made.session->add_bucket({});
    } else if (layout.row_sparse) {
      made.session->add_rows(layout.parameters[0].name, layout.rows, layout.width);
    } else {
      made.session->add_bucket(layout.parameters);
    }
  }
  return made;
}

void DdpSessions::rebuild(std::vector<DdpLayout> layouts, const std::string& spec) {
  const KeepCurrentDevice current;
  std::optional<StateReader> saved;
  if (!loaded_ && have_sessions()) saved.emplace(save_sessions());
  const StateReader* state = loaded_ ? &*loaded_ : saved ? &*saved : nullptr;
  std::vector<Made> made;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    made.push_back(make(layouts, spec, lane));
    Session& session = *made.back().session;
    if (state == nullptr) {
      while (session.step() < step_) session.next_step();
    } else if (state->get_text("spec") == session.spec()) {
      session.load(*state);
    } else {
      session.take_over(*state);
    }
  }
  // From here on nothing throws.
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane]->tensor_session().set(std::move(made[lane].session), made[lane].device);
  }
  step_ = lanes_[0]->session()->step();
  spec_ = lanes_[0]->session()->spec();
  loaded_.reset();
  board_.reports.assign(layouts.size(), StepReport());
  layouts_ = std::move(layouts);
}

void DdpSessions::set_spec(const std::string& spec) {
  if (layouts_.empty()) {
    spec_ = spec;
  } else {
    rebuild(layouts_, spec);
  }
}

void DdpSessions::undo_step() {
  const KeepCurrentDevice current;
  for (const auto& lane : lanes_) {
    if (lane->session() != nullptr) lane->session()->undo_step();
  }
}

void DdpSessions::scale_state(float factor) {
  const KeepCurrentDevice current;
  if (loaded_) {
    loaded_.emplace(scaled_state(*loaded_, factor, *options_.registry));
    return;
  }
  for (const auto& lane : lanes_) {
    if (lane->session() != nullptr) lane->session()->scale_state(factor);
  }
}

StateWriter DdpSessions::save_sessions() const {
  StateWriter writer;
  for (const auto& lane : lanes_) {
    StateWriter own;
    lane->session()->save(own);
    writer.absorb(std::move(own));
  }
  return writer;
}

StateWriter DdpSessions::save() const {
  const KeepCurrentDevice current;
  StateWriter writer;
  if (loaded_) {
    for (const std::string& name : loaded_->names("")) writer.copy(*loaded_, name);
    return writer;
  }
  if (have_sessions()) {
    writer = save_sessions();
  } else {
    writer.put("spec", spec_);
    writer.put("seed", options_.seed);
    writer.put("step", step_);
  }
  save_layouts(layouts_, writer);
  return writer;
}

bool DdpSessions::load(StateReader state) {
  // What a session would refuse, said now although its buckets may not be known yet.
  if (const std::uint64_t seed = state.get_integer("seed");
      state.get_text("spec") == spec_ && seed != options_.seed) {
    throw std::runtime_error("the state was saved with seed " + std::to_string(seed) +
                             ", this engine has seed " + std::to_string(options_.seed) +
                             ": register with the same seed");
  }
  state.get_integer("step");
  auto before = std::exchange(loaded_, std::move(state));
  if (layouts_.empty()) return true;
  try {
    std::vector<DdpLayout> saved = saved_layouts(*loaded_, layouts_);
    const bool resumes = !saved.empty();
    rebuild(resumes ? std::move(saved) : layouts_, spec_);
    return resumes;
  } catch (...) {
    loaded_ = std::move(before);
    throw;
  }
}

std::vector<DdpLayout> DdpSessions::resumed_layouts(const std::vector<DdpLayout>& now) const {
  return loaded_ ? saved_layouts(*loaded_, now) : layouts_;
}

}  // namespace thinwire
