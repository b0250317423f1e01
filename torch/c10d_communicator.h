#pragma once
// Ranks as torch processes: a communicator over any c10d process group that moves host memory, Gloo above
// all. torch's own training scripts have such a group already, so the library brings no transport of its own.
//
// A second group of the same ranks can sum what lies on devices, NCCL's: it takes collectives only, as it
// promises no order among messages of different threads. Frames stay with the first group, since the host
// checks every byte of them.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/fault_board.h"
#include "thinwire/communicator.h"
#include "torch/c10d_compat.h"

namespace thinwire {

class WaitWatch;
struct Ending;

class C10dCommunicator : public Communicator {
 public:
  struct Options {
    int store_host = 0;  ///< The rank whose process serves the store; -1: none of them.
    /// The destructor waits (a few seconds at most) until every rank has come to its own, so that no socket
    /// closes while a slower rank still reads its last message. For a group that belongs to this
    /// communicator.
    bool leave_together = false;
    /// The group's connections, as open_tcp_sockets() names them (comm/tcp_links.h). Empty: not known, then
    /// a slow or interrupted network cannot be told from silence.
    std::vector<std::string> sockets{};
    /// As set_deadline() sets it. Given here, it holds from the start on, before anything is waited for.
    std::chrono::duration<double> deadline{300.0};
  };

  /// `store`: where failing ranks find out who is to blame; may be null, then a rank blames the one that it
  /// awaited. It must not be blocked by other users of the same object. Not collective.
  C10dCommunicator(c10::intrusive_ptr<c10d_compat::Group> group, c10::intrusive_ptr<::c10d::Store> store,
                   Options options);
  ~C10dCommunicator() override;
  /// The end does not wait for other ranks, which are elsewhere. in_order: nothing of this process has
  /// failed, and others that miss this rank shall find that it has left.
  void leave_alone(bool in_order);
  /// Whom this communicator has blamed when it failed; nobody where it has not.
  const Verdict& verdict() const { return verdict_; }
  /// See FaultBoard.
  void share_signs(std::shared_ptr<FaultBoard::Signs> signs) {
    if (board_) board_->share_signs(std::move(signs));
  }
  /// With tell(): the process ends, see FaultBoard. For any thread.
  void tell_end() {
    if (board_) board_->tell_end();
  }
  /// Whether other ranks are gone or end by an error, see FaultBoard. For any thread.
  bool others_have_ended() const { return board_ != nullptr && board_->others_have_ended(); }
  /// Another communicator of this process has failed, and this one ends with it; see FaultBoard. For any
  /// thread.
  void tell(const Verdict& verdict);
  /// After tell() of this rank's own failure, see FaultBoard::stay. For any thread.
  void stay(std::atomic<bool>& enough);

  /// After an error of another group's connections, which ends this process. For the thread that drives the
  /// communicator, after its last exchange. Finds the ranks whose connections are closed or whose processes
  /// do not beat, tells the others, and waits as FaultBoard::judge does. Returns whom all ranks blame, as a
  /// sentence; nothing where no rank is missing, which takes three graces of the deadline at most.
  std::string blame_lost_ranks();

  std::string engine() const override { return backend_; }

  /// Sums of values on a CUDA device go through `group` from now on, which has the same ranks. It may serve
  /// other communicators of the process, too: each of its operations waits for await_turn(), and end_turn()
  /// does nothing. Two at a time could each hold a part of the device that the other waits for.
  void set_device_group(c10::intrusive_ptr<c10d_compat::Group> group);
  /// begin: blocks until it is this communicator's turn among those of the process, in an order that is the
  /// same on all ranks. end: it is the next one's.
  void set_turns(std::function<void()> begin, std::function<void()> end);
  bool reduces(Memory memory) const override { return memory == Memory::host || device_group_ != nullptr; }

  /// Gloo's ring; the other engines' may give ranks different bits, so the inherited ring stays for them.
  /// NCCL gives all ranks the same.
  void all_reduce_sum(Span<float> values) override;
  void barrier() override;

  /// Whether all_reduce_tensor takes this type. The same on all ranks.
  bool sums(at::ScalarType type, bool on_device) const;
  /// values: any type and shape that the engine can sum, contiguous, in host memory or, with a device group,
  /// on a CUDA device and complete. Out: the sum over ranks, the same bits on all. Collective.
  void all_reduce_tensor(at::Tensor values);

 protected:
  void* start_send(int peer, Tag tag, Span<const std::byte> bytes) override;
  void* start_receive(int peer, Tag tag, Span<std::byte> bytes) override;
  void finish(void* operation, int peer) override;
  void abandon(void* operation) noexcept override;
  void begin_turn() override;
  void pass_turn() override;

 private:
  using Work = c10::intrusive_ptr<::c10d::Work>;
  struct Operation;

  void check_memory(Memory memory) const;
  template <class Start>
  Work started(std::vector<int> awaited, Start start);
  template <class Start>
  void* start_message(int peer, Tag tag, Span<const std::byte> bytes, Start start);
  void run_all_reduce(at::Tensor tensor, ::c10d::ReduceOp::RedOpType operator_name);
  void run_on_device(at::Tensor tensor);
  void poll_device(const Work& work);
  void sum_on_device(Span<float> values);
  void sum_checked(const at::Tensor& values);
  void count_ring(std::size_t elements, std::size_t element_bytes);
  void wait_native(const Work& work);
  void open_board(c10::intrusive_ptr<::c10d::Store> store);
  void wait_begins(int peer, Operation* operation);
  std::optional<Ending> wait_ends();
  /// Blames someone and throws CommError. awaited: empty when unknown. native: the engine's collective, which
  /// may still hold the caller's buffer.
  [[noreturn]] void give_up(std::vector<int> awaited, const Ending& ending, const Work& native);
  void end_native(const Work& work);
  std::vector<int> close_pairs();
  std::vector<int> broken_pairs();
  std::vector<int> silent_ranks();

  c10::intrusive_ptr<c10d_compat::Group> group_;
  c10::intrusive_ptr<c10d_compat::Group> device_group_;  // null: devices are not reached
  std::function<void()> begin_turn_;                     // may be empty, as the next
  std::function<void()> end_turn_;
  std::unique_ptr<FaultBoard> board_;  // null: there is no store
  std::unique_ptr<WaitWatch> watch_;   // of the board
  std::string backend_;
  Options options_;
  bool failed_ = false;
  Verdict verdict_;
  int exceptions_at_start_;
};

}  // namespace thinwire
