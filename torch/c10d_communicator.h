#pragma once
// Ranks as torch processes: a communicator over any c10d process group that moves host memory, Gloo above
// all. torch's own training scripts have such a group already, so the library brings no transport of its own.

#include <memory>
#include <string>
#include <vector>

#include "thinwire/communicator.h"
#include "torch/c10d_compat.h"

namespace thinwire {

class FaultBoard;

class C10dCommunicator : public Communicator {
 public:
  struct Options {
    int store_host = 0;  ///< The rank whose process serves the store; -1: none of them.
    /// The destructor waits (a few seconds at most) until every rank has come to its own, so that no socket
    /// closes while a slower rank still reads its last message. For a group that belongs to this
    /// communicator.
    bool leave_together = false;
  };

  /// `store`: where failing ranks find out who is to blame; may be null, then a rank blames the one that it
  /// awaited. It must not be blocked by other users of the same object. Not collective.
  C10dCommunicator(c10::intrusive_ptr<c10d_compat::Group> group, c10::intrusive_ptr<::c10d::Store> store,
                   Options options);
  ~C10dCommunicator() override;

  std::string engine() const override { return backend_; }

  /// Gloo's ring; the other engines' may give ranks different bits, so the inherited ring stays for them.
  void all_reduce_sum(Span<float> values) override;
  void all_reduce_or(Span<std::uint64_t> words) override;
  void barrier() override;

  /// values: any type and shape that the engine can sum, contiguous, in host memory. Out: the sum over ranks,
  /// the same bits on all. Collective.
  void all_reduce_tensor(at::Tensor values);

 protected:
  void* start_send(int peer, Tag tag, Span<const std::byte> bytes) override;
  void* start_receive(int peer, Tag tag, Span<std::byte> bytes) override;
  void finish(void* operation, int peer) override;
  void abandon(void* operation) noexcept override;

 private:
  using Work = c10::intrusive_ptr<::c10d::Work>;
  struct Operation;

  void check_memory(Memory memory) const;
  void run_all_reduce(at::Tensor tensor, ::c10d::ReduceOp::RedOpType operator_name);
  void wait_native(const Work& work);
  /// Blames someone and throws CommError. awaited: empty when unknown.
  [[noreturn]] void give_up(std::vector<int> awaited, const std::string& what, const Work& native);
  std::vector<int> close_pairs();

  c10::intrusive_ptr<c10d_compat::Group> group_;
  std::unique_ptr<FaultBoard> board_;
  std::string backend_;
  Options options_;
  bool failed_ = false;
  int exceptions_at_start_;
};

}  // namespace thinwire
