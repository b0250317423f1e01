#include "comm/virtual_hub.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace thinwire {
namespace {

/// Waiting ranks that an error message lists.
constexpr int kListed = 8;

}  // namespace

namespace {

/// Of hosts' links, and then of ranks' links inside them where there are any.
std::vector<double> latencies_of(int workers, const VirtualLink& link, const VirtualHosts& hosts) {
  const auto outside = static_cast<std::size_t>(workers / hosts.ranks_per_host);
  std::vector<double> latencies(outside, link.latency_seconds);
  if (hosts.ranks_per_host > 1) {
    latencies.resize(outside + static_cast<std::size_t>(workers), hosts.inside.latency_seconds);
  }
  return latencies;
}

}  // namespace

VirtualHub::VirtualHub(int workers, const VirtualLink& link, const VirtualHosts& hosts)
    : link_(link),
      hosts_(hosts),
      ranks_(static_cast<std::size_t>(workers)),
      ports_(latencies_of(workers, link, hosts).size()),
      channels_(ranks_.size() * ranks_.size()),
      ledger_(ranks_.size(), latencies_of(workers, link, hosts)) {}

// --- Operations

void VirtualHub::free(VirtualOperation* operation) {
  if (operation->copy) {
    buffers_[operation->copy_class].push_back(std::move(operation->copy));
  }
  *operation = VirtualOperation{};
  pool_.give_back(operation);
}

void VirtualHub::free_if_done(VirtualOperation* send) {
  if (send->released && send->settled && send->taken) free(send);
}

/// The sender wants its memory back before anybody has asked for the message.
void VirtualHub::keep_bytes(VirtualOperation* send) {
  if (send->size == 0) return;
  send->copy_class = static_cast<std::size_t>(std::bit_width(send->size - 1));
  auto& buffers = buffers_[send->copy_class];
  if (buffers.empty()) {
    send->copy.reset(new std::byte[std::size_t{1} << send->copy_class]);
  } else {
    send->copy = std::move(buffers.back());
    buffers.pop_back();
  }
  std::memcpy(send->copy.get(), send->source, send->size);
  send->source = send->copy.get();
}

void VirtualHub::pair(VirtualOperation* send, VirtualOperation* receive) {
  const std::size_t size = std::min(send->size, receive->size);
  if (size != 0) std::memcpy(receive->target, send->source, size);
  send->counterpart = receive;
  receive->counterpart = send;
}

void VirtualHub::match(VirtualOperation* operation) {
  auto& waiting = channel(operation->from, operation->to);
  VirtualOperation* other = waiting.take_counterpart(*operation);
  if (other == nullptr) return waiting.push(operation);
  operation->sending ? pair(operation, other) : pair(other, operation);
}

VirtualOperation* VirtualHub::send(int from, int to, Communicator::Tag tag, Span<const std::byte> bytes) {
  VirtualOperation* operation = pool_.take();
  operation->sending = true;
  operation->tag = tag;
  operation->from = from;
  operation->to = to;
  operation->source = bytes.data();
  operation->size = bytes.size();
  operation->place = ledger_.sent(static_cast<std::size_t>(from), port_of(*operation, from),
                                  link_of(*operation).transfer_seconds(bytes.size()));
  if (hosts_.ranks_per_host > 1 && !within_host(*operation)) {
    push({.time = at(from).clock, .message = operation, .rank = from, .number = numbers_++});
  } else {
    depart(operation, at(from).clock);
  }
  match(operation);
  return operation;
}

/// Takes its place in the egress, at a time before which nothing can come to it any more.
void VirtualHub::depart(VirtualOperation* send, double time) {
  const VirtualLink& link = link_of(*send);
  Port& egress = ports_[port_of(*send, send->from)];
  const double start = std::max(time, egress.egress_free);
  send->egress_end = start + link.transfer_seconds(send->size);
  egress.egress_free = send->egress_end;
  send->departed = true;
  push({.time = start + link.latency_seconds, .message = send, .rank = send->from, .number = numbers_++});
  if (at(send->from).on == send) resume(send->from, std::max(at(send->from).clock, send->egress_end));
}

