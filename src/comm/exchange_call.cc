// How ranks find out that they do not exchange the same thing, before any of it is sent. Of sums that begin
// early: before any of it is handed out.
//
// Each rank hashes its call to a stamp. The smallest and the largest stamp spread to all ranks by
// dissemination: in each hop a rank sends what it has heard to those 1, 2, ..., 7 times `reach` further on,
// and then `reach` grows eightfold. Two ranks differ if and only if the smallest is not the largest; every
// rank comes to the same verdict.
//
// The first hop begins with Communicator::commit_exchange(), where a system calls it: then stamps travel
// while ranks compress. Each rank compares each exchange once, in the order of its calls, or never uses the
// communicator again; so the stamps between two ranks are taken in the order in which they are sent, and none
// is left over.
//
// An engine's own sum may begin before the comparison has ended (set_early_sums). It does so only where this
// rank's call repeats that of the step before (call_cycle.h). All ranks for which that holds make the same
// call, since they have compared all calls before. Any other one compares first, and sums nothing.

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <utility>

#include "comm/fault_note.h"
#include "comm/message_tags.h"
#include "comm/stamp_hop.h"
#include "core/hashes.h"
#include "thinwire/communicator.h"
#include "thinwire/errors.h"
#include "wire/crc32c.h"

namespace thinwire {

/// A call as it travels. Texts end with a zero where they are shorter.
struct Communicator::CallRecord {
  std::uint64_t bucket = 0;
  std::uint64_t step = 0;
  std::uint64_t elements = 0;
  std::uint64_t names = 0;
  std::array<char, 16> kind{};
  std::array<char, 80> first_name{};
  std::array<char, 40> occasion{};

  explicit CallRecord(const ExchangeCall& call = {})
      : bucket(call.bucket), step(call.step), elements(call.elements), names(call.names) {
    call.kind.copy(kind.data(), kind.size() - 1);
    call.first_name.copy(first_name.data(), first_name.size() - 1);
    call.occasion.copy(occasion.data(), occasion.size() - 1);
  }
  bool operator==(const CallRecord& other) const { return stamp() == other.stamp(); }
  /// Of compare_configurations().
  bool begins() const { return std::string_view(kind.data()) == "start"; }

  std::uint64_t stamp() const {
    static_assert(std::has_unique_object_representations_v<CallRecord>);
    CallRecord compared = *this;
    compared.occasion = {};
    if (begins()) compared.step = 0;  // configurations have it, and say more of it
    return content_hash(as_bytes(Span<const CallRecord>(&compared, 1)), 0);
  }
  std::uint64_t stamp_of_any_step() const {
    CallRecord other = *this;
    other.step = 0;
    return other.stamp();
  }

  std::string occasion_text() const { return printable(occasion); }
  std::string text() const {
    if (begins()) return "compares configurations, as at its start, after set() and after a loaded state";
    if (elements == 0 && first_name[0] == '\0') {
      return "exchanges " + printable(kind) + " in step " + std::to_string(step) +
             ", as all ranks do together, for state_dict(consolidate=True) or after a loaded state";
    }
    return "synchronizes bucket " + std::to_string(bucket) + " of step " + std::to_string(step) + " ('" +
           printable(first_name) + "', " + printable(kind) + ", " + std::to_string(elements) + " elements)";
  }

