// `auto` with several buckets: shares for which there is time stay exact, and one session decides for all.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "planner/auto_training.h"

namespace thinwire::auto_test {
namespace {

/// Four buckets alike. Each takes 0.135 s of wire with dense and 0.007 with power_sgd.
class FourBuckets {
 public:
  explicit FourBuckets(VirtualCommunicator& communicator, const std::string& more = "")
      : communicator_(communicator),
        session_("auto:settle=2:steps=2:interval=4:within=0.1" + more, communicator) {
    for (const char* name : {"a", "b", "c", "d"}) session_.add_bucket({{name, kElements / 4, 150}});
  }

  /// The systems of the last step's buckets.
  std::vector<std::string> run(int steps, double compute) {
    std::vector<std::string> used;
    for (int i = 0; i < steps; ++i) {
      communicator_.advance(compute);
      used.clear();
      for (BucketId bucket = 0; bucket < 4; ++bucket) {
        std::vector<float> gradient = gradient_of(bucket);
        for (std::size_t k = 0; k < gradient.size(); ++k)
          account_[bucket][k] += static_cast<double>(gradient[k]);
        session_.synchronize(bucket, gradient);
        for (std::size_t k = 0; k < gradient.size(); ++k)
          account_[bucket][k] -= static_cast<double>(gradient[k]);
        const std::string scheme = session_.report(bucket).scheme;
        used.push_back(scheme.substr(0, scheme.find(':')));
        EXPECT_EQ(session_.report(bucket).wire.sent_bytes,
                  session_.report(bucket).formula_bytes + session_.report(bucket).frame_header_bytes);
      }
      EXPECT_TRUE(session_.next_step());
    }
    return used;
  }

  Session& session() { return session_; }
  /// Of which rank gradients are from now on.
  void become(std::size_t rank) { rank_ = rank; }

  /// Of each element what went in, less what came out, less what this rank has not delivered: nothing, summed
  /// over ranks.
  std::vector<double> account() const {
    std::vector<double> all;
    for (BucketId bucket = 0; bucket < 4; ++bucket) {
      const auto residual = session_.residual(bucket);
      for (std::size_t k = 0; k < kElements / 4; ++k) {
        all.push_back(account_[bucket][k] - (residual.empty() ? 0 : static_cast<double>(residual[k])));
      }
    }
    return all;
  }

 private:
  /// A matrix of rank 15, unless another one was asked for.
  std::vector<float> gradient_of(BucketId bucket) {
    std::uint32_t random = static_cast<std::uint32_t>(session_.step()) * 7919 + bucket * 31 +
                           static_cast<std::uint32_t>(communicator_.rank()) * 104729 + 1;
    std::vector<float> values(kElements / 4);
    for (std::size_t i = 0; i < values.size(); ++i) {
      random = random * 1664525u + 1013904223u;
      values[i] =
          i < rank_ ? static_cast<float>(static_cast<std::int32_t>(random)) * 0x1p-31f : values[i - rank_];
    }
    return values;
  }

  VirtualCommunicator& communicator_;
  Session session_;
  std::size_t rank_ = 15;
  std::vector<std::vector<double>> account_{4, std::vector<double>(kElements / 4)};
};

/// The members' trial, and one of each of three, two and one quarters, with a duel at the end of each.
constexpr int kTrialOfShares = kTrial + 3 * 11 + 4 * 32;

TEST(Auto, BucketsForWhichThereIsTimeAreExact) {
  const std::vector<std::string> with_one = {"dense", "power_sgd", "power_sgd", "power_sgd"};
  const std::vector<std::string> with_none(4, "power_sgd");
  std::map<int, std::string> explained;
  std::vector<std::vector<double>> accounts(kWorkers);
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    FourBuckets training(communicator);
    // A step may take 0.15 s more than the shortest: one bucket's worth.
    EXPECT_EQ(training.run(kTrialOfShares, 1.5), with_one) << training.session().explain();
    explained[communicator.rank()] = training.session().explain();
    EXPECT_NE(explained[communicator.rank()].find("power_sgd:rank=32:bits=8 (dense for the buckets of the "
                                                  "first 1/4 of the elements). Undisturbed, a step takes"),
              std::string::npos)
        << explained[communicator.rank()];
    // Bit for bit the same choice where the run is resumed, in sessions of other buckets as well.
    FourBuckets resumed(communicator);
    resumed.session().load(state_of(training.session()));
    EXPECT_EQ(resumed.run(2, 1.5), with_one);
    accounts[static_cast<std::size_t>(communicator.rank())] = training.account();
    FourBuckets without_time(communicator);
    EXPECT_EQ(without_time.run(kTrialOfShares, 0.1), with_none) << without_time.session().explain();
  });
  for (const auto& [rank, text] : explained) EXPECT_EQ(text, explained[0]) << rank;
  for (std::size_t i = 0; i < kElements; ++i) {
    double sum = 0;
    for (const auto& account : accounts) sum += account[i];
    ASSERT_NEAR(sum, 0, 1e-3) << i;
  }
}

/// With a budget below what ecsq errs by the guard takes dense. A step then takes a third longer than one
/// with power_sgd for all buckets did. Of that the guard is the reason: no milder candidate was faster.
TEST(Auto, BucketsThatTheGuardGaveToDenseAreNoReasonToTryAgain) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    FourBuckets training(communicator, ":budget=0.2");
    EXPECT_EQ(training.run(kTrialOfShares, 1.5).front(), "dense") << training.session().explain();
    training.become(kElements / 4);
    EXPECT_EQ(training.run(120, 1.5), std::vector<std::string>(4, "dense")) << training.session().explain();
    const std::string explained = training.session().explain();
    EXPECT_NE(explained.find("guard: "), std::string::npos) << explained;
    EXPECT_EQ(explained.find("candidates are tried again"), std::string::npos) << explained;
  });
}

/// Two sessions for parts of one model, as a process under DDP has them.
TEST(Auto, OneSessionDecidesForAll) {
  run_virtual(kWorkers, kSlow, [&](VirtualCommunicator& communicator) {
    Session first(kSpec, communicator), second(kSpec, communicator);
    first.add_bucket({{"a", kElements, 300}});
    second.add_bucket({{"b", kElements, 300}});
    std::vector<float> gradient(kElements, 1.0f);
    for (int step = 0; step < kTrial; ++step) {
      // The second one alone would see the time of a step otherwise.
      first.synchronize(0, gradient);
      communicator.advance(0.1 * step);
      second.synchronize(0, gradient);
      EXPECT_STREQ(first.report(0).scheme, second.report(0).scheme) << step;
      first.next_step();
      second.next_step();
      second.follow(first.decisions());
    }
    EXPECT_NE(first.explain(), "");
    EXPECT_EQ(second.explain().find("a step takes"), std::string::npos) << "it decides nothing";
    const StateReader state = state_of(second);
    EXPECT_TRUE(state.contains("auto_plan/b")) << "what is saved is the same everywhere";
  });
}

}  // namespace
}  // namespace thinwire::auto_test