VirtualOperation* VirtualHub::receive(int to, int from, Communicator::Tag tag, Span<std::byte> bytes) {
  VirtualOperation* operation = pool_.take();
  operation->tag = tag;
  operation->from = from;
  operation->to = to;
  operation->target = bytes.data();
  operation->size = bytes.size();
  match(operation);
  return operation;
}

bool VirtualHub::wait(VirtualOperation* operation, std::size_t& size) {
  if (operation->sending) {
    if (operation->counterpart == nullptr && !operation->taken) {
      if (interrupted()) return false;
      keep_bytes(operation);
    }
    if (!operation->departed) {
      if (interrupted()) return false;
      block(operation->from, operation->to, operation);
      if (!operation->departed) return false;
    }
    Rank& own = at(operation->from);
    own.clock = std::max(own.clock, operation->egress_end);
    operation->released = true;
    free_if_done(operation);
    return true;
  }
  const auto there = [&] { return operation->counterpart != nullptr && operation->counterpart->settled; };
  if (!there()) {
    if (interrupted()) return false;
    block(operation->to, operation->from, operation);
    if (!there()) return false;
  }
  VirtualOperation* message = operation->counterpart;
  Rank& own = at(operation->to);
  own.clock = std::max(own.clock, message->delivered);
  ledger_.received(static_cast<std::size_t>(operation->to), port_of(*message, message->to), message->place,
                   link_of(*message).transfer_seconds(message->size));
  size = message->size;
  message->counterpart = nullptr;
  message->taken = true;
  free_if_done(message);
  free(operation);
  return true;
}

void VirtualHub::abandon(VirtualOperation* operation) {
  const bool matched = operation->counterpart != nullptr || operation->taken;
  if (!matched) channel(operation->from, operation->to).remove(operation);
  if (operation->sending) {
    operation->released = true;
    if (!matched) operation->taken = true;
    free_if_done(operation);
    return;
  }
  if (VirtualOperation* message = operation->counterpart; message != nullptr) {
    message->counterpart = nullptr;
    message->taken = true;
    free_if_done(message);
  }
  free(operation);
}

void VirtualHub::settle(VirtualOperation* send, double arrival) {
  const Rank& receiver = at(send->to);
  Port& ingress = ports_[port_of(*send, send->to)];
  send->delivered = std::max(arrival, ingress.ingress_free) + link_of(*send).transfer_seconds(send->size);
  ingress.ingress_free = send->delivered;
  send->settled = true;
  if (send->counterpart != nullptr && send->counterpart == receiver.on) {
    resume(send->to, std::max(receiver.clock, send->delivered));
  }
  free_if_done(send);
}

bool VirtualHub::align(int rank, VirtualInterval& interval) {
  if (interrupted()) return false;
  if (++aligning_ < workers()) {
    block(rank, kEveryone, nullptr);
    if (interrupted()) return false;
  } else {
    aligning_ = 0;
    double latest = 0;
    for (const Rank& one : ranks_) latest = std::max(latest, one.clock);
    interval_ = {
        .seconds = latest - aligned_at_, .formula_seconds = ledger_.seconds(), .stages = ledger_.stages()};
    aligned_at_ = latest;
    ledger_.clear();
    for (int one = 0; one < workers(); ++one) {
      at(one).clock = latest;
      if (one != rank) resume(one, latest);
    }
  }
  interval = interval_;
  return true;
}

// --- Scheduling

bool VirtualHub::Event::operator<(const Event& other) const {
  if (time != other.time) return time > other.time;
  if ((message == nullptr) != (other.message == nullptr)) return message != nullptr;
  if (rank != other.rank) return rank > other.rank;
  return number > other.number;
}

