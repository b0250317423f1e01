#pragma once
// A lane: a thread with a queue of buckets, which it takes to its session one after the other.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "thinwire/report.h"
#include "torch/ddp_layout.h"
#include "torch/tensor_session.h"

namespace thinwire {

/// What an engine and its lanes share. The mutex guards all of it but the rate, and every lane's queue.
struct DdpBoard {
  std::mutex mutex;
  std::condition_variable changed;
  bool closed = false;
  std::exception_ptr failure;       // the first one; all later buckets end with it
  bool finite = true;               // every bucket of the last step
  std::vector<StepReport> reports;  // of each bucket's last step
  StepReport total;
  std::atomic<double> learning_rate{1};

  void fail(std::exception_ptr error) {
    if (!failure) failure = std::move(error);
  }
};

class DdpLane {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// Starts the thread; `board` outlives the lane.
  DdpLane(DdpBoard& board, std::unique_ptr<TensorSession> session);
  DdpLane(const DdpLane&) = delete;
  DdpLane& operator=(const DdpLane&) = delete;

  // With the board's lock held:

  void push(DdpItem item) { queue_.push_back(std::move(item)); }
  /// The session's step ends when all that was pushed is done.
  void push_end_of_step() { queue_.push_back({}); }
  bool is_idle() const { return queue_.empty() && !busy_; }
  /// Whether a bucket of this step that comes before `bucket` is not done yet.
  bool is_before(std::size_t bucket) const;

  /// For others than the lane's thread: while the lane is idle and the lock is held.
  TensorSession& tensor_session() { return *tensor_session_; }
  Session* session() const { return tensor_session_->session(); }

  /// Of the bucket that the lane is busy with; for its own thread.
  std::size_t bucket() const { return bucket_; }

  /// Without the lock, once the board is closed: waits for the thread, which finishes its queue first.
  void join() { thread_.join(); }

 private:
  void run();
  void take(DdpItem item, Lock& lock);

  DdpBoard& board_;
  std::unique_ptr<TensorSession> tensor_session_;
  std::deque<DdpItem> queue_;  // an item without `done` is the end of a step
  bool busy_ = false;
  std::size_t bucket_ = 0;
  std::thread thread_;
};

}  // namespace thinwire
