#include "torch/ddp_engine.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/fault_note.h"
#include "exchange/collectives.h"
#include "torch/ddp_regroup.h"

namespace thinwire {
namespace {

C10dCommunicator& first_of(const std::vector<std::unique_ptr<C10dCommunicator>>& communicators) {
  if (communicators.empty()) throw std::invalid_argument("an engine of 0 lanes: at least 1 is needed");
  return *communicators.front();
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception without a text";
  }
}

std::runtime_error closed() {
  return std::runtime_error("Thinwire's engine was closed: register the model again");
}

}  // namespace

/// The lock for calls that give lanes work, which are told when it is released.
class DdpEngine::LockThatWakes {
 public:
  explicit LockThatWakes(DdpEngine& engine) : engine_(engine), lock_(engine.board_.mutex) {}
  LockThatWakes(const LockThatWakes&) = delete;
  LockThatWakes& operator=(const LockThatWakes&) = delete;
  ~LockThatWakes() {
    if (lock_.owns_lock()) lock_.unlock();
    engine_.wake_lanes();
  }
  operator Lock&() { return lock_; }

 private:
  DdpEngine& engine_;
  Lock lock_;
};

DdpEngine::DdpEngine(std::vector<std::unique_ptr<C10dCommunicator>> communicators,
                     const c10::intrusive_ptr<c10d_compat::Group>& device_group, const std::string& spec,
                     DdpOptions options)
    : options_(options), sessions_(board_, lanes_, canonical(spec, first_of(communicators)), options) {
  // Lanes are threads: they come when nothing throws any more.
  std::vector<std::unique_ptr<TensorSession>> tensor_sessions;
  const auto signs = std::make_shared<FaultBoard::Signs>(0);
  for (auto& communicator : communicators) {
    communicator->share_signs(signs);
    communicator->set_early_sums(true);  // after any failure it is used no more
    tensor_sessions.push_back(std::make_unique<TensorSession>(std::move(communicator), options_.threads));
  }
  board_.tell = [this](const Verdict& verdict) {
    board_.told = verdict;
    for (auto& lane : lanes_) lane->tensor_session().communicator().tell(verdict);
  };
  lanes_.reserve(tensor_sessions.size());
  for (auto& tensor_session : tensor_sessions) {
    try {
      lanes_.push_back(std::make_unique<DdpLane>(board_, lanes_.size(), std::move(tensor_session)));
    } catch (const std::system_error&) {
      close();  // this process has no more threads; those that run are waited for
      throw;
    }
    DdpLane& lane = *lanes_.back();
    auto& communicator = lane.tensor_session().communicator();
    communicator.set_turns([this, &lane] { wait_for_turn(lane); }, [&lane] { lane.end_turn(); });
    if (device_group) communicator.set_device_group(device_group);
  }
}

DdpEngine::~DdpEngine() {
  close();
  const KeepCurrentDevice current;
  lanes_.clear();
}

void DdpEngine::close(bool in_order) {
  {
    Lock lock(board_.mutex);
    if (board_.closed) return;
    // While lanes can still undo it: save() gives the state of the last whole step afterwards.
    give_up_step(lock);
    board_.closed = true;
    board_.changed.notify_all();
  }
  for (auto& lane : lanes_) lane->finish();
  for (auto& lane : lanes_) lane->join();
  // Each waits a little for the other ranks to come to this point: all at the same time. After a failure in
  // one lane nobody comes to the others; and where this rank gave up its step, they wait in that.
  in_order = in_order && !board_.failure;
  const bool together = !board_.failure && !gave_up_;
  // Others read on any lane's board why this rank has failed.
  std::atomic<bool> is_read = !told_own_failure_;
  std::vector<std::jthread> leaving;  // which read that
  leaving.reserve(lanes_.size());
  for (auto& lane : lanes_) {
    const auto leave = [&lane, &is_read, together, in_order] {
      if (!is_read) lane->tensor_session().communicator().stay(is_read);
      lane->tensor_session().leave(together, in_order);
    };
    try {
      leaving.emplace_back(leave);
    } catch (const std::system_error&) {
      leave();  // this process has no more threads
    }
  }
}

/// Why there are no more steps; null where there are.
std::exception_ptr DdpEngine::refusal() const {
  if (board_.failure) return board_.failure;
  return board_.closed ? std::make_exception_ptr(closed()) : nullptr;
}

