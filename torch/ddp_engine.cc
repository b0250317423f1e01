#include "torch/ddp_engine.h"

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <utility>

#include "torch/ddp_regroup.h"

namespace thinwire {
namespace {

C10dCommunicator& first_of(const std::vector<std::unique_ptr<C10dCommunicator>>& communicators) {
  if (communicators.empty()) throw std::invalid_argument("an engine of 0 lanes: at least 1 is needed");
  return *communicators.front();
}

std::runtime_error closed() {
  return std::runtime_error("Thinwire's engine was closed: register the model again");
}

}  // namespace

DdpEngine::DdpEngine(std::vector<std::unique_ptr<C10dCommunicator>> communicators,
                     const c10::intrusive_ptr<c10d_compat::Group>& device_group, const std::string& spec,
                     DdpOptions options)
    : options_(options), sessions_(board_, lanes_, canonical(spec, first_of(communicators)), options) {
  // Lanes are threads: they come when nothing throws any more.
  std::vector<std::unique_ptr<TensorSession>> tensor_sessions;
  for (auto& communicator : communicators) {
    tensor_sessions.push_back(std::make_unique<TensorSession>(std::move(communicator), options_.threads));
  }
  for (auto& tensor_session : tensor_sessions) {
    lanes_.push_back(std::make_unique<DdpLane>(board_, std::move(tensor_session)));
    if (!device_group) continue;
    lanes_.back()->tensor_session().communicator().set_device_group(
        device_group, [this, &lane = *lanes_.back()] { wait_for_turn(lane); });
  }
}

DdpEngine::~DdpEngine() {
  close();
  const KeepCurrentDevice current;
  lanes_.clear();
}

void DdpEngine::close() {
  {
    const Lock lock(board_.mutex);
    if (board_.closed) return;
    board_.closed = true;
    board_.changed.notify_all();
  }
  for (auto& lane : lanes_) lane->join();
  for (DdpItem& item : std::exchange(held_, {})) {
    item.done({}, std::make_exception_ptr(std::runtime_error("Thinwire's engine was closed")));
  }
  // Each waits a little for the other ranks to come to this point: all at the same time.
  std::vector<std::thread> leaving;
  for (auto& lane : lanes_) leaving.emplace_back([&lane] { lane->tensor_session().leave(); });
  for (auto& thread : leaving) thread.join();
}

/// Why there are no more steps; null where there are.
std::exception_ptr DdpEngine::refusal() const {
  if (board_.failure) return board_.failure;
  return board_.closed ? std::make_exception_ptr(closed()) : nullptr;
}

void DdpEngine::submit(DdpBucket bucket, DdpDone done) {
  const DdpLayout layout = layout_of(bucket, options_.devices_compress);
  if (!bucket.gradient.device().is_cpu()) bucket.complete = Completion(bucket.gradient.device());
  Lock lock(board_.mutex);
  if (const auto error = refusal()) {
    lock.unlock();
    done({}, error);
    return;
  }
  if (bucket.index == 0) begin_step(lock);
  const bool last = bucket.last;
  const std::size_t index = bucket.index;
  // DDP groups parameters anew in its second step. Where a step may have to be undone, nothing of it may be
  // done before it is known whether it does.
  const bool may_be_undone = options_.skips_steps && submitted_steps_ < 2;
  const auto& layouts = sessions_.layouts();
  const bool known = !may_be_undone && held_.empty() && index < layouts.size() && layouts[index] == layout;
  DdpItem item{std::move(bucket), std::move(done)};
  if (known) {
    push(std::move(item));
  } else {
    held_.push_back(std::move(item));
  }
  if (!last) return;
  if (!held_.empty() || index + 1 != layouts.size()) take_held(lock, index + 1);
  end_step();
}

/// At a step's last bucket: makes sessions for its `count` buckets, where these are others than before, and
/// lets the held ones go.
void DdpEngine::take_held(Lock& lock, std::size_t count) {
  settle(lock);
  try {
    const std::size_t first = count - held_.size();
    const auto& known = sessions_.layouts();
    std::vector<DdpLayout> layouts(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(first));
    for (const DdpItem& held : held_) layouts.push_back(layout_of(held.bucket, options_.devices_compress));
    if (resumes_) {
      std::vector<DdpLayout> resumed = sessions_.resumed_layouts(layouts);
      auto items = resumed == layouts ? std::vector<DdpItem>() : regrouped(held_, resumed, first);
      if (!items.empty()) {
        held_ = std::move(items);
        layouts = std::move(resumed);
      }
    }
    if (layouts != known) sessions_.rebuild(std::move(layouts), sessions_.spec());
  } catch (...) {
    board_.fail(std::current_exception());
  }
  for (DdpItem& held : std::exchange(held_, {})) push(std::move(held));
}

void DdpEngine::begin_step(Lock& lock) {
  give_up_step(lock);
  try {
    conclude_step(lock);
    within_step_ = true;
    if (next_spec_) sessions_.set_spec(*next_spec_);
    next_spec_.reset();
  } catch (...) {
    // No memory for another system's state: ranks that wait for this one's frames learn of it when it ends.
    board_.fail(std::current_exception());
  }
}

/// Ends a step whose last bucket never came, since its backward was given up, and fails what was held back of
/// it.
void DdpEngine::give_up_step(Lock& lock) {
  if (!within_step_) return;
  std::vector<DdpItem> abandoned = std::exchange(held_, {});
  end_step();
  lock.unlock();
  const auto error =
      std::make_exception_ptr(std::runtime_error("backward ended before the last bucket of its step"));
  for (DdpItem& item : abandoned) item.done({}, error);
  lock.lock();
}

/// Waits for the last step; where it is left out by the optimizer, so is what it delivered.
void DdpEngine::conclude_step(Lock& lock) {
  settle(lock);
  const bool finite = std::exchange(board_.finite, true);
  if (!finite && options_.skips_steps) sessions_.undo_step();
}

void DdpEngine::end_step() {
  for (auto& lane : lanes_) lane->push_end_of_step();
  sessions_.end_step();
  ++submitted_steps_;
  resumes_ = false;
  within_step_ = false;
  board_.changed.notify_all();
}

void DdpEngine::push(DdpItem item) {
  lanes_[item.bucket.index % lanes_.size()]->push(std::move(item));
  board_.changed.notify_all();
}

/// Returns when every lane is idle.
void DdpEngine::settle(Lock& lock) {
  board_.changed.wait(lock, [&] {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->is_idle(); });
  });
}

