// A system from outside the library behind DDP's hook: ranks are threads, each with an engine over Gloo.
#include "torch/ddp_engine.h"

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <new>
#include <thread>

#include "session/own_state.h"
#include "thinwire/state_changes.h"

namespace thinwire {
namespace {

using own_state::left_in;
using own_state::values_of;

constexpr std::size_t kLanes = 2;
// One parameter for each bucket of a step of which some may be missing.
const std::vector<BucketLayout> kThree = {{{"a", 3}}, {{"b", 2}}, {{"c", 4}}};
const BucketLayout kA = {{"a", 3}}, kB = {{"b", 2}}, kBoth = {{"a", 3}, {"b", 2}};
using Buckets = std::vector<BucketLayout>;

/// Adds up its gradients in the residual; has no memory for bucket 1 of step 3.
class Failing final : public Synchronizer {
 public:
  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    if (bucket == 1 && step.index == 3) throw std::bad_alloc();
    for (std::size_t i = 0; i < gradient.size(); ++i) residual[i] += gradient[i];
    step.report.finite = true;
  }
  std::uint64_t payload_bytes(const Workload&) const override { return 0; }
};

const Registry& registry() {
  static const Registry own = [] {
    Registry registry = own_state::registry();
    SystemInfo info;
    info.name = "failing";
    info.summary = info.paper = info.formula = "of a test";
    info.feedback_default = true;
    info.make = [](const Options&, Inner) { return std::make_unique<Failing>(); };
    registry.add(std::move(info));
    return registry;
  }();
  return own;
}

/// The tests' own for the names that it knows.
const Registry* registry_of(const std::string& spec) {
  const auto known = [&](const SystemInfo& info) { return spec.starts_with(info.name); };
  return std::ranges::any_of(registry().systems(), known) ? &registry() : &builtin_registry();
}

/// What a bucket's `done` was told.
struct Told {
  std::vector<std::string> said;
  DdpDone done(const std::string& name) {
    return [this, name](const at::Tensor& mean, const std::exception_ptr& error) {
      said.push_back(name + (error ? ": error" : mean.defined() ? ": mean" : ": nothing"));
    };
  }
};

using Said = std::vector<std::string>;

TEST(StepMeans, GoOutWithTheLast) {
  const auto means = std::make_shared<StepMeans>();
  Told told;
  const DdpDone a = means->add(told.done("a")), b = means->add(told.done("b"));
  b(at::zeros({2}), nullptr);
  a(at::zeros({1}), nullptr);
  EXPECT_EQ(told.said, Said());  // another bucket may come
  const DdpDone c = means->add(told.done("c"));
  means->all_were_added();
  EXPECT_EQ(told.said, Said());
  c(at::zeros({3}), nullptr);
  EXPECT_EQ(told.said, (Said{"b: mean", "a: mean", "c: mean"}));
  means->all_were_added();  // as the end of backward says once more
  EXPECT_EQ(told.said.size(), 3u);
}

TEST(StepMeans, GoOutWhereTheLastBucketIsMissing) {
  const auto means = std::make_shared<StepMeans>();
  Told told;
  means->add(told.done("a"))(at::zeros({1}), nullptr);
  means->all_were_added();
  EXPECT_EQ(told.said, Said{"a: mean"});
}

TEST(StepMeans, AnErrorAnywhereEndsAll) {
  const auto error = std::make_exception_ptr(std::runtime_error("gone"));
  for (const int failing : {0, 1, 2}) {
    for (const bool all_added : {false, true}) {
      const auto means = std::make_shared<StepMeans>();
      Told told;
      std::vector<DdpDone> done;
      for (const char* name : {"0", "1", "2"}) done.push_back(means->add(told.done(name)));
      if (all_added) means->all_were_added();
      for (int bucket = 0; bucket < 3; ++bucket) {
        if (bucket == failing) {
          done[static_cast<std::size_t>(bucket)]({}, error);
        } else {
          done[static_cast<std::size_t>(bucket)](at::zeros({1}), nullptr);
        }
      }
      // The first bucket's as well, which DDP waits for first, although its mean may have come.
      EXPECT_EQ(told.said, (Said{"0: error", "1: error", "2: error"})) << failing << ", " << all_added;
    }
  }
}

TEST(StepMeans, EndWithAStepThatIsGivenUp) {
  const auto means = std::make_shared<StepMeans>();
  Told told;
  const DdpDone a = means->add(told.done("a")), b = means->add(told.done("b"));
  a(at::zeros({1}), nullptr);
  means->fail(std::make_exception_ptr(std::runtime_error("given up")));
  EXPECT_EQ(told.said, Said{"a: error"});
  b(at::zeros({1}), nullptr);
  EXPECT_EQ(told.said, (Said{"a: error", "b: error"}));
}

TEST(StepMeans, OneThatThrowsKeepsNothingFromTheOthers) {
  const auto means = std::make_shared<StepMeans>();
  Told told;
  const DdpDone a = means->add([](const at::Tensor&, const std::exception_ptr&) { throw std::bad_alloc(); });
  const DdpDone b = means->add(told.done("b"));
  means->all_were_added();
  a(at::zeros({1}), nullptr);
  EXPECT_THROW(b(at::zeros({1}), nullptr), std::bad_alloc);
  EXPECT_EQ(told.said, Said{"b: mean"});
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
                    DdpOptions{.registry = registry_of(spec)});
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

