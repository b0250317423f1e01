// A system from outside the library behind DDP's hook: ranks are threads, each with an engine over Gloo.
#include "torch/ddp_engine.h"

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <atomic>
#include <chrono>
#include <thread>

#include "session/own_state.h"
#include "thinwire/state_changes.h"

namespace thinwire {
namespace {

using own_state::left_in;
using own_state::values_of;

constexpr std::size_t kLanes = 2;
const BucketLayout kA = {{"a", 3}}, kB = {{"b", 2}}, kBoth = {{"a", 3}, {"b", 2}};
using Buckets = std::vector<BucketLayout>;

const Registry& registry() {
  static const Registry own = own_state::registry();
  return own;
}

/// A rank's engine, and the steps that a model of five elements takes through it.
class Rank {
 public:
  Rank(int rank, int ranks, const c10::intrusive_ptr<::c10d::Store>& store, const std::string& spec)
      : rank_(rank) {
    std::vector<std::unique_ptr<C10dCommunicator>> communicators;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto options = ::c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
      options->devices.push_back(::c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
      const auto own = c10::make_intrusive<::c10d::PrefixStore>("lane" + std::to_string(lane), store);
      communicators.push_back(std::make_unique<C10dCommunicator>(
          c10::make_intrusive<::c10d::ProcessGroupGloo>(own, rank, ranks, options), own,
          C10dCommunicator::Options{.leave_together = true}));
    }
    engine_.emplace(std::move(communicators), c10::intrusive_ptr<c10d_compat::Group>(), spec,
                    DdpOptions{.registry = &registry()});
  }

  DdpEngine& engine() { return *engine_; }
  StateReader state() { return StateReader(engine_->save()); }

  static std::vector<float> gradient_of(int rank, std::uint64_t step) {
    std::vector<float> gradient;
    for (int i = 0; i < 5; ++i)
      gradient.push_back(static_cast<float>((rank + 1) * (4 * i + 8 * int(step)) - 6));
    return gradient;
  }

  /// The mean of a, then b. A backward pass in these buckets.
  std::vector<float> step(const Buckets& buckets) {
    std::vector<float> values = gradient_of(rank_, engine_->step());
    std::vector<at::Tensor> gradients;
    std::atomic<std::size_t> left = buckets.size();
    std::size_t begin = 0;
    for (std::size_t index = 0; index < buckets.size(); ++index) {
      DdpBucket bucket;
      bucket.index = index;
      bucket.last = index + 1 == buckets.size();
      bucket.parameters = buckets[index];
      std::size_t elements = 0;
      for (const Parameter& parameter : buckets[index]) elements += parameter.elements;
      bucket.gradient =
          at::from_blob(values.data() + begin, {static_cast<std::int64_t>(elements)}, at::kFloat);
      begin += elements;
      engine_->submit(std::move(bucket), [&](const at::Tensor&, const std::exception_ptr& error) {
        EXPECT_EQ(error, nullptr);
        --left;
      });
    }
    while (left != 0) std::this_thread::yield();
    return values;
  }

 private:
  int rank_;
  std::optional<DdpEngine> engine_;
};

void run(int ranks, const std::string& spec, const std::function<void(Rank&, std::size_t)>& body) {
  const auto store = c10::make_intrusive<::c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Rank one(rank, ranks, store, spec);
      body(one, static_cast<std::size_t>(rank));
    });
  }
  for (auto& thread : threads) thread.join();
}

struct Trained {
  std::vector<StateReader> states = std::vector<StateReader>(2, StateReader(StateWriter()));
  std::vector<float> undelivered = std::vector<float>(5);  // sums over ranks
  std::vector<float> next_mean;                            // of a further step
};

void account(std::vector<float>& undelivered, std::uint64_t step, const std::vector<float>& mean) {
  for (std::size_t i = 0; i < mean.size(); ++i) {
    undelivered[i] += Rank::gradient_of(0, step)[i] + Rank::gradient_of(1, step)[i] - 2 * mean[i];
  }
}

