// What reaches one rank is damaged on its way: for every system all ranks end with an error or the right
// mean, none crashes, waits for ever or asks for far too much memory.
//
// Sums are those of Thinwire's own ring, whose messages have checksums. What an engine sums by itself passes
// by no tap. A rank that lies may send different frames to different ranks, whose means then differ: that no
// checksum finds, so of lies only crashes, endless waits and large allocations are looked for.
// fuzz/exchange.cc does the same to one rank by itself, for long.

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <random>

#include "comm/message_tags.h"
#include "session/contract_specs.h"
#include "tests/hostile_messages.h"
#include "tests/sanitized.h"
#include "tests/seeded_steps.h"
#include "tests/tapped_communicator.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"
#include "thinwire/session.h"
#include "thinwire/virtual_network.h"

namespace thinwire::hostile_test {
namespace {

constexpr int kSteps = 3;

struct Case {
  std::string spec;
  bool rows = false;

  int world() const { return spec.find("torus") == std::string::npos ? 3 : 5; }
};

/// One damage: which of the messages that reach `victim` in `step`, and how.
struct Plan {
  int victim = 0;
  int step = 1;
  std::size_t message = 0;
  DamageAt how{};
  bool sealed = false;  ///< The checksum is right again afterwards, as a rank that lies would see to.
};

/// What became of it.
struct Result {
  std::vector<std::optional<std::vector<float>>> means;  ///< By rank; nothing where it refused.
  std::size_t messages = 0;                              ///< That reached the victim in the step.
  bool damaged = false;
  bool frame = false;                ///< What was damaged is a frame, or the payload of one.
  std::vector<std::string> foreign;  ///< Errors that are neither CorruptFrame nor CommError.
};

/// Lies between the victim and the engine.
class Damager {
 public:
  Damager(const Plan& plan, Result& result) : plan_(plan), result_(result) {}

  void begin(int step) {
    before_ = std::exchange(now_, {});
    step_ = step;
  }

  void operator()(const MessagePlace& place, Span<std::byte> message) {
    if (step_ < 0) return;
    const std::vector<std::byte> original(message.begin(), message.end());
    if (step_ == plan_.step && result_.messages++ == plan_.message && !message.empty()) {
      // A stamp of the step before has its checksum in itself: the rank asks the others what they do, who
      // know of no difference, and all wait until the deadline.
      const bool stamp = place.tag == kStampTag;
      damage(message, plan_.how, other_of(message.size()), before_of(stamp ? 0 : message.size()));
      result_.damaged = !std::equal(original.begin(), original.end(), message.begin());
      result_.frame = in_frame(place, original);
      if (plan_.sealed) seal(place, original, message);
    } else if (plan_.sealed && lie_ && place == behind_lie_ && message.size() == sizeof *lie_) {
      std::memcpy(message.data(), &*lie_, sizeof *lie_);
    }
    header_before_[{place.peer, place.tag}] = is_frame(original) && payload_follows(original);
    now_.push_back(original);
  }

 private:
  /// The message is a frame, or the payload of the one before it.
  bool in_frame(const MessagePlace& place, Span<const std::byte> original) const {
    const auto header = header_before_.find({place.peer, place.tag});
    return is_frame(original) || (header != header_before_.end() && header->second);
  }
  void seal(const MessagePlace& place, Span<const std::byte> original, Span<std::byte> message) {
    if (is_frame(original)) {
      const auto payload = message.subspan(FrameHeader::kBytes, message.size() - FrameHeader::kBytes);
      return seal_as_it_is(message.first(FrameHeader::kBytes), payload);
    }
    if (place.tag == kStampTag) return seal_stamp(message);
    behind_lie_ = place;
    ++behind_lie_.index;
    lie_ = crc32c(message);
  }
  Span<const std::byte> other_of(std::size_t size) const { return of_size(now_, size); }
  Span<const std::byte> before_of(std::size_t size) const { return of_size(before_, size); }
  static Span<const std::byte> of_size(const std::vector<std::vector<std::byte>>& messages,
                                       std::size_t size) {
    for (const auto& one : messages) {
      if (one.size() == size) return one;
    }
    return {};
  }

