#include "torch/ddp_lane.h"

#include <numeric>
#include <utility>

#include "thinwire/errors.h"

namespace thinwire {

Verdict own_failure(int rank, const std::string& text) {
  return {.culprits = {rank},
          .reason = "it has ended with an error of its own: " + text.substr(0, text.find('\n')),
          .failed = true};
}

DdpLane::DdpLane(DdpBoard& board, std::size_t number, std::unique_ptr<TensorSession> session)
    : board_(board), number_(number), tensor_session_(std::move(session)), thread_([this] { run(); }) {}

bool DdpLane::is_before(std::size_t bucket) const {
  if (busy_ && bucket_ < bucket && !turn_ended_) return true;
  return !queue_.empty() && !queue_.front().end && queue_.front().item.bucket.index <= bucket;
}

void DdpLane::run() {
  Lock lock(board_.mutex);
  while (true) {
    pushed_.wait(lock, [&] { return board_.closed || !queue_.empty(); });
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    if (work.end) {
      end_step(*work.end, lock);
    } else {
      take(std::move(work.item), lock);
    }
    board_.changed.notify_all();
  }
}

/// One bucket, with the lock at its beginning and end.
void DdpLane::take(DdpItem item, Lock& lock) {
  std::exception_ptr error = board_.failure;
  busy_ = true;
  turn_ended_ = false;
  bucket_ = item.bucket.index;
  lock.unlock();
  StepReport report;
  at::Tensor mean;
  if (!error) {
    try {
      session()->set_learning_rate(board_.learning_rate);
      session()->set_loss_scale(board_.loss_scale);
      session()->set_waited(board_.waited);
      mean = tensor_session_->synchronize(item.bucket, report);
    } catch (...) {
      error = std::current_exception();
    }
  }
  // Before anyone learns of it, so that a report taken after backward holds this step.
  lock.lock();
  if (error) {
    fail(error);
  } else {
    report.bucket = static_cast<std::uint32_t>(item.bucket.index);
    changed_ = changed_ || report.changes > 0;
    board_.reports[item.bucket.index] = report;
    board_.total.accumulate(report);
    board_.finite = board_.finite && report.finite;
  }
  lock.unlock();
  try {
    const auto current = tensor_session_->on_stream_of(item.bucket.gradient);
    item.done(std::move(mean), error);
    error = nullptr;
  } catch (...) {
    error = std::current_exception();
  }
  item = {};
  lock.lock();
  if (error) fail(error);
  busy_ = false;
}

void DdpLane::end_turn() {
  const Lock lock(board_.mutex);
  turn_ended_ = true;
  board_.changed.notify_all();
}

void DdpLane::fail(const std::exception_ptr& error) {
  const bool is_first = board_.failure == nullptr;
  board_.fail(error);
  if (!is_first) return;
  const C10dCommunicator& communicator = tensor_session_->communicator();
  try {
    Verdict verdict = communicator.verdict();
    try {
      if (verdict.culprits.empty()) std::rethrow_exception(error);
    } catch (const CommError& failure) {
      // The rank lives, and may read this first of all: it has been refused, not been silent.
      if (failure.peer() >= 0)
        verdict = {.culprits = {failure.peer()}, .reason = failure.what(), .failed = true};
    } catch (const std::exception& failure) {
      verdict = own_failure(communicator.rank(), failure.what());
    }
    if (!verdict.culprits.empty()) board_.tell(verdict);
  } catch (...) {
    // No memory. The others find out for themselves.
  }
}

/// With the lock. What this lane tells the others of the step.
void DdpLane::arrive(DdpStepEnd& end) {
  if (this == end.first && end.lanes > 1 && session() != nullptr) end.decisions = session()->decisions();
  if (session() != nullptr) end.squares[number_] = session()->step_squares();
  const bool changed = std::exchange(changed_, false);
  end.others_changed = end.others_changed || (changed && this != end.first);
  ++end.arrived;
}

/// When all lanes have arrived. ended: backward came to its end, without a failure. counts: every bucket was
/// finite.
std::exception_ptr DdpLane::conclude(const DdpStepEnd& end, bool ended, bool counts) noexcept {
  if (session() == nullptr) return nullptr;
  try {
    // In the lanes' order: a sum in the order of their arrival would not repeat.
    const double squares = std::accumulate(end.squares.begin(), end.squares.end(), 0.0);
    tensor_session_->end_step(ended, counts, end.unused, squares);
    if (ended && counts && this != end.first) session()->follow(end.decisions);
    if (ended && counts && this == end.first && end.others_changed) session()->others_changed();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

/// With the lock at its beginning and end. What the session copies for the next step it copies here, while
/// the optimizer and forward are at work.
void DdpLane::end_step(DdpStepEnd& end, Lock& lock) {
  ending_ = true;
  arrive(end);
  if (end.arrived == end.lanes) board_.changed.notify_all();
  board_.changed.wait(lock, [&] { return end.arrived == end.lanes; });
  const bool ended = !end.abandoned && board_.failure == nullptr;
  const bool counts = board_.finite;
  lock.unlock();
  const std::exception_ptr error = conclude(end, ended, counts);
  lock.lock();
  if (error) fail(error);
  ending_ = false;
}

void DdpLane::end_step(const std::vector<std::unique_ptr<DdpLane>>& lanes, DdpStepEnd& end) {
  for (const auto& lane : lanes) lane->arrive(end);
  const DdpBoard& board = lanes.front()->board_;
  const bool ended = !end.abandoned && board.failure == nullptr;
  for (const auto& lane : lanes) {
    if (const std::exception_ptr error = lane->conclude(end, ended, board.finite)) lane->fail(error);
  }
}

}  // namespace thinwire
