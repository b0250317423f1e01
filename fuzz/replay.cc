#include "fuzz/replay.h"

#include <stdexcept>

#include "comm/message_tags.h"
#include "tests/seeded_steps.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"

namespace thinwire::fuzz {
namespace {

using Stream = std::pair<int, Communicator::Tag>;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

void add_to(SentSums& sums, int peer, Communicator::Tag tag, Span<const std::byte> bytes) {
  std::uint32_t& sum = sums[{peer, tag}];
  sum = crc32c(bytes, sum);
}

/// Receives what it is told to; what it sends goes nowhere.
class Alone final : public Communicator {
 public:
  Alone(int rank, int size, const std::map<MessagePlace, std::vector<std::byte>>& honest, bool lies)
      : Communicator(rank, size), honest_(honest), lies_(lies) {}

  std::string engine() const override { return "replay"; }
  std::map<MessagePlace, std::vector<std::byte>>& damaged() { return damaged_; }
  const SentSums& sent() const { return sent_; }

 protected:
  void* start_send(int peer, Tag tag, Span<const std::byte> bytes) override {
    add_to(sent_, peer, tag, bytes);
    return &sending_;
  }
  void* start_receive(int peer, Tag tag, Span<std::byte> bytes) override {
    return new Operation{{peer, tag, next_[{peer, tag}]++}, bytes};
  }
  void finish(void* handle, int peer) override {
    if (handle == &sending_) return;
    const std::unique_ptr<Operation> operation(static_cast<Operation*>(handle));
    const auto found = damaged_.find(operation->place);
    const auto known = found != damaged_.end() ? found : honest_.find(operation->place);
    if (known == honest_.end()) fail(peer, "nothing more arrives");
    deliver(known->second, operation->target);
  }
  void abandon(void* handle) noexcept override {
    if (handle != &sending_) delete static_cast<Operation*>(handle);
  }

 private:
  struct Operation {
    MessagePlace place;
    Span<std::byte> target;
  };

  /// A peer that lies sends as many bytes as its lies make this rank expect.
  void deliver(const std::vector<std::byte>& message, Span<std::byte> target) const {
    if (message.size() != target.size() && (!lies_ || message.empty())) {
      throw CorruptFrame("a message of " + std::to_string(message.size()) + " bytes, expected " +
                         std::to_string(target.size()));
    }
    for (std::size_t at = 0; at < target.size(); at += message.size()) {
      std::copy_n(message.data(), std::min(message.size(), target.size() - at), target.data() + at);
    }
  }

  const std::map<MessagePlace, std::vector<std::byte>>& honest_;
  bool lies_;
  std::map<MessagePlace, std::vector<std::byte>> damaged_;
  Operation sending_;
  SentSums sent_;
  std::map<Stream, std::size_t> next_;
};

/// Counts a step's messages and finds them by number.
class StepMessages {
 public:
  StepMessages(const Received& honest, std::size_t step) : honest_(honest), step_(step) {
    for (const auto& [place, bytes] : honest.messages) {
      if (!bytes.empty() && begin(place) <= place.index && place.index < end(place)) places_.push_back(place);
    }
  }
  const std::vector<MessagePlace>& places() const { return places_; }
  /// The message of the step before in the same place; empty where there is none.
  Span<const std::byte> before(const MessagePlace& place) const {
    if (step_ == 0) return {};
    const std::size_t first = count(step_ - 1, place);
    const auto found = honest_.messages.find({place.peer, place.tag, first + place.index - begin(place)});
    return found == honest_.messages.end() ? Span<const std::byte>() : Span<const std::byte>(found->second);
  }

 private:
  std::size_t count(std::size_t step, const MessagePlace& place) const {
    const auto& counts = honest_.before_step[step];
    const auto found = counts.find({place.peer, place.tag});
    return found == counts.end() ? 0 : found->second;
  }
  std::size_t begin(const MessagePlace& place) const { return count(step_, place); }
  std::size_t end(const MessagePlace& place) const { return count(step_ + 1, place); }

  const Received& honest_;
  std::size_t step_;
  std::vector<MessagePlace> places_;
};

/// The header that stands for the payload message at `place`; nothing where it is none.
std::optional<MessagePlace> header_of(const Received& honest, MessagePlace place) {
  if (place.index == 0) return std::nullopt;
  --place.index;
  const auto found = honest.messages.find(place);
  if (found == honest.messages.end() || !is_frame(found->second) || !payload_follows(found->second)) {
    return std::nullopt;
  }
  return place;
}

/// Damages messages and tells what that touched.
class Attacker {
 public:
  Attacker(const Received& honest, const Attack& attack,
           std::map<MessagePlace, std::vector<std::byte>>& damaged)
      : honest_(honest), messages_(honest, attack.step), damaged_(damaged) {
    const auto& places = messages_.places();
    if (places.empty()) return;
    for (const auto& one : attack.damages) {
      const MessagePlace place = places[one.message % places.size()];
      const MessagePlace other = places[one.how.value % places.size()];
      damage(bytes_of(place), one.how, honest.messages.at(other), messages_.before(place));
    }
  }

