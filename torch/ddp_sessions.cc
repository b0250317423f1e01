#include "torch/ddp_sessions.h"

#include <algorithm>
#include <set>
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
    if (!layout.compressible || layout.row_sparse || layout.parameters.empty()) continue;
    if (!layout.device || (device && device != layout.device)) return std::nullopt;
    device = layout.device;
  }
  return device;
}

DdpSessions::Made DdpSessions::make(const std::vector<DdpLayout>& layouts, const std::string& spec,
                                    const std::string& occasion, std::size_t lane) const {
  Made made;
  made.device = common_device(layouts, lane);
  const auto sharing = static_cast<int>(std::clamp<std::size_t>(layouts.size(), 1, lanes_.size()));
  const std::string place = "lane " + std::to_string(lane) + " of " + std::to_string(lanes_.size()) +
                            ", compressed on " + (made.device ? "a CUDA device" : "the CPU");
  made.session = std::make_unique<Session>(spec, lanes_[lane]->tensor_session().communicator(),
                                           SessionOptions{.seed = options_.seed,
                                                          .threads = options_.threads,
                                                          .cuda_device = made.device,
                                                          .configuration = place,
                                                          .occasion = occasion,
                                                          .registry = options_.registry,
                                                          .reduce_scatter = options_.reduce_scatter,
                                                          .sharing = sharing,
                                                          .ranks_per_host = options_.ranks_per_host});
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

namespace {

/// The parameter whose entry this is; empty for what belongs to none.
std::string parameter_of(const std::string& entry) {
  const auto slash = entry.find('/');
  const bool of_none = slash == std::string::npos || entry.starts_with("kind/");
  return of_none ? std::string() : entry.substr(slash + 1);
}

}  // namespace

/// A state that these sessions can load: parameters that have not come before have no residual, which is one
/// of zeros. `waiting` gets what belongs to parameters in none of the buckets.
StateReader DdpSessions::fitted(const StateReader& state, const std::vector<DdpLayout>& layouts,
                                const std::vector<Made>& made, StateWriter& waiting) const {
  std::set<std::string> known;
  StateWriter writer;
  for (std::size_t index = 0; index < layouts.size(); ++index) {
    const DdpLayout& layout = layouts[index];
    const Session& session = *made[index % made.size()].session;
    const bool feedback = session.pipeline(static_cast<BucketId>(index)).feedback && layout.compressible;
    for (const Parameter& parameter : layout.parameters) known.insert(parameter.name);
    for (const Parameter& parameter : session.layout(static_cast<BucketId>(index))) {
      const std::string entry = std::string(kResidual.name) + "/" + parameter.name;
      if (!feedback || state.contains(entry)) continue;
      const std::vector<float> zeros(parameter.elements);
      writer.put(entry, Span<const float>(zeros));
    }
  }
  for (const std::string& name : state.names("")) {
    const std::string parameter = parameter_of(name);
    if (parameter.empty() || known.contains(parameter)) {
      writer.copy(state, name);
      if (name.starts_with("kind/")) waiting.copy(state, name);
    } else if (!is_layout_entry(name)) {
      waiting.copy(state, name);
    }
  }
  return StateReader(std::move(writer));
}

/// Loads into new sessions what the old ones have, or what was loaded. Returns what waits.
StateWriter DdpSessions::move_state(const std::vector<DdpLayout>& layouts, std::vector<Made>& made) const {
  StateWriter waiting;
  std::optional<StateReader> before;
  std::optional<StateReader> now;  // where the step is under way
  if (loaded_) {
    before.emplace(fitted(*loaded_, layouts, made, waiting));
  } else if (have_sessions()) {
    const bool within =
        std::ranges::any_of(lanes_, [](const auto& lane) { return lane->session()->within_step(); });
    if (within) {
      StateWriter same;
      now.emplace(fitted(StateReader(save_sessions(Moment::within_step)), layouts, made, same));
      for (const auto& lane : lanes_) lane->session()->undo_step();
    }
    before.emplace(fitted(StateReader(save_sessions(Moment::between_steps)), layouts, made, waiting));
  }
  for (const Made& one : made) {
    Session& session = *one.session;
    if (!before) {
      while (session.step() < step_) session.next_step();
    } else if (before->get_text("spec") == session.spec()) {
      session.load(*before);
      if (now) session.load_within_step(*now);
    } else {
      session.set_learning_rate(board_.learning_rate);
      session.take_over(*before);
    }
    if (loaded_) {
      for (std::uint64_t i = 0; i < passed_over_; ++i) session.next_step(false);
    }
  }
  return waiting;
}

void DdpSessions::rebuild(std::vector<DdpLayout> layouts, const std::string& spec,
                          const std::string& occasion) {
  const KeepCurrentDevice current;
  std::vector<Made> made;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    made.push_back(make(layouts, spec, have_sessions() ? occasion : "", lane));
  }
  StateReader waiting(move_state(layouts, made));
  std::vector<StepReport> reports(layouts.size());
  const bool took_steps = have_sessions() && !loaded_ && step_ > laid_out_at_;
  std::vector<DdpLayout> of_whole_step = loaded_      ? std::vector<DdpLayout>()
                                         : took_steps ? layouts_
                                                      : of_whole_step_;
  // From here on nothing throws.
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane]->tensor_session().set(std::move(made[lane].session), made[lane].device);
  }
  step_ = lanes_[0]->session()->step();
  spec_ = lanes_[0]->session()->spec();
  loaded_.reset();
  passed_over_ = 0;
  waiting_ = std::move(waiting);
  board_.reports = std::move(reports);
  layouts_ = std::move(layouts);
  of_whole_step_ = std::move(of_whole_step);
  laid_out_at_ = step_;
}

