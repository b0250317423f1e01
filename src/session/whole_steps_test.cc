// A step is all or nothing: after one that was not finite or that failed, every system's state is, to the
// bit, that of the end of the step before.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <new>

#include "session/contract_specs.h"
#include "session/own_state.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"
#include "thinwire/session.h"

namespace thinwire::whole_steps_test {
namespace {

using own_state::Values;
using own_state::values_of;

constexpr std::size_t kBuckets = 3, kElements = 600;

Values state_of(const Session& session) {
  StateWriter writer;
  session.save(writer);
  return values_of(StateReader(std::move(writer)));
}

struct ThreeBuckets : Session {
  ThreeBuckets(const std::string& spec, Communicator& communicator, SessionOptions options = {})
      : Session(spec, communicator, options) {
    for (const std::string name : {"a", "b", "c"}) add_bucket({{name + "1", 400, 20}, {name + "2", 200}});
  }

  void bucket(BucketId id, bool spoilt = false) {
    std::vector<float> gradient(kElements);
    std::uint32_t random = 97 * static_cast<std::uint32_t>(step()) + 31 * id +
                           7 * static_cast<std::uint32_t>(communicator().rank()) + 1;
    for (float& value : gradient) {
      random = random * 1664525u + 1013904223u;
      value = static_cast<float>(static_cast<std::int32_t>(random)) * 0x1p-31f;
    }
    if (spoilt) gradient[5] = std::numeric_limits<float>::infinity();
    synchronize(id, gradient);
  }

  void step_of_all() {
    for (BucketId id = 0; id < kBuckets; ++id) bucket(id);
    EXPECT_TRUE(next_step());
  }
};

/// The state with each numeric entry in turn twice as long.
void for_each_damage(const StateReader& state,
                     FunctionRef<void(const std::string&, const StateReader&)> body) {
  for (const std::string& damaged : state.names("")) {
    if (state.type(damaged) != StateReader::Type::floats) continue;
    StateWriter writer;
    for (const std::string& name : state.names("")) {
      if (name != damaged) writer.copy(state, name);
    }
    std::vector<float> values(state.length(damaged) * 2, 0.5f);
    writer.put(damaged, Span<const float>(values));
    body(damaged, StateReader(std::move(writer)));
  }
}

TEST(RefusedStates, ChangeNothing) {
  for (const std::string spec : {"rows=power_sgd:rank=2,dense=alq:every=1:feedback=on",
                                 "mc:momentum=0.5+top_k:ratio=0.3+s2_reducer:lambda=exact",
                                 "mc:momentum=0.5+sketched_sgd:k=10:columns_ratio=0.05", "casq:interval=1",
                                 "whole+power_sgd:rank=2"}) {
    run_in_process(2, [&](Communicator& communicator) {
      const auto make = [&] {
        auto session = std::make_unique<ThreeBuckets>(spec, communicator);
        session->add_rows("table", 8, 50);
        return session;
      };
      const auto step = [&](ThreeBuckets& session, float value) {
        for (BucketId id = 0; id < kBuckets; ++id) session.bucket(id);
        const std::vector<std::uint32_t> indices = {1, 5};
        const std::vector<float> values(100, value);
        session.synchronize_rows(kBuckets, {indices, values, 8, 50});
        EXPECT_TRUE(session.next_step());
      };
      const auto session = make();
      step(*session, 1);
      StateWriter writer;
      session->save(writer);
      const StateReader state(std::move(writer));
      step(*session, 2);
      step(*session, 3);
      StateWriter later;
      session->save(later);
      const StateReader good(std::move(later));
      const Values before = values_of(good);
      std::size_t refused = 0;
      for_each_damage(state, [&](const std::string& name, const StateReader& damaged) {
        try {
          session->load(damaged);
          session->load(good);  // what nobody reads may be of any length
        } catch (const std::runtime_error&) {
          EXPECT_EQ(state_of(*session), before) << spec << ": " << name;
          ++refused;
        }
      });
      EXPECT_GE(refused, 2u) << spec;
    });
  }
}

/// An own system that keeps a sum of its gradients, and has no memory for bucket 2.
class Throwing final : public Synchronizer {
 public:
  static constexpr StateKind kSums = {.name = "throwing_sums"};