void VirtualHub::push(Event event) {
  events_.push_back(event);
  std::push_heap(events_.begin(), events_.end());
}

void VirtualHub::resume(int rank, double time) {
  if (std::exchange(at(rank).resuming, true)) return;
  push({.time = time, .message = nullptr, .rank = rank, .number = numbers_++});
}

void VirtualHub::resume_all_blocked() {
  for (int rank = 0; rank < workers(); ++rank) {
    if (at(rank).awaiting != -1) resume(rank, at(rank).clock);
  }
}

int VirtualHub::next_rank() {
  while (true) {
    if (events_.empty()) {
      if (std::ranges::all_of(ranks_, &Rank::ended)) return -1;
      call_stuck();
      resume_all_blocked();
    }
    std::pop_heap(events_.begin(), events_.end());
    const Event event = events_.back();
    events_.pop_back();
    if (event.message == nullptr) return event.rank;
    event.message->departed ? settle(event.message, event.time) : depart(event.message, event.time);
  }
}

void VirtualHub::give_token(int rank) {
  Rank& to = at(rank);
  to.resuming = false;
  std::lock_guard lock(to.mutex);
  to.token = true;
  to.wake.notify_one();
}

void VirtualHub::await_token(Rank& rank) {
  std::unique_lock lock(rank.mutex);
  rank.wake.wait(lock, [&] { return rank.token; });
  rank.token = false;
}

void VirtualHub::block(int rank, int awaited, const VirtualOperation* on) {
  Rank& own = at(rank);
  own.awaiting = awaited;
  own.on = on;
  const int next = next_rank();
  if (next == rank) {
    own.resuming = false;
  } else {
    give_token(next);
    await_token(own);
  }
  own.awaiting = -1;
  own.on = nullptr;
}

bool VirtualHub::begin(int rank) {
  await_token(at(rank));
  return !cancelled_;
}

void VirtualHub::end(int rank, std::exception_ptr error) {
  at(rank).ended = true;
  if (error && !failed_) {
    failed_ = true;
    if (!stuck_) {
      complaint_ = "rank " + std::to_string(rank) + " failed";
      culprit_ = rank;
    }
    first_error_ = std::move(error);
    resume_all_blocked();
  }
  if (const int next = next_rank(); next >= 0) give_token(next);
}

void VirtualHub::start(int started) {
  cancelled_ = started < workers();
  for (int rank = 0; rank < workers(); ++rank) {
    at(rank).ended = rank >= started;
    if (rank < started) resume(rank, 0);
  }
  if (const int next = next_rank(); next >= 0) give_token(next);
}

void VirtualHub::call_stuck() {
  stuck_ = true;
  const auto first_ended = std::ranges::find(ranks_, true, &Rank::ended);
  std::string text = "nothing more can arrive:";
  int waiting = 0;
  for (int rank = 0; rank < workers(); ++rank) {
    const int awaited = at(rank).awaiting;
    if (awaited == -1) continue;
    const int dead = awaited != kEveryone && at(awaited).ended ? awaited
                     : awaited == kEveryone && first_ended != ranks_.end()
                         ? static_cast<int>(first_ended - ranks_.begin())
                         : -1;
    if (culprit_ < 0) culprit_ = dead;
    if (waiting++ >= kListed) continue;
    text += (waiting == 1 ? " rank " : ", rank ") + std::to_string(rank) + " waits for " +
            (awaited == kEveryone
                 ? "all ranks to align"
                 : "rank " + std::to_string(awaited) + " (tag " + std::to_string(at(rank).on->tag) + ")");
    if (dead >= 0) text += ", but rank " + std::to_string(dead) + " has ended";
  }
  if (waiting > kListed) text += " and " + std::to_string(waiting - kListed) + " more wait";
  complaint_ = text + "; do all ranks make the same calls?";
}

}  // namespace thinwire
