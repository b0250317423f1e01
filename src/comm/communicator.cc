#include "thinwire/communicator.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "comm/stamp_hop.h"
#include "core/partition.h"
#include "thinwire/errors.h"

namespace thinwire {

Pending::~Pending() {
  if (owner_ != nullptr) owner_->abandon(operation_);
}

void Pending::wait() {
  if (owner_ == nullptr) return;
  Communicator* owner = std::exchange(owner_, nullptr);
  const StepClock::During waiting(owner->clock_, Phase::wait);
  owner->finish(operation_, peer_);
}

Communicator::Communicator(int rank, int size)
    : rank_(rank), size_(size), hop_(std::make_unique<StampHop>()), calls_(std::make_unique<Calls>()) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw std::invalid_argument("rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                ": a communicator needs 0 <= rank < size");
  }
  sent_to_.resize(static_cast<std::size_t>(size));
  ranks_.resize(static_cast<std::size_t>(size));
  std::iota(ranks_.begin(), ranks_.end(), 0);
}

Communicator::~Communicator() = default;

double Communicator::now_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Communicator::set_deadline(std::chrono::duration<double> deadline) {
  if (!(deadline.count() > 0 && deadline.count() <= kLongestDeadlineSeconds)) {
    throw std::invalid_argument("deadline of " + std::to_string(deadline.count()) +
                                " s: it must be above 0 and at most a day");
  }
  deadline_ = deadline;
}

static std::chrono::duration<double> above_0(std::chrono::duration<double> limit, const char* what) {
  if (limit.count() > 0) return limit;
  throw std::invalid_argument(what + (" of " + std::to_string(limit.count())) + " s: it must be above 0");
}

void Communicator::set_step_limit(std::chrono::duration<double> limit) {
  step_limit_ = above_0(limit, "step limit");
}

std::chrono::duration<double> Communicator::step_limit() const {
  constexpr std::chrono::duration<double> kHour(3600);
  return step_limit_.count() > 0 ? step_limit_ : std::max(kHour, 2 * deadline_);
}

void Communicator::set_silence_limit(std::chrono::duration<double> limit) {
  silence_limit_ = above_0(limit, "silence limit");
}

std::chrono::duration<double> Communicator::silence_limit() const {
  // Below, an interruption of the network would not have been noticed as one.
  constexpr std::chrono::duration<double> kShortest(4);
  return silence_limit_.count() > 0 ? silence_limit_ : std::max(deadline_, kShortest);
}

void Communicator::set_context(std::uint32_t bucket, std::uint64_t step) {
  bucket_ = bucket;
  step_ = step;
}

void Communicator::check_peer(int peer, const char* verb) const {
  if (peer < 0 || peer >= size_ || peer == rank_) {
    throw std::invalid_argument("rank " + std::to_string(rank_) + " cannot " + verb + " rank " +
                                std::to_string(peer) + " in a world of " + std::to_string(size_));
  }
}

Pending Communicator::send(int peer, Tag tag, Span<const std::byte> bytes) {
  check_peer(peer, "send to");
  bind_exchange();
  const StepClock::During exchanging(clock_, Phase::exchange);
  void* operation = start_send(peer, tag, bytes);
  traffic_.sent_bytes += bytes.size();
  ++traffic_.sent_messages;
  ++sent_to_[static_cast<std::size_t>(peer)];
  return {this, operation, peer};
}

Pending Communicator::receive(int peer, Tag tag, Span<std::byte> bytes) {
  check_peer(peer, "receive from");
  bind_exchange();
  const StepClock::During exchanging(clock_, Phase::exchange);
  void* operation = start_receive(peer, tag, bytes);
  traffic_.received_bytes += bytes.size();
  ++traffic_.received_messages;
  return {this, operation, peer};
}

void Communicator::saw_inflow(double bytes, double seconds, Sending how) {
  if (seconds <= 0) return;
  // Whoever waits for others sees less than the link can do. Whoever comes late, when messages lie there
  // already, sees any rate. So this follows what seven of ten times are below: its steps down are shorter
  // than those up. What is seen rarely takes longer steps.
  const double up = how == sending_ ? 1.1 : 1.5;
  const double down = how == sending_ ? 1.04 : 1.18;
  const double rate = bytes / seconds;
  double& inflow = inflow_[static_cast<std::size_t>(how)];
  inflow = inflow == 0 ? std::min(rate, kFirstInflow) : std::clamp(rate, inflow / down, inflow * up);
}

Communicator::Sending Communicator::choose_sending() {
  /// By so much the other way must be better.
  constexpr double kBetter = 1.2;
  // Both are no divisors of what a step has of exchanges, as a rule: so it is not always the same one.
  constexpr std::uint64_t kEarly = 100, kOftenEarly = 5, kOften = 31;
  const auto other = sending_ == Sending::in_turns ? Sending::at_once : Sending::in_turns;
  if (inflow(other) > kBetter * inflow(sending_)) {
    sending_ = other;
    return sending_;
  }
  const std::uint64_t often = long_exchanges_ < kEarly ? kOftenEarly : kOften;
  return ++long_exchanges_ % often == 0 ? other : sending_;
}

void Communicator::await_turn() {
  const StepClock::During waiting(clock_, Phase::wait);
  begin_turn();
}

void Communicator::count_native(std::uint64_t sent_bytes, std::uint64_t received_bytes,
                                std::uint64_t messages) {
  traffic_ += {sent_bytes, received_bytes, messages, messages};
  native_messages_ += messages;
}

std::uint64_t Communicator::messages_in_turn() const {
  return native_messages_ + *std::ranges::max_element(sent_to_);
}

std::uint64_t Communicator::ring_sent_bytes(std::size_t elements, std::size_t element_bytes) const {
  if (size_ == 1) return 0;
  return ring_sent_elements(elements, static_cast<std::size_t>(size_), static_cast<std::size_t>(rank_)) *
         element_bytes;
}

std::uint64_t Communicator::ring_received_bytes(std::size_t elements, std::size_t element_bytes) const {
  if (size_ == 1) return 0;
  // What the previous rank sends.
  const int previous = (rank_ + size_ - 1) % size_;
  return ring_sent_elements(elements, static_cast<std::size_t>(size_), static_cast<std::size_t>(previous)) *
         element_bytes;
}

void Communicator::fail(int peer, const std::string& what) const {
  throw CommError(number(rank_), peer < 0 ? peer : number(peer), bucket_, step_, what);
}

Span<std::byte> Communicator::scratch(std::size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return Span<std::byte>(scratch_).first(bytes);
}

}  // namespace thinwire
