#pragma once
// A lane: a thread with a queue of buckets, which it takes to its session one after the other.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/fault_board.h"
#include "thinwire/report.h"
#include "torch/ddp_layout.h"
#include "torch/tensor_session.h"

namespace thinwire {

/// What an engine and its lanes share. The mutex guards all of it but the rate, and every lane's queue.
struct DdpBoard {
  std::mutex mutex;
  std::condition_variable changed;  // a lane has come further: for whoever waits for lanes
  bool closed = false;
  std::exception_ptr failure;       // the first one; all later buckets end with it
  bool finite = true;               // every bucket of the last step
  std::vector<StepReport> reports;  // of each bucket's last step
  StepReport total;
  std::atomic<double> learning_rate{1};
  std::atomic<double> loss_scale{1};
  std::atomic<double> waited{0};
  /// Tells the ranks at the other ends of all lanes whom the first failure is laid to: this process ends with
  /// it, and they would lay it to this rank.
  std::function<void(const Verdict&)> tell;
  Verdict told;  // what was, last

  void fail(std::exception_ptr error) {
    if (!failure) failure = std::move(error);
  }
};

/// That this rank ends with an error of its own. text: the error's; others get its first line.
Verdict own_failure(int rank, const std::string& text);

class DdpLane;

/// The end of a step, which all lanes come to before any of them ends its session's: it counts in all of them
/// or in none.
struct DdpStepEnd {
  std::size_t lanes = 0;
  std::size_t arrived = 0;
  bool abandoned = false;           // backward did not come to its end
  std::vector<std::string> unused;  // parameters that take no part, see Session::leave_out
  const DdpLane* first = nullptr;   // whose session decides for all, see Session::follow
  std::vector<std::vector<float>> decisions;
  bool others_changed = false;  // what another lane does with a bucket, see Session::others_changed
  std::vector<double> squares;  // of each lane's session, see Session::step_squares
};

class DdpLane {
 public:
  using Lock = std::unique_lock<std::mutex>;

  /// Starts the thread; `board` outlives the lane. number: of this lane, from 0 on.
  DdpLane(DdpBoard& board, std::size_t number, std::unique_ptr<TensorSession> session);
  DdpLane(const DdpLane&) = delete;
  DdpLane& operator=(const DdpLane&) = delete;

  // With the board's lock held; the thread takes up what is pushed after wake():

  void push(DdpItem item) { push(Work{std::move(item), nullptr}); }
  /// The session's step ends when all that was pushed is done, here and on the other lanes. It counts where
  /// every bucket was finite and none failed; else it is undone.
  void push(std::shared_ptr<DdpStepEnd> end) { push(Work{{}, std::move(end)}); }
  bool is_idle() const { return queue_.empty() && !busy_ && !ending_; }
  /// Whether end_step() of this lane takes no time, so that waking its thread for it would take longer.
  bool ends_at_once() const { return session() == nullptr || session()->ends_at_once(); }
  /// What the threads of all lanes do with an end that is pushed, by the caller's. While all are idle.
  static void end_step(const std::vector<std::unique_ptr<DdpLane>>& lanes, DdpStepEnd& end);
  /// Whether a bucket of this step that comes before `bucket` is not done yet, nor has ended its turn.
  bool is_before(std::size_t bucket) const;

  /// For others than the lane's thread: while the lane is idle and the lock is held.
  TensorSession& tensor_session() { return *tensor_session_; }
  Session* session() const { return tensor_session_->session(); }

  /// Of the bucket that the lane is busy with; for its own thread.
  std::size_t bucket() const { return bucket_; }
  /// That bucket has no more long messages; for the lane's own thread.
  void end_turn();

  /// All later buckets end with the error, and the others hear why. With the lock held, for the lane's
  /// thread, or while the lane is idle.
  void fail(const std::exception_ptr& error);

  /// Has the thread look at what was pushed. Best without the lock, which the thread takes first thing.
  void wake() {
    if (was_pushed_.exchange(false)) pushed_.notify_one();
  }

  /// Once the board is closed, of all lanes before any of them is joined: they end their steps together.
  void finish() { pushed_.notify_one(); }
  /// Without the lock, after finish(): waits for the thread, which finishes its queue first.
  void join() { thread_.join(); }

 private:
  struct Work {
    DdpItem item;
    std::shared_ptr<DdpStepEnd> end;  // null: it is a bucket
  };
  void push(Work work) {
    queue_.push_back(std::move(work));
    was_pushed_ = true;
  }
  void run();
  void take(DdpItem item, Lock& lock);
  void end_step(DdpStepEnd& end, Lock& lock);
  void arrive(DdpStepEnd& end);
  std::exception_ptr conclude(const DdpStepEnd& end, bool ended, bool counts) noexcept;

  DdpBoard& board_;
  std::size_t number_;
  std::unique_ptr<TensorSession> tensor_session_;
  std::deque<Work> queue_;
  std::atomic<bool> was_pushed_{false};  // and the thread was not told
  std::condition_variable pushed_;       // or the board was closed; the lane's thread alone waits for it
  bool busy_ = false;
  bool turn_ended_ = false;  // of the bucket that the lane is busy with
  bool ending_ = false;
  bool changed_ = false;  // in this step, what a bucket of its does
  std::size_t bucket_ = 0;
  std::thread thread_;
};

}  // namespace thinwire
