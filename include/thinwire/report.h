#pragma once
// What a step cost. One struct and one JSON form, used by the command line, the benchmarks and the trainer.

#include <cstdint>
#include <string>

#include "thinwire/step_clock.h"

namespace thinwire {

/// Bytes that crossed this rank's network interface. Counted in one place, Communicator.
struct Traffic {
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t sent_messages = 0;
  std::uint64_t received_messages = 0;

  Traffic& operator+=(const Traffic& other);
  Traffic operator-(const Traffic& before) const;
};

/// One bucket's step on one rank. Seconds are wall-clock times of this rank's thread.
struct StepReport {
  /// formula_bytes while a step is under way, until the system says otherwise.
  static constexpr std::uint64_t kUnknown = ~std::uint64_t{0};

  std::uint32_t bucket = 0;
  std::uint64_t step = 0;
  std::uint64_t elements = 0;
  std::uint64_t raw_bytes = 0;  ///< Of the gradient in its own type: what a dense system has to move.
  Traffic wire;                 ///< Payload and frame headers together.
  /// The part of wire.sent_bytes that guards the rest or agrees on it: headers of frames, stamps of
  /// exchanges, checksums of sums and gathered values, times among which `auto` chooses, and its messages
  /// that show the link.
  std::uint64_t frame_header_bytes = 0;
  /// The rest of wire.sent_bytes by the system's formula, from this step's own counts (non-zeros per owner,
  /// union) where it depends on them.
  std::uint64_t formula_bytes = 0;
  /// Not in `wire`. With SessionOptions::ranks_per_host: sent to ranks of this host, and by which all ranks
  /// compare their calls. With SessionOptions::shards: sent to these.
  std::uint64_t host_bytes_sent = 0;
  double seconds_total = 0;
  double seconds_compress = 0;     ///< Kernels before the exchange and inside its hops.
  double seconds_communicate = 0;  ///< seconds_total less compress and decompress; wait is a part of it.
  double seconds_decompress = 0;
  /// Blocked on the network with nothing left to compute; of sums, which engines add up on the way, all.
  double seconds_wait = 0;
  bool finite = true;     ///< False: some rank had inf or NaN; the mean is NaN, the residual untouched.
  double density_in = 1;  ///< Non-zeros over elements, before and after, where a system knows them.
  double density_out = 1;
  /// Largest share of this rank's rows that goes to one owner, times the number of owners; 1 is balance. -1:
  /// the system has no owners, or there were no rows.
  double imbalance_push = -1;
  double imbalance_pull = -1;      ///< The same for the union's rows, over owners.
  double relative_error = -1;      ///< |mean - exact| / |exact|; -1: not asked for.
  double cosine = -2;              ///< Of the angle between the mean and the exact one; -2: not measured.
  double residual_norm = -1;       ///< l2 norm of this rank's residual after the step; -1: not computed.
  double residual_deviation = -1;  ///< l2 norm of residual - (mean residual over ranks); -1: not computed.
  const char* scheme =
      nullptr;        ///< Which of several schemes a system took ("push_pull"); null: has one only.
  double scale = -1;  ///< The step size of one-bit systems (eta_s); -1: has none.
  /// Times that a system by itself changed in this step what comes next; Session::changes() has the reasons.
  std::uint64_t changes = 0;

  /// Takes over the seconds that the clock has charged.
  void take_seconds(const StepClock& clock);
  /// Adds bytes and seconds of another bucket or step; keeps the rest.
  void accumulate(const StepReport& other);
};

/// One JSON object on one line, with the member names above; wire becomes wire_bytes_sent,
/// wire_bytes_received, messages_sent, messages_received; -1 becomes null.
std::string to_json(const StepReport& report);
/// Those members alone that accumulate() adds up.
std::string sums_to_json(const StepReport& report);

}  // namespace thinwire