void DdpEngine::submit(DdpBucket bucket, DdpDone done) {
  const DdpLayout layout = layout_of(bucket, options_.devices_compress);
  if (!bucket.gradient.device().is_cpu()) bucket.complete = Completion(bucket.gradient.device());
  LockThatWakes waking(*this);
  Lock& lock = waking;
  if (const auto error = refusal()) {
    fail_held(lock, error);
    lock.unlock();
    done({}, error);
    return;
  }
  const std::size_t index = bucket.index;
  if (!within_step_ || index <= last_index_) begin_step(lock);
  last_index_ = index;
  const bool last = bucket.last;
  const bool ends_step = last && !bucket.awaits_end;
  // DDP groups parameters anew in its second step. Nothing of a step is done before it is known whether it
  // does.
  const bool may_change = submitted_steps_ < 2;
  const auto& layouts = sessions_.layouts();
  const bool known = !may_change && held_.empty() && index < layouts.size() && layouts[index] == layout;
  const auto means = means_;
  const bool waits = means && bucket.gradient.device().is_cpu();
  DdpItem item{std::move(bucket), waits ? means->add(std::move(done)) : std::move(done)};
  if (known) {
    push(std::move(item));
  } else {
    held_.push_back(std::move(item));
  }
  if (last && (!held_.empty() || index + 1 != layouts.size())) take_held(lock, true);
  if (ends_step) end_step({});
  // What is done with a mean may wait for Python's lock.
  lock.unlock();
  if (means && last) means->all_were_added();
}

void DdpEngine::fail(const std::string& text) {
  Lock lock(board_.mutex);
  if (refusal()) return;
  fail_alone(std::make_exception_ptr(std::runtime_error(text)));
  fail_held(lock, board_.failure);
}

std::string DdpEngine::blame_lost_ranks() {
  Lock lock(board_.mutex);
  if (board_.closed) return {};  // lanes have no communicators any more
  give_up_step(lock);
  wake_lanes();
  C10dCommunicator& first = lanes_[0]->tensor_session().communicator();
  // A lane that finds a connection closed asks for so long.
  const bool are_idle = board_.changed.wait_for(lock, 5 * fault_grace(first.deadline()), [&] {
    return std::ranges::all_of(lanes_, [](const auto& lane) { return lane->is_idle(); });
  });
  if (board_.failure) return text_of(board_.failure);
  if (!are_idle) return {};
  lock.unlock();  // lanes are idle, and nobody gives them anything to do any more
  std::string text = first.blame_lost_ranks();
  lock.lock();
  if (text.empty()) return text;
  board_.fail(std::make_exception_ptr(std::runtime_error(text)));
  told_own_failure_ = true;  // this process ends, and the store with it
  board_.tell(first.verdict());
  return text;
}

Verdict DdpEngine::verdict() const {
  const Lock lock(board_.mutex);
  return board_.told;
}

void DdpEngine::tell_end() {
  const Lock lock(board_.mutex);
  if (!board_.closed) lanes_[0]->tensor_session().communicator().tell_end();
}

void DdpEngine::end_with(const Verdict& verdict) {
  Lock lock(board_.mutex);
  if (refusal()) return;
  board_.fail(std::make_exception_ptr(std::runtime_error("this process has ended: " + verdict.reason)));
  // As after an error of its own: the store may end with this process.
  told_own_failure_ = true;
  board_.tell(verdict);
  fail_held(lock, board_.failure);
}

bool DdpEngine::is_left_behind() const {
  const Lock lock(board_.mutex);
  return !refusal() && lanes_[0]->tensor_session().communicator().others_have_ended();
}

/// With the lock held: an error of this rank, which the others hear of, as they wait for its frames.
void DdpEngine::fail_alone(const std::exception_ptr& error) noexcept {
  if (board_.failure) return;
  board_.fail(error);
  told_own_failure_ = true;
  try {
    board_.tell(own_failure(lanes_[0]->tensor_session().communicator().rank(), text_of(error)));
  } catch (...) {
    // No memory. The others find out for themselves.
  }
}

bool DdpEngine::is_finite() const {
  const Lock lock(board_.mutex);
  return board_.finite;
}

void DdpEngine::last_bucket_was_submitted() {
  std::shared_ptr<StepMeans> means;
  {
    LockThatWakes lock(*this);
    if (within_step_ && !held_.empty()) take_held(lock, false);
    means = means_;
  }
  if (means) means->all_were_added();
}

void DdpEngine::end_backward(std::vector<std::string> unused) {
  LockThatWakes lock(*this);
  if (!within_step_) return;
  if (!held_.empty()) take_held(lock, false);
  DdpStepEnd end;
  end.unused = std::move(unused);
  end_step(std::move(end));
}

