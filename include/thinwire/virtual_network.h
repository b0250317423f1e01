#pragma once
// Ranks on a network that is computed instead of built. Every rank has a clock, every link a latency and a
// bandwidth. So the time of 128 or 1024 workers comes out on one core, the same to the last bit in every run.
//
// The model: each rank hangs on a switch by one full-duplex link. Where ranks share hosts (VirtualHosts), a
// host hangs on the switch by one such link, which its ranks share. Each rank has another one, to a switch
// inside its host, for messages between ranks of one host. Below, a rank stands for whatever has a link.
//   - A message sent at the sender's time t occupies the sender's egress from max(t, egress free) for bytes /
//     bandwidth seconds: a rank's messages leave one after the other, in the order sent.
//     Ranks that share a link have theirs taken in order of time (ties: lower rank, then order sent).
//   - Its first bit reaches the receiver `latency` after it left. The receiver's ingress takes messages in
//     the order in which their first bits arrive (ties: lower sender, then order sent), one at a time,
//     each for bytes / bandwidth.
//   - An idle path delivers at start of egress + latency + bytes / bandwidth: the switch cuts through
//     and adds nothing of its own.
//   - wait() on a receive moves the rank's clock to the delivery.
//   - wait() on a send moves it to the end of the message's egress: as with a TCP socket, a blocking send
//     returns when the wire has taken the bytes, not when the peer has.
//   - Messages that nobody has asked for yet are buffered at the receiver without limit. So ingress does not
//     depend on when a receive is posted, and two ranks that send before they receive do not lock up.
//   - Computing takes no time unless it is charged: advance(), charge_cpu_time().
// Not modelled: loss, congestion inside the switch, fair sharing between messages on their way to one
// receiver (the last of them is done at the same time), per-packet overhead.
//
// Ranks are threads of which one runs at a time: always the one with the smallest clock. So one rank's body
// may touch what another's wrote without a lock.

#include <cstddef>
#include <functional>
#include <string>

#include "thinwire/communicator.h"

namespace thinwire {

/// Each rank's link to the switch, in both directions.
struct VirtualLink {
  /// What frames open with, see docs/wire_formats.md.
  static constexpr std::size_t kHeaderBytes = 64;

  double bytes_per_second = 25e9 / 8;
  double latency_seconds = 20e-6;  ///< One way, from one rank to another.
  /// How often a byte counts, so that a small bucket stands for one that is so many times larger. The header
  /// of a message that is longer than a header counts once: larger buckets have no longer headers.
  double scale = 1;

  /// How long a message occupies an egress or an ingress.
  double transfer_seconds(std::size_t bytes) const {
    const std::size_t header = bytes > kHeaderBytes ? kHeaderBytes : 0;
    return (static_cast<double>(header) + scale * static_cast<double>(bytes - header)) / bytes_per_second;
  }
};

/// Where ranks are. Host h has the ranks from h * ranks_per_host on.
struct VirtualHosts {
  int ranks_per_host = 1;
  /// Each rank's link to the switch inside its host. Without meaning for one rank per host.
  VirtualLink inside{};
};

/// What lies between two calls of VirtualCommunicator::align().
struct VirtualInterval {
  double seconds = 0;  ///< By the clock, the slowest rank's.
  /// The same communication by arithmetic instead of simulation, computing not included. A message belongs to
  /// the stage after the latest stage that its sender had received from. Stages add up. The last one costs
  ///     latency + max(sent, received) / bandwidth
  /// and each other one
  ///     max(max(sent, received) / bandwidth, latency + awaited / bandwidth),
  /// both of its most loaded rank. `awaited` counts until the rank began to send in the next stage: what it
  /// received in this one, or what one of its senders sent.
  ///
  /// So a ring of W ranks with one chunk per segment takes 2(W-1) (latency + segment / bandwidth); with more
  /// chunks the latency hides behind them. A push and a pull take twice latency + bytes of the most loaded
  /// rank / bandwidth.
  /// With several ranks per host bytes are counted by link: those of a host together, and those that a rank
  /// exchanges within its host, with the link's own latency. `awaited` of a host's link counts until the
  /// last of its ranks goes on.
  double formula_seconds = 0;
  std::size_t stages = 0;
};

class VirtualHub;

class VirtualCommunicator final : public Communicator {
 public:
  VirtualCommunicator(VirtualHub& hub, int rank);  ///< For run_virtual.

  std::string engine() const override { return "virtual"; }
  /// This rank's clock; starts at 0.
  double now_seconds() const override;

  /// Moves this rank's clock: it computes for so long. Throws std::invalid_argument unless finite and >= 0.
  void advance(double seconds);

  /// From now on the CPU time that this rank's thread spends between calls of the communicator is added to
  /// its clock, times `factor`; 0, as at the start: none. Results are then no longer the same in every run.
  void charge_cpu_time(double factor);

  /// Collective, and free of charge where a barrier is not: sets every rank's clock to the latest one.
  /// Returns the same interval on all ranks.
  VirtualInterval align();

 protected:
  void* start_send(int peer, Tag tag, Span<const std::byte> bytes) override;
  void* start_receive(int peer, Tag tag, Span<std::byte> bytes) override;
  void finish(void* operation, int peer) override;
  void abandon(void* operation) noexcept override;
  bool may_lose_bits() const override { return false; }

 private:
  class Entry;
  double uncharged_seconds() const;

  VirtualHub& hub_;
  double cpu_factor_ = 0;
  double cpu_seen_ = 0;  // CPU time of the thread when it last left the communicator
};

/// Runs body(communicator) on `workers` ranks and returns when all have ended. If a body throws, the others'
/// communication is interrupted (they get a CommError naming that rank) and the first exception is rethrown
/// here. Where ranks wait and nothing more can arrive, each of them gets a CommError at once that says who
/// waits for whom; deadlines do not apply. Throws std::invalid_argument when workers < 1, for a bandwidth
/// or scale that is not above 0, for a negative latency, and for ranks_per_host that does not divide them.
void run_virtual(int workers, const VirtualLink& link, const std::function<void(VirtualCommunicator&)>& body,
                 const VirtualHosts& hosts = {});

}  // namespace thinwire