 private:
  /// Comes from another rank: only printable characters are shown.
  template <std::size_t kSize>
  static std::string printable(const std::array<char, kSize>& text) {
    std::string result(text.begin(), std::ranges::find(text, '\0'));
    std::ranges::replace_if(
        result, [](char c) { return c < ' ' || c > '~'; }, '?');
    return result;
  }
};

namespace {

Span<const std::byte> checked_part(const StampRange& stamps) {
  return as_bytes(Span<const StampRange>(&stamps, 1)).first(offsetof(StampRange, checksum));
}

/// What travels: without the padding behind it.
constexpr std::size_t kStampBytes = offsetof(StampRange, checksum) + sizeof(std::uint32_t);

}  // namespace

void Communicator::begin_exchange(const ExchangeCall& call) {
  if (stage_ == Stage::given_up) refuse_given_up();
  set_context(call.bucket, call.step);
  call_ = call;
  stage_ = Stage::announced;
  repeats_ = false;
  if (!early_sums_) return;
  calls_->now = CallRecord(call).stamp_of_any_step();
  repeats_ = calls_->cycle.begin(calls_->now, call.step);
}

void Communicator::end_exchange() {
  try {
    bind_exchange();
    finish_sends_of_hop();
  } catch (...) {
    abandon_exchange();
    throw;
  }
  stage_ = Stage::outside;
  if (early_sums_) calls_->cycle.end(calls_->now);
}

void Communicator::abandon_exchange() noexcept {
  const bool is_over = stage_ == Stage::given_up || stage_ == Stage::committed;
  stage_ = is_over ? Stage::given_up : Stage::outside;
  calls_->cycle.forget();
  hop_->receives = {};
  hop_->sends = {};
}

void Communicator::commit_exchange() {
  if (stage_ != Stage::announced || size_ == 1) return;
  stage_ = Stage::bound;  // stamps are compared with nothing
  try {
    start_hop(1);
  } catch (...) {
    stage_ = Stage::committed;  // some ranks may have the stamp
    throw;
  }
  stage_ = Stage::committed;
}

Pending Communicator::send_guard(int peer, Tag tag, Span<const std::byte> bytes) {
  guard_bytes_ += bytes.size();
  return send(peer, tag, bytes);
}

void Communicator::check_seal(int peer, Span<const std::byte> arrived, std::uint32_t seal) const {
  const std::uint32_t found = crc32c(arrived);
  if (found == seal) return;
  throw CorruptFrame("message refused: the checksum of what arrived is " + std::to_string(found) +
                     ", the sender says " + std::to_string(seal) + " (rank " + std::to_string(number(peer)) +
                     ", bucket " + std::to_string(bucket_) + ", step " + std::to_string(step_) +
                     "): bytes changed on the way");
}

void Communicator::compare_calls() {
  if (stage_ == Stage::given_up) refuse_given_up();
  const bool has_begun = std::exchange(stage_, Stage::bound) == Stage::committed;
  if (!has_begun) start_hop(1);
  finish_comparison();
}

bool Communicator::begin_comparison() {
  const bool is_open = stage_ == Stage::announced || stage_ == Stage::committed;
  if (!repeats_ || !is_open) return false;
  if (std::exchange(stage_, Stage::bound) == Stage::announced) start_hop(1);
  ++sums_begun_early_;
  return true;
}

void Communicator::finish_comparison() {
  spread_stamps();
  if (hop_->seen.smallest != hop_->seen.largest) refuse_calls(CallRecord(call_));
}

/// From the first hop, which has begun, to the last.
void Communicator::spread_stamps() {
  const auto world = static_cast<std::size_t>(size_);
  for (std::size_t reach = 1; reach < world; reach *= kStampFanOut + 1) {
    if (reach > 1) start_hop(reach);
    finish_hop(reach);
  }
}

void Communicator::start_hop(std::size_t reach) {
  StampHop& hop = *hop_;
  finish_sends_of_hop();
  if (reach == 1) {
    const std::uint64_t own = CallRecord(call_).stamp();
    hop.seen = {own, own, 0};
  }
  hop.sent = hop.seen;
  hop.sent.checksum = crc32c(checked_part(hop.sent));
  const auto world = static_cast<std::size_t>(size_);
  const auto self = static_cast<std::size_t>(rank_);
  const std::size_t peers = std::min(kStampFanOut, (world - 1) / reach);
  for (std::size_t k = 0; k < peers; ++k) {
    const std::size_t from = (self + world - (k + 1) * reach) % world;
    hop.receives[k] = receive(static_cast<int>(from), kStampTag,
                              as_writable_bytes(Span<StampRange>(&hop.arrived[k], 1)).first(kStampBytes));
  }
  for (std::size_t k = 0; k < peers; ++k) {
    hop.sends[k] = send_guard(static_cast<int>((self + (k + 1) * reach) % world), kStampTag,
                              as_bytes(Span<const StampRange>(&hop.sent, 1)).first(kStampBytes));
  }
}

void Communicator::finish_hop(std::size_t reach) {
  StampHop& hop = *hop_;
  const auto world = static_cast<std::size_t>(size_);
  const auto self = static_cast<std::size_t>(rank_);
  const std::size_t peers = std::min(kStampFanOut, (world - 1) / reach);
  for (std::size_t k = 0; k < peers; ++k) {
    hop.receives[k].wait();
    const std::size_t from = (self + world - (k + 1) * reach) % world;
    check_seal(static_cast<int>(from), checked_part(hop.arrived[k]), hop.arrived[k].checksum);
    hop.seen.smallest = std::min(hop.seen.smallest, hop.arrived[k].smallest);
    hop.seen.largest = std::max(hop.seen.largest, hop.arrived[k].largest);
  }
}

/// Not in finish_hop(): by the end of an exchange they are long gone, so that nobody sleeps for them.
void Communicator::finish_sends_of_hop() {
  for (Pending& send : hop_->sends) send.wait();
}

void Communicator::refuse_given_up() const {
  fail(rank_,
       "an earlier exchange was given up when others counted on this rank; this communicator is "
       "unusable: make a new one");
}

/// Where some ranks have a new session, and say for what, and others have not.
void Communicator::refuse_missed_occasion(Span<const CallRecord> all) const {
  std::string done;
  std::vector<int> others;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].begins()) {
      others.push_back(static_cast<int>(rank));
    } else if (all[rank].occasion[0] != '\0') {
      done += (done.empty() ? "rank " : ", rank ") + std::to_string(rank) + " " + all[rank].occasion_text();
    }
  }
  if (done.empty() || others.empty()) return;
  const std::uint64_t step = all[static_cast<std::size_t>(others[0])].step;
  fail(others[0], "ranks do not synchronize the same: before step " + std::to_string(step) + " " + done +
                      ", and " + name_ranks(others) + (others.size() == 1 ? " has" : " have") +
                      " not; all ranks must do so between the same two steps, no mean was handed out");
}