void DdpEngine::pass_over_step() {
  const Lock lock(board_.mutex);
  if (within_step_) return;
  gave_up_ = sent_nothing_ = true;
}

/// The buckets of this step at their places. complete: the last one has come, so that there are no more.
std::vector<DdpLayout> DdpEngine::layouts_with_held(bool complete) const {
  std::vector<DdpLayout> layouts = sessions_.layouts();
  std::set<std::string> moved;
  for (const DdpItem& held : held_) {
    const std::size_t index = held.bucket.index;
    if (index >= layouts.size()) layouts.resize(index + 1);
    layouts[index] = layout_of(held.bucket, options_.devices_compress);
    for (const Parameter& parameter : layouts[index].parameters) moved.insert(parameter.name);
  }
  if (complete) layouts.resize(last_index_ + 1);
  // Of buckets that are known and have not come: their parameters may be in others now.
  for (std::size_t index = 0; index < layouts.size(); ++index) {
    const bool came =
        std::ranges::any_of(held_, [&](const DdpItem& held) { return held.bucket.index == index; });
    if (came) continue;
    auto& parameters = layouts[index].parameters;
    const bool elsewhere = std::ranges::any_of(
        parameters, [&](const Parameter& parameter) { return moved.contains(parameter.name); });
    if (elsewhere) layouts[index] = DdpLayout();
  }
  return layouts;
}

/// When no more buckets of this step come: makes sessions for its buckets, where these are others than
/// before, and lets the held ones go. complete: the step's last bucket has come.
void DdpEngine::take_held(Lock& lock, bool complete) {
  settle(lock);
  try {
    std::vector<DdpLayout> layouts = layouts_with_held(complete);
    if (resumes_ && complete && held_.front().bucket.index + held_.size() == layouts.size()) {
      const std::size_t first = held_.front().bucket.index;
      std::vector<DdpLayout> resumed = sessions_.resumed_layouts(layouts);
      auto items = resumed == layouts ? std::vector<DdpItem>() : regrouped(held_, resumed, first);
      if (!items.empty()) {
        held_ = std::move(items);
        layouts = std::move(resumed);
      }
    }
    if (layouts != sessions_.layouts()) {
      sessions_.rebuild(std::move(layouts), sessions_.spec(), "has got other buckets from DDP");
    }
  } catch (...) {
    fail_alone(std::current_exception());
  }
  for (DdpItem& held : std::exchange(held_, {})) push(std::move(held));
}

void DdpEngine::wake_lanes() {
  for (auto& lane : lanes_) lane->wake();
}

void DdpEngine::begin_step(Lock& lock) {
  give_up_step(lock);
  try {
    conclude_step(lock);
    within_step_ = true;
    means_ = options_.means_together ? std::make_shared<StepMeans>() : nullptr;
    if (std::exchange(gave_up_, false)) sessions_.pass_over_step(std::exchange(sent_nothing_, false));
    if (next_spec_) sessions_.set_spec(*next_spec_);
    next_spec_.reset();
  } catch (...) {
    fail_alone(std::current_exception());
  }
}

/// Undoes a step that did not come to its end, since its backward was given up, and fails what was held back
/// of it.
void DdpEngine::give_up_step(Lock& lock) {
  if (!within_step_) return;
  DdpStepEnd end;
  end.abandoned = true;
  end_step(std::move(end));
  fail_held(lock,
            std::make_exception_ptr(std::runtime_error("backward ended before the last bucket of its step")));
}

void DdpEngine::fail_held(Lock& lock, const std::exception_ptr& error) {
  std::vector<DdpItem> items = std::exchange(held_, {});
  const auto means = std::exchange(means_, nullptr);
  lock.unlock();
  for (DdpItem& item : items) item.done({}, error);
  if (means) means->fail(error);
  items.clear();  // what they hold may need Python's lock, whose holder may wait for this one
  lock.lock();
}

/// Waits for the last step, which then counts in all lanes or in none.
void DdpEngine::conclude_step(Lock& lock) {
  settle(lock);
  board_.finite = true;
  sessions_.take_step_of_lanes();
}

