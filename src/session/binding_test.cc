// What is exchanged is what every rank means: other buckets, steps and names are refused by all ranks before
// anything is added up, and so are bytes that changed on the way.

#include "tests/binding_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>

#include "thinwire/in_process.h"
#include "thinwire/registry.h"

namespace thinwire::binding_test {
namespace {

class Binding : public ::testing::TestWithParam<std::string> {};

TEST_P(Binding, RanksThatDifferAreRefusedByAll) {
  for (const int world : {2, 3, 5, 10}) {
    std::atomic<int> passed = 0;
    EXPECT_NO_THROW(run_in_process(world,
                                   [&](Communicator& communicator) {
                                     testing::BindingCases(communicator).run(GetParam());
                                     ++passed;
                                   }))
        << world << " ranks";
    EXPECT_EQ(passed, world);
  }
}

/// Another communicator, one of whose messages arrives with a flipped bit.
class Flipping final : public Communicator {
 public:
  explicit Flipping(Communicator& inner) : Communicator(inner.rank(), inner.size()), inner_(inner) {}

  std::string engine() const override { return inner_.engine(); }
  /// Counts from the next message on; 0 for none.
  void flip(std::uint64_t nth) {
    received_ = 0;
    nth_ = nth;
  }
  std::uint64_t received() const { return received_; }

