#include "exchange/group_communicator.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace thinwire {
namespace {

int place_of(int rank, const std::vector<int>& members) {
  const auto found = std::ranges::find(members, rank);
  if (found != members.end()) return static_cast<int>(found - members.begin());
  throw std::invalid_argument("rank " + std::to_string(rank) + " is not among the ranks of its group");
}

}  // namespace

GroupCommunicator::GroupCommunicator(Communicator& all, std::vector<int> members, Lanes lanes)
    : Communicator(place_of(all.rank(), members), static_cast<int>(members.size())),
      all_(all),
      members_(std::move(members)),
      lanes_(lanes) {
  set_checked_sums(all.checked_sums());
}

void GroupCommunicator::join(std::uint32_t bucket, std::uint64_t step) {
  all_.bind_exchange();
  set_context(bucket, step);
  stage_ = Stage::bound;
}

void* GroupCommunicator::start_send(int peer, Tag tag, Span<const std::byte> bytes) {
  return keep(all_.send(member(peer), tag, bytes));
}

void* GroupCommunicator::start_receive(int peer, Tag tag, Span<std::byte> bytes) {
  return keep(all_.receive(member(peer), tag, bytes));
}

void GroupCommunicator::finish(void* operation, int /*peer*/) {
  give_back(operation).wait();
}

void GroupCommunicator::abandon(void* operation) noexcept {
  give_back(operation);
}

void GroupCommunicator::begin_turn() {
  if (lanes_ == Lanes::take_turns) all_.begin_turn();
}

void GroupCommunicator::pass_turn() {
  if (lanes_ == Lanes::take_turns) all_.pass_turn();
}

void* GroupCommunicator::keep(Pending pending) {
  if (free_.empty()) {
    operations_.push_back(std::make_unique<Pending>());
    free_.reserve(operations_.size());  // give_back() allocates nothing
    free_.push_back(operations_.back().get());
  }
  Pending* const operation = free_.back();
  *operation = std::move(pending);
  free_.pop_back();
  return operation;
}

Pending GroupCommunicator::give_back(void* operation) noexcept {
  auto* const own = static_cast<Pending*>(operation);
  free_.push_back(own);
  return std::move(*own);
}

}  // namespace thinwire