  void synchronize(BucketId bucket, Span<float> gradient, Span<float> residual, Step& step) override {
    std::vector<float>& sums = sums_[bucket];
    sums.resize(gradient.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      sums[i] += gradient[i];
      residual[i] += gradient[i];
    }
    if (bucket == 2) throw std::bad_alloc();
    step.report.finite = true;
  }
  std::uint64_t payload_bytes(const Workload&) const override { return 0; }
  void save(BucketWriter& writer) const override {
    for (const auto& [bucket, sums] : sums_) writer.elements(kSums, bucket, Span<const float>(sums));
  }
  void load(const BucketReader& reader) override {
    std::map<BucketId, std::vector<float>> loaded;
    for (BucketId bucket = 0; bucket < reader.buckets(); ++bucket) {
      std::vector<float> sums(reader.bucket_elements(bucket));
      if (reader.elements(kSums, bucket, sums)) loaded[bucket] = std::move(sums);
    }
    sums_ = std::move(loaded);
  }

 private:
  std::map<BucketId, std::vector<float>> sums_;
};

const Registry& throwing() {
  static const Registry registry = [] {
    Registry own;
    SystemInfo info;
    info.name = "throws";
    info.summary = info.paper = info.formula = "of a test";
    info.feedback_default = true;
    info.state = {Throwing::kSums};
    info.make = [](const Options&, Inner) { return std::make_unique<Throwing>(); };
    own.add(std::move(info));
    return own;
  }();
  return registry;
}

/// Passes everything on to another communicator, until it is to fail.
class Faulty final : public Communicator {
 public:
  explicit Faulty(Communicator& engine) : Communicator(engine.rank(), engine.size()), engine_(engine) {}
  std::string engine() const override { return engine_.engine(); }
  /// The send after `sends` more ones throws std::bad_alloc.
  void fail_after(int sends) { left_ = sends; }

 protected:
  void* start_send(int peer, Tag tag, Span<const std::byte> bytes) override {
    if (left_ == 0) throw std::bad_alloc();
    if (left_ > 0) --left_;
    return new Pending(engine_.send(peer, tag, bytes));
  }
  void* start_receive(int peer, Tag tag, Span<std::byte> bytes) override {
    return new Pending(engine_.receive(peer, tag, bytes));
  }
  void finish(void* operation, int) override {
    const std::unique_ptr<Pending> pending(static_cast<Pending*>(operation));
    pending->wait();
  }
  void abandon(void* operation) noexcept override { delete static_cast<Pending*>(operation); }