 protected:
  void* start_send(int peer, Tag tag, Span<const std::byte> bytes) override {
    return new Operation{inner_.send(peer, tag, bytes), {}};
  }
  void* start_receive(int peer, Tag tag, Span<std::byte> bytes) override {
    return new Operation{inner_.receive(peer, tag, bytes), bytes};
  }
  void finish(void* handle, int) override {
    const std::unique_ptr<Operation> operation(static_cast<Operation*>(handle));
    operation->pending.wait();
    if (operation->bytes.empty() || ++received_ != nth_) return;
    const std::size_t bit = nth_ * 7919 % (8 * operation->bytes.size());
    operation->bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
  void abandon(void* handle) noexcept override { delete static_cast<Operation*>(handle); }

 private:
  struct Operation {
    Pending pending;
    Span<std::byte> bytes;
  };
  Communicator& inner_;
  std::uint64_t received_ = 0;
  std::uint64_t nth_ = 0;
};

struct Outcome {
  std::vector<std::vector<float>> means;  // of each rank that got some
  std::vector<std::string> errors;
  std::uint64_t received = 0;
};

/// Two steps over three ranks; the nth message that rank 1 receives in them is changed.
Outcome run_flipped(const std::string& spec, std::uint64_t nth) {
  constexpr std::size_t kElements = 3001;
  Outcome outcome;
  outcome.means.resize(3);
  outcome.errors.resize(3);
  try {
    run_in_process(3, [&](Communicator& engine) {
      const auto rank = static_cast<std::size_t>(engine.rank());
      Flipping communicator(engine);
      Session session(spec, communicator, {.seed = 5});
      session.add_bucket({{"matrix", kElements - 1, 30}, {"bias", 1}});
      session.start();
      if (rank == 1) communicator.flip(nth);
      try {
        std::vector<float> means;
        for (std::uint32_t step = 0; step < 2; ++step) {
          std::mt19937 random(10 * step + static_cast<std::uint32_t>(rank));
          std::normal_distribution<float> normal;
          std::vector<float> gradient(kElements);
          for (auto& value : gradient) value = normal(random);
          session.synchronize(0, gradient);
          session.next_step();
          means.insert(means.end(), gradient.begin(), gradient.end());
        }
        outcome.means[rank] = means;
        if (rank == 1) outcome.received = communicator.received();
      } catch (const std::exception& error) {
        outcome.errors[rank] = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {
    // outcome.errors has it.
  }
  return outcome;
}

/// What rank 1 of three says where the nth message that it receives at the start is changed, and how many it
/// has received.
std::pair<std::string, std::uint64_t> start_flipped(std::uint64_t nth) {
  std::pair<std::string, std::uint64_t> outcome;
  const auto start = [&](Communicator& engine) {
    Flipping communicator(engine);
    Session session("dense", communicator);
    session.add_bucket({{"matrix", 40}});
    if (engine.rank() == 1) communicator.flip(nth);
    try {
      session.start();
    } catch (const std::exception& error) {
      if (engine.rank() == 1) outcome.first = error.what();
      throw;
    }
    if (engine.rank() == 1) outcome.second = communicator.received();
  };
  try {
    run_in_process(3, start, std::chrono::seconds(2));
  } catch (const std::exception&) {
    // outcome has it.
  }
  return outcome;
}

TEST(BindingStart, AFlippedBitIsAnErrorThatNamesItsSender) {
  const auto [none, received] = start_flipped(0);
  ASSERT_EQ(none, "");
  ASSERT_GT(received, 0u);
  for (std::uint64_t nth = 1; nth <= received; ++nth) {
    const std::string error = start_flipped(nth).first;
    EXPECT_NE(error.find("bytes changed on the way"), std::string::npos) << nth << ": " << error;
    EXPECT_NE(error.find("(rank "), std::string::npos) << nth << ": " << error;
  }
}

/// Zen measures the link first, by messages whose bytes mean nothing; with a given link it does not.
std::string without_probes(const std::string& spec) {
  const std::size_t at = spec.rfind("zen");
  const bool measures = at != std::string::npos && spec.find("scheme=") == std::string::npos &&
                        spec.find("gbit=") == std::string::npos;
  return measures ? spec + ":gbit=10:latency_us=20" : spec;
}

TEST_P(Binding, AFlippedBitIsAnErrorThatNamesRankBucketAndStep) {
  const std::string spec = without_probes(GetParam());
  const Outcome sound = run_flipped(spec, 0);
  for (const auto& error : sound.errors) ASSERT_EQ(error, "");
  ASSERT_GT(sound.received, 0u);
  const std::uint64_t stride = std::max<std::uint64_t>(1, sound.received / 12);
  for (std::uint64_t nth = 1; nth <= sound.received; nth += stride) {
    const Outcome changed = run_flipped(spec, nth);
    EXPECT_NE(changed.errors[1], "") << "message " << nth;
    const bool named = changed.errors[1].find("bucket 0") != std::string::npos &&
                       changed.errors[1].find("rank ") != std::string::npos &&
                       changed.errors[1].find("step ") != std::string::npos;
    EXPECT_TRUE(named) << changed.errors[1];
    for (std::size_t rank = 0; rank < 3; ++rank) {
      if (changed.means[rank].empty()) continue;
      EXPECT_TRUE(std::memcmp(changed.means[rank].data(), sound.means[rank].data(),
                              sound.means[rank].size() * sizeof(float)) == 0)
          << "message " << nth << ", rank " << rank;
    }
  }
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = std::to_string(info.index) + "_" + info.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Systems, Binding, ::testing::ValuesIn(in_brief(kContractSpecs)), test_name);

/// Systems that send their stamp ahead do so behind whatever may refuse: the others are told at once.
TEST(Refusal, ARankThatRefusesAloneAndGoesOnIsNamedAtOnce) {
  for (const std::string spec : {"sketched_sgd:k=20", "marsit:full_every=0:eta_s=theorem:horizon=100"}) {
    std::atomic<int> told{0};
    EXPECT_THROW(
        run_in_process(3,
                       [&](Communicator& communicator) {
                         Session session(spec, communicator);
                         session.add_bucket({{"w", 300}});
                         session.start();
                         std::vector<float> gradient(300, 1.0f);
                         if (communicator.rank() == 1) {
                           session.set_learning_rate(-1);
                           EXPECT_THROW(session.synchronize(0, gradient), std::invalid_argument);
                           session.set_learning_rate(1);
                           session.next_step();
                         }
                         try {
                           session.synchronize(0, gradient);
                         } catch (const CommError& error) {
                           if (std::string(error.what()).find("rank 1 synchronizes bucket 0 of step 1") !=
                               std::string::npos) {
                             ++told;
                           }
                           throw;
                         }
                       }),
        CommError);
    EXPECT_EQ(told.load(), 3) << spec;
  }
}

/// A system as somebody might write it, which refuses although it has sent its stamp.
class RefusesTooLate final : public Synchronizer {
 public:
  void synchronize(BucketId, Span<float>, Span<float>, Step& step) override {
    step.communicator.commit_exchange();
    throw std::invalid_argument("too late");
  }
  std::uint64_t payload_bytes(const Workload&) const override { return 0; }
};

TEST(Refusal, ARefusalAfterTheStampEndsTheSession) {
  Registry registry;
  SystemInfo info;
  info.name = "late";
  info.summary = info.paper = info.formula = "of a test";
  info.make = [](const Options&, Inner) { return std::make_unique<RefusesTooLate>(); };
  registry.add(std::move(info));
  run_in_process(2, [&](Communicator& communicator) {
    Session session("late", communicator, {.registry = &registry});
    session.add_bucket({{"w", 3}});
    session.start();
    std::vector<float> gradient(3, 1.0f);
    EXPECT_THROW(session.synchronize(0, gradient), std::invalid_argument);
    EXPECT_THROW(session.next_step(), std::runtime_error) << "the others may have gone on";
  });
}

}  // namespace
}  // namespace thinwire::binding_test