  enum class End { comes, given_up, spoilt };

  /// A backward pass of these of kThree's buckets. Returns the first error.
  std::exception_ptr part(const std::vector<std::size_t>& indices, End end = End::comes) {
    std::vector<std::vector<float>> values;
    std::vector<std::exception_ptr> errors(indices.size());
    std::atomic<std::size_t> left = indices.size();
    for (const std::size_t index : indices) {
      values.emplace_back(kThree[index][0].elements, static_cast<float>(rank_ + 1 + static_cast<int>(index)));
    }
    if (end == End::spoilt && rank_ == 1) values.back()[0] = std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < indices.size(); ++i) {
      DdpBucket bucket;
      bucket.index = indices[i];
      bucket.last = bucket.index + 1 == kThree.size();
      bucket.awaits_end = true;
      bucket.parameters = kThree[bucket.index];
      bucket.gradient =
          at::from_blob(values[i].data(), {static_cast<std::int64_t>(values[i].size())}, at::kFloat);
      engine_->submit(std::move(bucket), [&, i](const at::Tensor&, const std::exception_ptr& error) {
        errors[i] = error;
        --left;
      });
    }
    if (end == End::given_up) engine_->save();  // which learns that the step is over
    engine_->last_bucket_was_submitted();
    while (left != 0) std::this_thread::yield();
    for (const auto& error : errors) {
      if (error) return error;
    }
    engine_->end_backward({});
    return nullptr;
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

using own_state::Values;

/// The values of one parameter.
Values of(const Values& all, const std::string& parameter) {
  Values found;
  for (const auto& [name, values] : all) {
    if (name.ends_with("/" + parameter)) found[name] = values;
  }
  return found;
}

TEST(DdpEngine, AMissingBucketKeepsItsState) {
  for (std::size_t missing = 0; missing < kThree.size(); ++missing) {
    std::vector<std::size_t> present;
    for (std::size_t index = 0; index < kThree.size(); ++index) {
      if (index != missing) present.push_back(index);
    }
    for (const int full_steps : {0, 1, 3}) {
      run(2, "holder", [&](Rank& rank, std::size_t) {
        for (int step = 0; step < full_steps; ++step) EXPECT_EQ(rank.part({0, 1, 2}), nullptr);
        const std::string& name = kThree[missing][0].name;
        const Values before = values_of(rank.state());
        EXPECT_EQ(of(before, name).empty(), full_steps == 0);
        for (int step = 0; step < 4; ++step) {
          EXPECT_EQ(rank.part(present), nullptr);
          EXPECT_EQ(of(values_of(rank.state()), name), of(before, name)) << missing << ", step " << step;
        }
        EXPECT_EQ(rank.engine().step(), static_cast<std::uint64_t>(full_steps) + 4);
        // It comes back in the midst of a step, which can still be undone.
        const Values paused = values_of(rank.state());
        rank.part({0, 1, 2}, Rank::End::given_up);
        for (const auto& [entry, values] : paused) {
          EXPECT_EQ(values_of(rank.state())[entry], values) << entry << " without " << missing;
        }
        for (int step = 0; step < 3; ++step) EXPECT_EQ(rank.part({0, 1, 2}), nullptr);
        EXPECT_NE(of(values_of(rank.state()), name), of(before, name));
      });
    }
  }
}

TEST(DdpEngine, AStepInWhichABucketComesForTheFirstTimeIsUndoneAsAWhole) {
  for (const std::string spec : {"casq", "ef_signsgd", "power_sgd:rank=1", "marsit:full_every=2",
                                 "half:feedback=on", "qsgd:bits=3:feedback=on", "top_k:ratio=0.3+zen",
                                 "mc:momentum=0.9+top_k:ratio=0.3+zen", "momentum+ef_signsgd"}) {
    for (const auto end : {Rank::End::spoilt, Rank::End::given_up}) {
      run(2, spec, [&](Rank& rank, std::size_t) {
        for (int step = 0; step < 4; ++step) EXPECT_EQ(rank.part({0, 2}), nullptr);
        const Values before = values_of(rank.state());
        rank.part({0, 1, 2}, end);
        const Values after = values_of(rank.state());
        for (const auto& [entry, values] : before) {
          if (entry.find("_seconds/") != std::string::npos) continue;
          EXPECT_EQ(after.at(entry), values) << spec << ", " << entry;
        }
        EXPECT_EQ(rank.part({0, 1, 2}), nullptr) << spec;
      });
    }
  }
}

TEST(DdpEngine, StateOfAParameterThatHasNotComeYetIsKept) {
  StateReader saved{StateWriter()};
  run(1, "holder", [&](Rank& rank, std::size_t) {
    for (int step = 0; step < 3; ++step) rank.part({0, 1, 2});
    saved = rank.state();
  });
  run(1, "holder", [&](Rank& rank, std::size_t) {
    rank.engine().load(saved);
    for (int step = 0; step < 3; ++step) rank.part({0, 2});
    EXPECT_EQ(of(values_of(rank.state()), "b"), of(values_of(saved), "b"));
    rank.engine().scale_state(2);
    EXPECT_EQ(values_of(rank.state())["residual/b"][0], 2 * values_of(saved)["residual/b"][0]);
    rank.part({0, 1, 2});
    EXPECT_NE(of(values_of(rank.state()), "b"), of(values_of(saved), "b"));
  });
}

TEST(DdpEngine, ABackwardThatIsGivenUpLeavesNoTrace) {
  run(2, "holder", [](Rank& rank, std::size_t) {
    for (int step = 0; step < 3; ++step) rank.part({0, 1, 2});
    for (const std::vector<std::size_t>& some : {std::vector<std::size_t>{0}, {0, 1}, {0, 1, 2}}) {
      const Values before = values_of(rank.state());
      rank.part(some, Rank::End::given_up);
      EXPECT_EQ(values_of(rank.state()), before) << some.size() << " buckets";
      rank.part({0, 1, 2});
    }
  });
}

TEST(DdpEngine, AStepThatIsPassedOverCountsUnlessAStateIsLoaded) {
  run(2, "holder", [](Rank& rank, std::size_t) {
    for (int step = 0; step < 3; ++step) rank.part({0, 1, 2});
    const StateReader state = rank.state();
    rank.engine().pass_over_step();
    rank.part({0, 1, 2});
    EXPECT_EQ(rank.engine().step(), 5u);
    rank.engine().pass_over_step();
    rank.engine().load(state);
    EXPECT_EQ(rank.engine().step(), 3u);
    rank.part({0, 1, 2});
    EXPECT_EQ(rank.engine().step(), 4u);
  });
}

TEST(DdpEngine, AStateIsInTheBucketsOfTheLastWholeStep) {
  run(2, "holder", [](Rank& rank, std::size_t) {
    const auto bucket_of_b = [&] { return rank.state().get_integer("ddp_bucket/b"); };
    for (int step = 0; step < 2; ++step) rank.step({kBoth});
    EXPECT_EQ(bucket_of_b(), 0u);
    // Another rank may have ended before it learned of these buckets.
    rank.part({0, 1, 2}, Rank::End::given_up);
    EXPECT_EQ(bucket_of_b(), 0u);
    rank.part({0, 1, 2});
    EXPECT_EQ(bucket_of_b(), 1u);
    rank.step({kBoth});
    EXPECT_EQ(bucket_of_b(), 0u);
  });
}

TEST(DdpEngine, AnErrorOfOneLaneUndoesTheStepOfAll) {
  run(1, "failing", [](Rank& rank, std::size_t) {
    for (int step = 0; step < 3; ++step) EXPECT_EQ(rank.part({0, 1, 2}), nullptr);
    const Values before = values_of(rank.state());
    EXPECT_THROW(std::rethrow_exception(rank.part({0, 1, 2})), std::bad_alloc);
    EXPECT_EQ(values_of(rank.state()), before);
    EXPECT_EQ(rank.state().get_integer("step"), 3u);
    EXPECT_EQ(rank.engine().step(), 3u);
    EXPECT_THROW(std::rethrow_exception(rank.part({0, 1, 2})), std::bad_alloc);
    EXPECT_EQ(values_of(rank.state()), before);
  });
}

}  // namespace
}  // namespace thinwire