  const Plan& plan_;
  Result& result_;
  int step_ = -1;
  std::optional<std::uint32_t> lie_;  // the checksum of what the lie has become, and where it is awaited
  MessagePlace behind_lie_;
  std::vector<std::vector<std::byte>> now_;
  std::vector<std::vector<std::byte>> before_;
  std::map<std::pair<int, Communicator::Tag>, bool> header_before_;
};

/// One rank, until the damaged step is over.
void run_rank(const Case& one, const Plan& plan, Communicator& engine, Result& result) {
  const bool victim = engine.rank() == plan.victim;
  Damager damager(plan, result);
  TappedCommunicator tapped(engine, [&](const MessagePlace& place, Span<std::byte> message) {
    if (victim) damager(place, message);
  });
  Session session(one.spec, tapped);
  add_bucket(session, one.rows);
  session.start();
  for (int step = 0; step <= plan.step; ++step) {
    damager.begin(step);
    auto mean = run_step(session, one.rows);
    if (step == plan.step) result.means[static_cast<std::size_t>(engine.rank())] = std::move(mean);
  }
}

constexpr std::size_t kNoMessage = ~std::size_t{0};

/// All ranks, as threads. Where a rank lies, others may wait for what it never sends: on the virtual network
/// that ends at once. Else the engine that people run; its deadline is short where a damaged count, which no
/// frame protects, may let a rank wait for nothing.
Result run(const Case& one, const Plan& plan) {
  Result result;
  result.means.resize(static_cast<std::size_t>(one.world()));
  std::vector<std::string> foreign(result.means.size());
  const auto body = [&](Communicator& engine) {
    try {
      run_rank(one, plan, engine, result);
    } catch (const CorruptFrame&) {
      throw;
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      foreign[static_cast<std::size_t>(engine.rank())] = error.what();
      throw;
    }
  };
  try {
    if (plan.sealed) {
      run_virtual(one.world(), {}, body);
    } else {
      run_in_process(one.world(), body,
                     std::chrono::duration<double>(plan.message == kNoMessage ? 300 : 0.2));
    }
  } catch (const std::exception&) {
  }
  for (auto& error : foreign) {
    if (!error.empty()) result.foreign.push_back(error);
  }
  return result;
}

Plan plan_of(std::uint32_t seed, const Case& one, std::size_t messages, bool sealed) {
  std::minstd_rand random(seed * 2654435761u + 1);
  const auto draw = [&] { return static_cast<std::uint32_t>(random()); };
  Plan plan;
  plan.victim = static_cast<int>(draw() % static_cast<std::uint32_t>(one.world()));
  plan.message = messages == 0 ? 0 : draw() % messages;
  // The kinds in turn, so that a few seeds have them all.
  plan.how.kind = static_cast<Damage>(seed % kDamages);
  plan.how.at = draw();
  plan.how.value = std::uint64_t{draw()} << 31 | draw();
  plan.sealed = sealed;
  return plan;
}

/// Messages that reach a rank in the damaged step, of the rank that gets fewest.
std::size_t messages_of(const Case& one) {
  std::size_t fewest = ~std::size_t{0};
  for (int rank = 0; rank < one.world(); ++rank) {
    const Plan none{.victim = rank, .message = kNoMessage};
    fewest = std::min(fewest, run(one, none).messages);
  }
  return fewest;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

class Hostile : public testing::TestWithParam<Case> {};

std::uint32_t rounds() {
  // For longer runs by hand.
  const char* asked = std::getenv("THINWIRE_TEST_ROUNDS");
  return asked != nullptr ? static_cast<std::uint32_t>(std::atoi(asked)) : kSanitized ? 1 : 2;
}

TEST_P(Hostile, WhatWasDamagedOnTheWayIsRefusedOrHarmless) {
  const Case& one = GetParam();
  const Result honest = run(one, {.message = kNoMessage});
  for (const auto& mean : honest.means) ASSERT_TRUE(mean && same_bits(*mean, *honest.means[0]));
  const std::size_t messages = messages_of(one);
  for (std::uint32_t seed = 0; seed < rounds() * kDamages; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Plan plan = plan_of(seed, one, messages, false);
    const Result result = run(one, plan);
    for (const auto& error : result.foreign) ADD_FAILURE() << error;
    if (!result.damaged) continue;
    bool all = true;
    for (const auto& mean : result.means) {
      all = all && mean.has_value();
      if (mean) {
        ASSERT_TRUE(same_bits(*mean, *honest.means[0])) << "a wrong mean";
      }
    }
    // A frame whose bytes have changed is never taken for what was sent.
    if (result.frame) {
      EXPECT_FALSE(all);
    }
  }
}

TEST_P(Hostile, ARankThatLiesBreaksNobody) {
  const Case& one = GetParam();
  const std::size_t messages = messages_of(one);
  for (std::uint32_t seed = 0; seed < rounds() * kDamages; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Result result = run(one, plan_of(seed, one, messages, true));
    for (const auto& error : result.foreign) ADD_FAILURE() << error;
  }
}

TEST(HostileRows, AHeaderOfAnotherTypeIsRefusedBeforeItsLengthIsBelieved) {
  // Codes may have a table of any length, which the number of rows does not bound.
  std::string complaint;
  const auto body = [&](Communicator& engine) {
    bool first = true;
    TappedCommunicator tapped(engine, [&](const MessagePlace&, Span<std::byte> message) {
      if (engine.rank() != 0 || !is_frame(message) || !std::exchange(first, false)) return;
      FrameHeader header = read_frame_header(message, PayloadPlace::next_message);
      header.type = FrameType::codes;
      header.payload_bytes = code_bytes(header.count, header.width) + (std::uint64_t{1} << 50);
      write_frame_header(message, header);
    });
    Session session("zen:scheme=push_pull", tapped);
    add_bucket(session, /*rows=*/true);
    try {
      run_step(session, true);
    } catch (const CorruptFrame& error) {
      if (engine.rank() == 0) complaint = error.what();
      throw;
    }
  };
  EXPECT_THROW(run_in_process(2, body), CorruptFrame);
  EXPECT_NE(complaint.find("type"), std::string::npos) << complaint;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& spec : kContractSpecs) {
    for (const bool rows : {false, true}) all.push_back({spec, rows});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Systems, Hostile, testing::ValuesIn(cases()), [](const auto& parameter) {
  return test_name(parameter.param.spec + (parameter.param.rows ? "_rows" : "_dense"));
});

}  // namespace
}  // namespace thinwire::hostile_test