void Communicator::refuse_calls(const CallRecord& mine) {
  std::vector<CallRecord> all(static_cast<std::size_t>(size_));
  all_gather(as_bytes(Span<const CallRecord>(&mine, 1)), as_writable_bytes(Span<CallRecord>(all)));
  try {
    // Nobody leaves with the error while others still wait for its call. Not the engine's own, which may wait
    // for a sum that had begun.
    Communicator::barrier();
  } catch (const std::exception&) {
    // What there is to say is known.
  }
  // Sums of other ranks may have begun, and nothing of this rank's may meet them.
  if (early_sums_) stage_ = Stage::given_up;
  refuse_missed_occasion(all);
  // The call that most ranks make; of several the one of the lowest rank.
  std::size_t usual = 0;
  auto callers = [&](std::size_t rank) { return std::ranges::count(all, all[rank]); };
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (callers(rank) > callers(usual)) usual = rank;
  }
  int culprit = -1;
  std::string others;
  std::string hint;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all[usual]) continue;
    if (culprit < 0) culprit = static_cast<int>(rank);
    const bool same_kind = all[rank].kind == all[usual].kind;
    if (same_kind && all[rank].step != all[usual].step) {
      hint = ". Ranks that resume load states of the same step, all of them";
    } else if (!same_kind && (all[rank].begins() || all[usual].begins())) {
      hint = ". Where the system is set anew or a state is loaded, all ranks do so before the same step";
    }
    const bool named_alike = all[rank].text() == all[usual].text();
    others += (others.empty() ? "rank " : ", rank ") + std::to_string(rank) + " " + all[rank].text() +
              (named_alike ? " with other parameters" : "");
  }
  fail(culprit,
       "ranks do not synchronize the same: " + others + ", where rank " + std::to_string(usual) + " " +
           all[usual].text() +
           "; every rank must synchronize the same buckets in the same order, no mean was handed out" + hint);
}

}  // namespace thinwire