 private:
  Communicator& engine_;
  int left_ = -1;
};

template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

std::vector<std::string> specs() {
  std::vector<std::string> all = kContractSpecs;
  for (const char* more : {"mc:momentum=0.9+top_k:ratio=0.1+zen", "dgc:ratio=0.1:clip=1+zen", "alq:every=2",
                           "casq:interval=1:double_momentum=0.5", "marsit:full_every=2"}) {
    if (std::find(all.begin(), all.end(), more) == all.end()) all.emplace_back(more);
  }
  return all;
}

class WholeSteps : public testing::TestWithParam<std::string> {};

TEST_P(WholeSteps, OneBadBucketUndoesTheStep) {
  run_in_process(3, [](Communicator& communicator) {
    ThreeBuckets session(GetParam(), communicator);
    for (const int whole : {0, 1, 3}) {  // steps before
      for (int step = 0; step < whole; ++step) session.step_of_all();
      const Values before = state_of(session);
      const std::uint64_t step = session.step();
      session.bucket(0);
      session.bucket(1, communicator.rank() == 1);
      session.bucket(2);
      EXPECT_FALSE(session.finite());
      EXPECT_FALSE(session.next_step());
      EXPECT_EQ(session.step(), step + 1);
      EXPECT_EQ(state_of(session), before) << "after " << step << " steps";
    }
    session.step_of_all();
  });
}

TEST_P(WholeSteps, AnErrorAnywhereUndoesTheStepAndEndsTheSession) {
  for (const int failing_send : kSanitized ? std::vector{0, 2, 8} : std::vector{0, 1, 2, 3, 5, 8, 13, 21}) {
    std::mutex mutex;
    std::vector<std::uint64_t> steps;
    EXPECT_THROW(run_in_process(3,
                                [&](Communicator& engine) {
                                  Faulty communicator(engine);
                                  ThreeBuckets session(GetParam(), communicator);
                                  std::vector<Values> at_end;  // of each step
                                  at_end.push_back(state_of(session));
                                  for (int step = 0; step < 3; ++step) {
                                    session.step_of_all();
                                    at_end.push_back(state_of(session));
                                  }
                                  if (engine.rank() == 0) communicator.fail_after(failing_send);
                                  const auto train = [&] {
                                    while (true) {
                                      session.step_of_all();
                                      at_end.push_back(state_of(session));
                                    }
                                  };
                                  const std::string first = error_of(train);
                                  EXPECT_EQ(state_of(session), at_end.at(session.step())) << first;
                                  EXPECT_EQ(at_end.size(), session.step() + 1);
                                  for (const std::string& later : {error_of([&] { session.bucket(0); }),
                                                                   error_of([&] { session.next_step(); }),
                                                                   error_of([&] { session.start(); })}) {
                                    EXPECT_NE(later.find(first), std::string::npos) << later;
                                    EXPECT_NE(later.find("new communicator"), std::string::npos) << later;
                                  }
                                  throw std::runtime_error("the rank ends");
                                }),
                 std::runtime_error);
  }
}

INSTANTIATE_TEST_SUITE_P(Systems, WholeSteps, testing::ValuesIn(specs()),
                         [](const auto& parameter) { return test_name(parameter.param); });

TEST(Step, WithoutCopiesAnErrorLeavesNothingToSave) {
  run_in_process(1, [](Communicator& engine) {
    Faulty communicator(engine);
    ThreeBuckets session("throws", communicator, {.registry = &throwing(), .undoes_steps = false});
    session.bucket(0);
    session.next_step();
    EXPECT_THROW(session.bucket(2), std::bad_alloc);
    const std::string first = error_of([&] { state_of(session); });
    EXPECT_NE(first.find("step 1 has failed (bucket 2: "), std::string::npos) << first;
    EXPECT_NE(first.find("last checkpoint"), std::string::npos) << first;
  });
}

TEST(Step, OfSystemsFromOutsideIsUndoneByWhatTheySave) {
  run_in_process(1, [](Communicator& communicator) {
    ThreeBuckets session("throws", communicator, {.registry = &throwing()});
    session.bucket(0);
    session.bucket(1);
    EXPECT_TRUE(session.next_step());
    const Values before = state_of(session);
    session.bucket(0);
    EXPECT_THROW(state_of(session), std::logic_error) << "in the midst of a step";
    EXPECT_THROW(session.bucket(2), std::bad_alloc);
    EXPECT_EQ(state_of(session), before);
    EXPECT_EQ(session.step(), 1u);
  });
  run_in_process(2, [](Communicator& communicator) {
    const Registry registry = own_state::registry();
    ThreeBuckets session("holder", communicator, {.registry = &registry});
    session.step_of_all();
    const Values before = state_of(session);
    session.bucket(0);
    session.bucket(2);
    EXPECT_FALSE(session.next_step(false));
    EXPECT_EQ(state_of(session), before);
    session.bucket(1);
    session.undo_step();
    EXPECT_EQ(state_of(session), before);
    EXPECT_EQ(session.step(), 2u);
  });
}

TEST(Step, ARefusalOfTheSystemIsForTheStepAlone) {
  run_in_process(2, [](Communicator& communicator) {
    ThreeBuckets session("sketched_sgd:k=5", communicator);
    session.step_of_all();
    const Values before = state_of(session);
    session.bucket(0);
    session.set_learning_rate(-1);
    EXPECT_THROW(session.bucket(1), std::invalid_argument);
    EXPECT_EQ(state_of(session), before);
    const std::string later = error_of([&] { session.bucket(1); });
    EXPECT_NE(later.find("end it with next_step()"), std::string::npos) << later;
    session.set_learning_rate(1);
    EXPECT_FALSE(session.next_step());
    session.step_of_all();
  });
}

/// Names of the entries that differ, but for those that are times.
std::string differing(Values one, Values other) {
  std::string names;
  for (Values* values : {&one, &other}) {
    std::erase_if(*values,
                  [](const auto& entry) { return entry.first.find("_seconds/") != std::string::npos; });
  }
  for (const auto& [name, values] : one) {
    const auto found = other.find(name);
    if (found == other.end() || found->second != values) names += name + " ";
  }
  for (const auto& [name, values] : other) {
    if (!one.contains(name)) names += name + " ";
  }
  return names;
}

/// A session for the buckets of a step that has begun in another one.
std::unique_ptr<ThreeBuckets> moved_within_step(ThreeBuckets& from, const std::string& spec,
                                                Communicator& communicator) {
  StateWriter now, before;
  from.save_within_step(now);
  from.undo_step();
  from.save(before);
  auto session = std::make_unique<ThreeBuckets>(spec, communicator);
  session->load(StateReader(std::move(before)));
  session->load_within_step(StateReader(std::move(now)));
  return session;
}

TEST_P(WholeSteps, AStepThatGoesOnInAnotherSessionIsOneStep) {
  enum class End { counts, spoilt, given_up, leaves_out };
  run_in_process(3, [](Communicator& communicator) {
    for (const End end : {End::counts, End::spoilt, End::given_up, End::leaves_out}) {
      SCOPED_TRACE(static_cast<int>(end));
      ThreeBuckets undisturbed(GetParam(), communicator), first(GetParam(), communicator);
      for (int step = 0; step < 2; ++step) {
        undisturbed.step_of_all();
        first.step_of_all();
      }
      const Values before = state_of(first);
      first.bucket(0);
      const auto session = moved_within_step(first, GetParam(), communicator);
      session->bucket(1);
      session->bucket(2, end == End::spoilt && communicator.rank() == 1);
      if (end == End::given_up) {
        session->undo_step();
        EXPECT_EQ(differing(state_of(*session), before), "");
        continue;
      }
      if (end == End::spoilt) {
        EXPECT_FALSE(session->next_step());
        EXPECT_EQ(differing(state_of(*session), before), "");
        continue;
      }
      if (GetParam().starts_with("auto")) continue;  // chooses by the time that a step takes
      for (BucketId id = 0; id < kBuckets; ++id) undisturbed.bucket(id);
      for (ThreeBuckets* one : {session.get(), &undisturbed}) {
        if (end == End::leaves_out) one->leave_out("a2");
        EXPECT_TRUE(one->next_step());
      }
      EXPECT_EQ(differing(state_of(*session), state_of(undisturbed)), "");
    }
  });
}

TEST_P(WholeSteps, AParameterThatIsLeftOutLosesNothing) {
  run_in_process(3, [](Communicator& communicator) {
    ThreeBuckets session(GetParam(), communicator);
    for (int step = 0; step < 2; ++step) session.step_of_all();
    const Values before = state_of(session);
    for (BucketId id = 0; id < kBuckets; ++id) session.bucket(id);
    session.leave_out("a2");
    session.leave_out("c1");
    session.leave_out("of nobody");
    EXPECT_TRUE(session.next_step());
    for (const auto& [name, values] : state_of(session)) {
      const bool vector = name.starts_with("residual/") || name.starts_with("velocity/") ||
                          name.starts_with("casq_momentum/") || name.starts_with("delivered_momentum/");
      const bool left_out = name.ends_with("/a2") || name.ends_with("/c1");
      if (vector && left_out) {
        const auto found = before.find(name);
        const std::vector<float> zeros(values.size());
        EXPECT_EQ(values, found == before.end() ? zeros : found->second) << name;
      }
    }
    session.step_of_all();
  });
}

}  // namespace
}  // namespace thinwire::whole_steps_test