void DdpSessions::pass_over_step(bool others_have_sessions) {
  if (!loaded_ && have_sessions()) {
    for (const auto& lane : lanes_) lane->session()->next_step(false);
    ++step_;
  } else if (others_have_sessions) {
    ++(loaded_ ? passed_over_ : step_);
  }
}

void DdpSessions::set_spec(const std::string& spec) {
  if (layouts_.empty()) {
    spec_ = spec;
  } else {
    rebuild(layouts_, spec, "has called handle.set()");
  }
}

void DdpSessions::scale_state(float factor) {
  const KeepCurrentDevice current;
  if (loaded_) {
    loaded_.emplace(scaled_state(*loaded_, factor, *options_.registry));
    return;
  }
  if (!have_sessions()) return;
  StateReader waiting(scaled_state(waiting_, factor, *options_.registry));
  // Each session scales all of its state or none. A lane that fails has those before it scaled back to what
  // they had, to the bit.
  std::vector<StateReader> before;
  try {
    for (const auto& lane : lanes_) {
      StateWriter own;
      lane->session()->save(own);
      before.emplace_back(std::move(own));
      lane->session()->scale_state(factor);
    }
  } catch (...) {
    for (std::size_t lane = 0; lane < before.size(); ++lane) lanes_[lane]->session()->load(before[lane]);
    throw;
  }
  waiting_ = std::move(waiting);
}

/// Of all lanes, and of what waits.
StateWriter DdpSessions::save_sessions(Moment moment) const {
  StateWriter writer;
  for (const auto& lane : lanes_) {
    StateWriter own;
    if (moment == Moment::within_step) {
      lane->session()->save_within_step(own);
    } else {
      lane->session()->save(own);
    }
    writer.absorb(std::move(own));
  }
  StateWriter waiting;
  for (const std::string& name : waiting_.names("")) waiting.copy(waiting_, name);
  writer.absorb(std::move(waiting));
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
    writer = save_sessions(Moment::between_steps);
  } else {
    writer.put("spec", spec_);
    writer.put("seed", options_.seed);
    writer.put("step", step_);
    if (options_.ranks_per_host != 1) {
      writer.put("ranks_per_host", static_cast<std::uint64_t>(options_.ranks_per_host));
    }
  }
  const bool took_steps = step_ > laid_out_at_ || of_whole_step_.empty();
  save_layouts(took_steps ? layouts_ : of_whole_step_, writer);
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
  require_same_hosts(state, options_.ranks_per_host);
  auto before = std::exchange(loaded_, std::move(state));
  const std::uint64_t passed_over = std::exchange(passed_over_, 0);
  if (layouts_.empty()) return true;
  try {
    std::vector<DdpLayout> saved = saved_layouts(*loaded_, layouts_);
    const bool resumes = !saved.empty();
    rebuild(resumes ? std::move(saved) : layouts_, spec_, "has loaded a state");
    return resumes;
  } catch (...) {
    loaded_ = std::move(before);
    passed_over_ = passed_over;
    throw;
  }
}

std::vector<DdpLayout> DdpSessions::resumed_layouts(const std::vector<DdpLayout>& now) const {
  return loaded_ ? saved_layouts(*loaded_, now) : layouts_;
}

}  // namespace thinwire