/// Three steps of two ranks in two buckets, which are on different lanes.
Trained train() {
  Trained trained;
  run(2, "holder", [&](Rank& rank, std::size_t at) {
    for (std::uint64_t step = 0; step < 3; ++step) {
      const auto mean = rank.step({kA, kB});
      if (at == 0) account(trained.undelivered, step, mean);
    }
    trained.states[at] = rank.state();
    const auto mean = rank.step({kA, kB});
    if (at == 0) trained.next_mean = mean;
  });
  return trained;
}

TEST(DdpEngine, SystemsFromOutsideKeepTheirStateInCheckpoints) {
  const Trained trained = train();
  EXPECT_EQ(left_in(trained.states), trained.undelivered);
  EXPECT_NE(trained.undelivered, std::vector<float>(5));
  run(2, "holder", [&](Rank& rank, std::size_t at) {
    rank.engine().load(trained.states[at]);
    EXPECT_EQ(values_of(rank.state()), values_of(trained.states[at]));
    EXPECT_EQ(rank.step({kBoth}), trained.next_mean) << "in the buckets of the state";
    EXPECT_EQ(rank.engine().buckets().size(), 2u);
    rank.step({kBoth});
    EXPECT_EQ(rank.engine().buckets().size(), 1u);
    EXPECT_EQ(values_of(rank.state()).size(), values_of(trained.states[at]).size());
  });
}

TEST(DdpEngine, SystemsFromOutsideFollowTheLossScale) {
  const Trained trained = train();
  run(2, "holder", [&](Rank& rank, std::size_t at) {
    auto expected = values_of(trained.states[at]);
    for (auto& [name, values] : expected) {
      for (float& value : values) value *= name.starts_with("own_count/") ? 1.0f : 4.0f;
    }
    rank.engine().load(trained.states[at]);
    rank.engine().scale_state(4);  // before any bucket is known
    EXPECT_EQ(values_of(rank.state()), expected);
    rank.step({kA, kB});
    const auto before = values_of(rank.state());
    rank.engine().scale_state(0.25f);
    for (const auto& [name, values] : values_of(rank.state())) {
      EXPECT_EQ(values[0], before.at(name)[0] * (name.starts_with("own_count/") ? 1.0f : 0.25f)) << name;
    }
  });
}

TEST(DdpEngine, SystemsFromOutsideGoToAnotherNumberOfRanks) {
  const Trained trained = train();
  const StateReader merged(merged_state(trained.states, registry()));
  const StateReader share(shared_state(merged, 2, 1, registry()));
  run(1, "holder", [&](Rank& rank, std::size_t) {
    rank.engine().load(share);
    std::vector<StateReader> states;
    states.push_back(rank.state());
    EXPECT_EQ(left_in(states), trained.undelivered);
    rank.step({kBoth});
  });
}

TEST(DdpEngine, SystemsFromOutsideHandOnWhatMoves) {
  for (const std::string spec : {"releaser", "releaser:feedback=off"}) {
    Trained trained = train();
    std::vector<float> undelivered = trained.undelivered;
    run(2, "holder", [&](Rank& rank, std::size_t at) {
      rank.engine().load(trained.states[at]);
      rank.step({kA, kB});
      rank.engine().set_spec(spec);
      const auto mean = rank.step({kA, kB});
      if (at == 0) {
        account(undelivered, 3, trained.next_mean);
        account(undelivered, 4, mean);
      }
      trained.states[at] = rank.state();
      EXPECT_FALSE(trained.states[at].contains("own_speed/a"));
    });
    EXPECT_EQ(undelivered, std::vector<float>(5)) << spec;
    EXPECT_EQ(left_in(trained.states), std::vector<float>(5)) << spec;
  }
}

}  // namespace
}  // namespace thinwire