void DdpEngine::end_step(DdpStepEnd end) {
  end.lanes = lanes_.size();
  end.squares.resize(lanes_.size());
  end.first = lanes_[deciding_lane()].get();
  gave_up_ = end.abandoned;
  const bool is_quick = !end.abandoned && std::ranges::all_of(lanes_, [](const auto& lane) {
    return lane->is_idle() && lane->ends_at_once();
  });
  if (is_quick) {
    DdpLane::end_step(lanes_, end);
  } else {
    const auto shared = std::make_shared<DdpStepEnd>(std::move(end));
    for (auto& lane : lanes_) lane->push(shared);
  }
  if (!gave_up_) sessions_.end_step();
  ++submitted_steps_;
  resumes_ = false;
  within_step_ = false;
}

/// The lane of the first bucket that is no bucket of rows, which have a pipeline of their own, and of which
/// this rank has something.
std::size_t DdpEngine::deciding_lane() const {
  const auto& layouts = sessions_.layouts();
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    if (layouts[i].row_sparse || !layouts[i].compressible) continue;
    const std::size_t lane = i % lanes_.size();
    const Session* const session = lanes_[lane]->session();
    if (session != nullptr && !session->layout(static_cast<BucketId>(i)).empty()) return lane;
  }
  return 0;
}

void DdpEngine::push(DdpItem item) {
  lanes_[item.bucket.index % lanes_.size()]->push(std::move(item));
}

/// Returns when every lane is idle.
void DdpEngine::settle(Lock& lock) {
  wake_lanes();
  board_.changed.wait(
      lock, [&] { return std::ranges::all_of(lanes_, [](const auto& lane) { return lane->is_idle(); }); });
}

/// Returns when no bucket before the one on this lane is on another, or its turn has ended; for the lane's
/// own thread.
void DdpEngine::wait_for_turn(const DdpLane& lane) {
  Lock lock(board_.mutex);
  board_.changed.wait(lock, [&] {
    return board_.failure ||
           std::ranges::none_of(lanes_, [&](const auto& other) { return other->is_before(lane.bucket()); });
  });
  // The bucket before may have failed on this rank alone; its operations would be missing.
  if (board_.failure) std::rethrow_exception(board_.failure);
}

std::string DdpEngine::canonical(const std::string& spec, Communicator& communicator) const {
  return Session(spec, communicator,
                 {.registry = options_.registry,
                  .reduce_scatter = options_.reduce_scatter,
                  .ranks_per_host = options_.ranks_per_host})
      .spec();
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

bool DdpEngine::variance_is_frozen() const {
  const std::string coming = spec();
  const Lock lock(board_.mutex);
  // The number of a step that was given up is passed over.
  const bool gave_up = gave_up_ || within_step_;
  return options_.registry->freezes_variance(coming, sessions_.step() + (gave_up ? 1 : 0));
}

std::uint64_t DdpEngine::step() const {
  const Lock lock(board_.mutex);
  return sessions_.step();
}

std::vector<thinwire::Change> DdpEngine::changes() {
  Lock lock(board_.mutex);
  settle(lock);
  return of_all_lanes(&Session::changes);
}

/// board_.mutex is held.
std::vector<thinwire::Change> DdpEngine::of_all_lanes(std::vector<Change> (Session::*get)() const) const {
  std::vector<Change> all;
  for (const auto& lane : lanes_) {
    if (lane->session() != nullptr) add_changes(all, (lane->session()->*get)());
  }
  // A lane may have come to the same by itself.
  for (auto one = all.begin(); one != all.end(); ++one)
    all.erase(std::remove(one + 1, all.end(), *one), all.end());
  return all;
}

std::uint64_t DdpEngine::times_changed() const {
  const Lock lock(board_.mutex);
  return board_.total.changes;
}

std::string DdpEngine::explain() {
  Lock lock(board_.mutex);
  settle(lock);
  // One decides for all lanes, but each guards its own buckets.
  return to_text(of_all_lanes(&Session::explanation));
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
  sessions_.scale_state(factor);
}

std::vector<std::string> DdpEngine::gather(std::string_view kind, std::string_view mine,
                                           std::size_t longest) {
  Lock lock(board_.mutex);
  if (const auto error = refusal()) std::rethrow_exception(error);
  settle(lock);
  const ExchangeCall call{.step = sessions_.step(), .kind = kind};
  lock.unlock();
  // The lanes are idle, and nobody but this thread gives them anything to do.
  try {
    return gather_bytes(lanes_[0]->tensor_session().communicator(), call, mine, longest);
  } catch (...) {
    lock.lock();
    lanes_[0]->fail(std::current_exception());
    throw;
  }
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
  gave_up_ = sent_nothing_ = false;
  // Buckets may change in the second step from here, as they do in a process's.
  submitted_steps_ = 0;
}

}  // namespace thinwire
