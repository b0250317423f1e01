#include "torch/ddp_lane.h"

#include <utility>

namespace thinwire {

DdpLane::DdpLane(DdpBoard& board, std::unique_ptr<TensorSession> session)
    : board_(board), tensor_session_(std::move(session)), thread_([this] { run(); }) {}

bool DdpLane::is_before(std::size_t bucket) const {
  if (busy_ && bucket_ < bucket) return true;
  return !queue_.empty() && queue_.front().done && queue_.front().bucket.index <= bucket;
}

void DdpLane::run() {
  Lock lock(board_.mutex);
  while (true) {
    board_.changed.wait(lock, [&] { return board_.closed || !queue_.empty(); });
    if (queue_.empty()) return;
    DdpItem item = std::move(queue_.front());
    queue_.pop_front();
    if (item.done) {
      take(std::move(item), lock);
    } else if (session()) {
      session()->next_step();
    }
    board_.changed.notify_all();
  }
}

/// One bucket, with the lock at its beginning and end.
void DdpLane::take(DdpItem item, Lock& lock) {
  std::exception_ptr error = board_.failure;
  busy_ = true;
  bucket_ = item.bucket.index;
  lock.unlock();
  StepReport report;
  at::Tensor mean;
  if (!error) {
    try {
      session()->set_learning_rate(board_.learning_rate);
      mean = tensor_session_->synchronize(item.bucket, report);
    } catch (...) {
      error = std::current_exception();
    }
  }
  // Before anyone learns of it, so that a report taken after backward holds this step.
  lock.lock();
  if (error) {
    board_.fail(error);
  } else {
    report.bucket = static_cast<std::uint32_t>(item.bucket.index);
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
  if (error) board_.fail(error);
  busy_ = false;
}

}  // namespace thinwire