/// Returns when no bucket before the one on this lane is on another; for the lane's own thread.
void DdpEngine::wait_for_turn(const DdpLane& lane) {
  Lock lock(board_.mutex);
  board_.changed.wait(lock, [&] {
    return board_.failure || std::none_of(lanes_.begin(), lanes_.end(),
                                          [&](const auto& other) { return other->is_before(lane.bucket()); });
  });
  // The bucket before may have failed on this rank alone; its operations would be missing.
  if (board_.failure) std::rethrow_exception(board_.failure);
}

std::string DdpEngine::canonical(const std::string& spec, Communicator& communicator) const {
  return Session(spec, communicator, {.registry = options_.registry}).spec();
}

void DdpEngine::set_spec(const std::string& spec) {
  const Lock lock(board_.mutex);
  if (board_.closed) throw closed();
  next_spec_ = canonical(spec, lanes_[0]->tensor_session().communicator());
}

std::string DdpEngine::spec() const {
  const Lock lock(board_.mutex);
  return next_spec_.value_or(sessions_.spec());
}

std::uint64_t DdpEngine::step() const {
  const Lock lock(board_.mutex);
  return sessions_.step();
}

std::string DdpEngine::report() const {
  const Lock lock(board_.mutex);
  std::string buckets;
  StepReport last;
  for (const StepReport& report : board_.reports) {
    buckets += (buckets.empty() ? "" : ", ") + to_json(report);
    last.accumulate(report);
  }
  return "{\"buckets\": [" + buckets + "], \"last_step\": " + sums_to_json(last) +
         ", \"total\": " + sums_to_json(board_.total) + "}";
}

std::vector<DdpLayout> DdpEngine::buckets() const {
  const Lock lock(board_.mutex);
  std::vector<DdpLayout> buckets = sessions_.layouts();
  for (std::size_t i = 0; i < buckets.size(); ++i) buckets[i].device = sessions_.device(i);
  return buckets;
}

void DdpEngine::scale_state(float factor) {
  Lock lock(board_.mutex);
  give_up_step(lock);
  conclude_step(lock);
  try {
    sessions_.scale_state(factor);
  } catch (...) {
    // Some of the state may have the new scale already.
    board_.fail(std::current_exception());
    throw;
  }
}

std::vector<std::uint64_t> DdpEngine::gather(std::uint64_t mine) {
  Lock lock(board_.mutex);
  if (const auto error = refusal()) std::rethrow_exception(error);
  settle(lock);
  lock.unlock();
  // The lanes are idle, and nobody but this thread gives them anything to do.
  Communicator& communicator = lanes_[0]->tensor_session().communicator();
  std::vector<std::uint64_t> all(static_cast<std::size_t>(communicator.size()));
  try {
    communicator.all_gather(as_bytes(Span<const std::uint64_t>(&mine, 1)),
                            as_writable_bytes(Span<std::uint64_t>(all)));
  } catch (...) {
    lock.lock();
    board_.fail(std::current_exception());
    throw;
  }
  return all;
}

StateWriter DdpEngine::save() {
  Lock lock(board_.mutex);
  give_up_step(lock);
  conclude_step(lock);
  return sessions_.save();
}

void DdpEngine::load(StateReader state) {
  Lock lock(board_.mutex);
  if (board_.closed) throw closed();
  give_up_step(lock);
  conclude_step(lock);
  resumes_ = sessions_.load(std::move(state));
  // Buckets may change in the second step from here, as they do in a process's.
  submitted_steps_ = 0;
}

}  // namespace thinwire