  /// Whether a checksum covers whatever has changed: that of a frame, or the one that is a message behind its
  /// own. Where two messages of a stream have changed, the second may be the first one's checksum.
  bool all_protected() const {
    std::map<Stream, std::size_t> changed;
    for (const auto& [place, bytes] : damaged_) {
      const auto& was = honest_.messages.at(place);
      if (bytes == was || is_frame(was) || header_of(honest_, place)) continue;
      if (++changed[{place.peer, place.tag}] > 1) return false;
    }
    return true;
  }

  /// Makes the checksums right of all that damage has touched.
  void seal() {
    for (const auto& place : messages_.places()) {
      const auto& was = honest_.messages.at(place);
      MessagePlace behind = place;
      ++behind.index;
      const bool last = !honest_.messages.contains(behind);
      if (is_frame(was)) {
        const bool follows = payload_follows(was) && !last;
        if (damaged_.contains(place) || (follows && damaged_.contains(behind)))
          seal_frame(place, follows, behind);
      } else if (damaged_.contains(place) && place.tag == kStampTag) {
        seal_stamp(bytes_of(place));
      } else if (damaged_.contains(place) && !last &&
                 honest_.messages.at(behind).size() == sizeof(std::uint32_t)) {
        const std::uint32_t checksum = crc32c(bytes_of(place));
        std::memcpy(bytes_of(behind).data(), &checksum, sizeof checksum);
      }
    }
  }

 private:
  void seal_frame(const MessagePlace& place, bool follows, const MessagePlace& behind) {
    const auto frame = bytes_of(place);
    const Span<const std::byte> payload =
        follows
            ? Span<const std::byte>(damaged_.contains(behind) ? damaged_.at(behind)
                                                              : honest_.messages.at(behind))
            : Span<const std::byte>(frame).subspan(FrameHeader::kBytes, frame.size() - FrameHeader::kBytes);
    seal_as_it_is(frame.first(FrameHeader::kBytes), payload);
  }

  Span<std::byte> bytes_of(const MessagePlace& place) {
    const auto [found, fresh] = damaged_.try_emplace(place);
    if (fresh) found->second = honest_.messages.at(place);
    return Span<std::byte>(found->second);
  }

  const Received& honest_;
  StepMessages messages_;
  std::map<MessagePlace, std::vector<std::byte>>& damaged_;
};

}  // namespace

std::vector<Received> record(const Scenario& scenario, int steps) {
  std::vector<Received> all(static_cast<std::size_t>(scenario.world));
  run_in_process(scenario.world, [&](Communicator& engine) {
    Received& own = all[static_cast<std::size_t>(engine.rank())];
    std::map<Stream, std::size_t> counts;
    SentSums sent;
    TappedCommunicator tapped(
        engine,
        [&](const MessagePlace& place, Span<std::byte> bytes) {
          own.messages[place].assign(bytes.begin(), bytes.end());
          ++counts[{place.peer, place.tag}];
        },
        [&](int peer, Communicator::Tag tag, Span<const std::byte> bytes) {
          add_to(sent, peer, tag, bytes);
        });
    Session session(scenario.spec, tapped);
    add_bucket(session, scenario.rows);
    session.start();
    own.before_step.push_back(counts);
    for (int step = 0; step < steps; ++step) {
      own.means.push_back(run_step(session, scenario.rows));
      own.before_step.push_back(counts);
      own.sent.push_back(sent);
    }
  });
  return all;
}

Outcome replay(const Scenario& scenario, const Received& honest, const Attack& attack, bool& protected_only) {
  Alone alone(attack.rank, scenario.world, honest.messages, attack.sealed);
  Attacker attacker(honest, attack, alone.damaged());
  protected_only = attacker.all_protected();
  if (attack.sealed) attacker.seal();
  Session session(scenario.spec, alone);
  add_bucket(session, scenario.rows);
  session.start();
  for (std::size_t step = 0; step < attack.step; ++step) run_step(session, scenario.rows);
  try {
    const auto mean = run_step(session, scenario.rows);
    const bool is_right =
        same_bits(mean, honest.means[attack.step]) && alone.sent() == honest.sent[attack.step];
    return is_right ? Outcome::right : Outcome::wrong;
  } catch (const CorruptFrame&) {
  } catch (const CommError&) {
  }
  return Outcome::refused;
}

}  // namespace thinwire::fuzz
