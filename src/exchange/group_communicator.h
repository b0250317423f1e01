#pragma once
// Some ranks of a communicator as one of their own, which sends and receives through it.

#include <memory>
#include <vector>

#include "thinwire/communicator.h"

namespace thinwire {

/// Ranks count within the group; messages of errors have those of `all`. Bytes are counted by both. What is
/// exchanged belongs to an exchange of `all`, by which all ranks compare their calls. One thread drives both.
class GroupCommunicator : public Communicator {
 public:
  /// Whether long exchanges wait for those of other communicators of this process, see await_turn().
  enum class Lanes : std::uint8_t { take_turns, at_once };

  /// members: ranks of `all`, ascending, this one among them. `all` must outlive it. Not collective.
  GroupCommunicator(Communicator& all, std::vector<int> members, Lanes lanes);

  std::string engine() const override { return all_.engine(); }
  double now_seconds() const override { return all_.now_seconds(); }
  bool reaches(Memory memory) const override { return all_.reaches(memory); }
  int number(int rank) const override { return all_.number(member(rank)); }

  /// From now on until leave() all belongs to the exchange of `all` that is under way, and collectives seal
  /// their messages as those of `all` do. bucket, step: for messages of errors. Collective over `all`, whose
  /// calls are compared here.
  void join(std::uint32_t bucket, std::uint64_t step);
  void leave() { stage_ = Stage::outside; }

 protected:
  void* start_send(int peer, Tag tag, Span<const std::byte> bytes) override;
  void* start_receive(int peer, Tag tag, Span<std::byte> bytes) override;
  void finish(void* operation, int peer) override;
  void abandon(void* operation) noexcept override;
  bool may_lose_bits() const override { return all_.may_lose_bits(); }
  void begin_turn() override;
  void pass_turn() override;

 private:
  int member(int peer) const { return members_[static_cast<std::size_t>(peer)]; }
  void* keep(Pending pending);
  Pending give_back(void* operation) noexcept;

  Communicator& all_;
  std::vector<int> members_;
  Lanes lanes_;
  std::vector<std::unique_ptr<Pending>> operations_;  // all that there ever were at a time
  std::vector<Pending*> free_;                        // of them
};

}  // namespace thinwire
