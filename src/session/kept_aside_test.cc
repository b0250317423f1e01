// What next_step() copies of large buckets is copied beside the caller.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <limits>
#include <new>

#include "session/own_state.h"
#include "thinwire/in_process.h"
#include "thinwire/session.h"

namespace thinwire::kept_aside_test {
namespace {

using own_state::Values;
using own_state::values_of;

constexpr std::size_t kElements = 300'000;

/// Without zen's measured times, which no two sessions have alike.
Values state_of(const Session& session) {
  StateWriter writer;
  session.save(writer);
  Values values = values_of(StateReader(std::move(writer)));
  std::erase_if(values, [](const auto& one) { return one.first.find("_seconds/") != std::string::npos; });
  return values;
}

struct TwoBuckets : Session {
  TwoBuckets(const std::string& spec, Communicator& communicator, SessionOptions options = {})
      : Session(spec, communicator, options) {
    for (const std::string name : {"a", "b"}) add_bucket({{name + "1", 200'000, 200}, {name + "2", 100'000}});
  }

  void buckets(bool spoilt = false) {
    for (BucketId id = 0; id < 2; ++id) {
      std::vector<float> gradient(kElements);
      std::uint32_t random = 97 * static_cast<std::uint32_t>(step()) + 31 * id +
                             7 * static_cast<std::uint32_t>(communicator().rank()) + 1;
      for (float& value : gradient) {
        random = random * 1664525u + 1013904223u;
        value = static_cast<float>(static_cast<std::int32_t>(random)) * 0x1p-31f;
      }
      if (spoilt && id == 1) gradient[5] = std::numeric_limits<float>::infinity();
      synchronize(id, gradient);
    }
  }
};

/// What can follow next_step() at once: every way to touch what is being copied.
void require_whole_steps(const std::string& spec, Communicator& communicator) {
  TwoBuckets session(spec, communicator), plain(spec, communicator, {.undoes_steps = false});
  const auto step = [&] {
    session.buckets();
    plain.buckets();
    ASSERT_TRUE(session.next_step());
    ASSERT_TRUE(plain.next_step());
  };
  for (int i = 0; i < 3; ++i) step();
  const Values whole = state_of(plain);
  EXPECT_EQ(state_of(session), whole) << spec;
  session.buckets(true);
  EXPECT_FALSE(session.next_step()) << spec;
  EXPECT_EQ(state_of(session), whole) << spec << ": a step that does not count has left a trace";
  plain.next_step();
  step();
  const Values before = state_of(plain);
  session.buckets();
  session.undo_step();
  EXPECT_EQ(state_of(session), before) << spec << ": a step that was given up has left a trace";
  step();
  StateWriter saved;
  session.save(saved);
  step();
  session.load(StateReader(std::move(saved)));
  const Values loaded = state_of(session);
  session.buckets();
  session.undo_step();
  EXPECT_EQ(state_of(session), loaded) << spec << ": what was loaded is not what undo returns to";
  session.buckets();
  session.next_step();  // and ends at once
}

TEST(KeptAside, StepsAreWhole) {
  run_in_process(2, [](Communicator& communicator) {
    for (const char* spec : {"casq", "marsit:full_every=3", "top_k:ratio=0.01+zen", "sketched_sgd",
                             "power_sgd", "mc:momentum=0.5+top_k:ratio=0.01+agsparse"}) {
      require_whole_steps(spec, communicator);
    }
  });
}

/// Keeps its steps when it is told to, or never for want of memory.
class Waiting final : public Synchronizer {
 public:
  static constexpr StateKind kNothing = {.name = "waiting"};
  explicit Waiting(bool throws) : throws_(throws) {}

  void synchronize(BucketId, Span<float>, Span<float> residual, Step& step) override {
    for (float& value : residual) value += 1;
    step.report.finite = true;
  }
  std::uint64_t payload_bytes(const Workload&) const override { return 0; }
  void keep_step(BucketId) override {
    if (throws_) throw std::bad_alloc();
    beside = go.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  }

  static inline std::promise<void> go;
  static inline bool beside;

 private:
  bool throws_;
};

const Registry& waiting() {
  static const Registry registry = [] {
    Registry own;
    SystemInfo info;
    info.summary = info.paper = info.formula = "of a test";
    info.feedback_default = true;
    info.undoes_steps = true;
    for (const bool throws : {false, true}) {
      info.name = throws ? "throws" : "waits";
      info.state = {{.name = throws ? "throws" : "waits"}};
      info.make = [throws](const Options&, Inner) { return std::make_unique<Waiting>(throws); };
      own.add(info);
    }
    return own;
  }();
  return registry;
}

TEST(KeptAside, TheCallerGoesOn) {
  run_in_process(1, [](Communicator& communicator) {
    Session session("waits", communicator, {.registry = &waiting()});
    session.add_bucket({{"a", 1'000'000}});
    std::vector<float> gradient(1'000'000);
    session.synchronize(0, gradient);
    EXPECT_TRUE(session.next_step());
    Waiting::go.set_value();
    session.synchronize(0, gradient);  // waits
    EXPECT_TRUE(Waiting::beside) << "next_step() has waited for the copy";
    EXPECT_EQ(session.residual(0)[77], 2);
    session.undo_step();
    EXPECT_EQ(session.residual(0)[77], 1);
  });
}

/// One candidate that writes its residual in place would cost a copy in each step, of whatever runs.
TEST(KeptAside, NothingIsCopiedForAutoAndForSystemsWithoutLoss) {
  const Registry& registry = builtin_registry();
  for (const std::string spec : {"auto", "auto:lossless", "auto:budget=0.01"}) {
    EXPECT_TRUE(registry.make(spec).turns_residual) << spec;
  }
  for (const SystemInfo& info : registry.systems()) {
    if (info.lossless && !info.stage) {
      EXPECT_TRUE(registry.make(info.name).turns_residual) << info.name;
    }
  }
}

TEST(KeptAside, WithoutMemoryTheNextStepIsRefused) {
  run_in_process(1, [](Communicator& communicator) {
    Session session("throws", communicator, {.registry = &waiting()});
    session.add_bucket({{"a", 1'000'000}});
    std::vector<float> gradient(1'000'000);
    session.synchronize(0, gradient);
    EXPECT_TRUE(session.next_step());
    try {
      session.synchronize(0, gradient);
      ADD_FAILURE() << "a step that could not be undone has begun";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("could not be kept"), std::string::npos) << error.what();
    }
    EXPECT_NO_THROW(state_of(session));
    EXPECT_EQ(session.residual(0)[77], 1);
    EXPECT_THROW(session.next_step(), std::runtime_error);
  });
}

}  // namespace
}  // namespace thinwire::kept_aside_test
