#include "thinwire/session.h"

#include <gtest/gtest.h>

#include <limits>
#include <mutex>
#include <sstream>
#include <tuple>

#include "thinwire/in_process.h"

namespace thinwire::session_test {
namespace {

TEST(Registry, CanonicalSpecsHaveAllOptions) {
  EXPECT_EQ(builtin_registry().canonical("dense"), "dense:sum=type:feedback=off");
  EXPECT_EQ(builtin_registry().canonical("rows=dense,dense=half"),
            "rows=dense:sum=type:feedback=off,dense=half:format=fp16:feedback=off");
  EXPECT_THROW(builtin_registry().canonical("rows=dense,dense=nonsense"), std::invalid_argument);
}

TEST(Session, MisuseIsRefusedWithTheRemedy) {
  run_in_process(1, [](Communicator& communicator) {
    EXPECT_THROW(Session("nothing", communicator), std::invalid_argument);
    EXPECT_THROW(Session("marsit:full_every=-1", communicator), std::invalid_argument);
    EXPECT_THROW(Session("marsit:rows=2", communicator), std::invalid_argument);
    EXPECT_THROW(Session("mc+marsit", communicator), std::invalid_argument);
    Session session("dense", communicator);
    session.add_bucket({{"w", 4}});
    EXPECT_THROW(session.add_bucket({{"w", 1}}), std::invalid_argument);
    EXPECT_THROW(session.add_bucket({{"uneven", 10, 3}}), std::invalid_argument);
    EXPECT_THROW(session.add_bucket({{"huge", std::size_t{1} << 32}}), std::invalid_argument);
    std::vector<float> five(5);
    EXPECT_THROW(session.synchronize(0, five), std::invalid_argument);
    EXPECT_THROW(session.synchronize(1, five), std::invalid_argument);
    EXPECT_THROW(session.add_bucket({{"late", 1}}), std::invalid_argument);
  });
}

TEST(Session, HandsTheLearningRateToSystemsThatAskForIt) {
  run_in_process(1, [](Communicator& communicator) {
    for (const char* spec : {"sketched_sgd:k=1", "sketched_sgd:k=1:lr_after=on", "dense"}) {
      Session session(spec, communicator);
      session.add_bucket({{"w", 2}});
      std::vector<float> first = {4, 2};
      session.synchronize(0, first);
      session.next_step();
      session.set_learning_rate(0.5);
      std::vector<float> second = {0, 2};
      session.synchronize(0, second);
      const std::string name = spec;
      // 2 waited since a step of rate 1: times 0.5, it is to be 2 again.
      EXPECT_EQ(second[1], name == "dense" ? 2 : name == "sketched_sgd:k=1" ? 6 : 4) << spec;
    }
  });
}

TEST(Session, ARateOfZeroSendsNothingAndLosesNothing) {
  run_in_process(2, [](Communicator& communicator) {
    for (const std::string spec : {"sketched_sgd:k=1", "global_top_k:k=1", "sketched_sgd:k=1:momentum=0.9",
                                   "marsit:full_every=0:eta_s=theorem:horizon=100"}) {
      const auto train = [&](bool begins_at_zero) {
        Session session(spec, communicator);
        session.add_bucket({{"w", 40}});
        session.start();
        std::vector<float> gradient(40, 3.0f);
        if (begins_at_zero) {
          session.set_learning_rate(0);
          const StepReport report = session.synchronize(0, gradient);
          EXPECT_EQ(gradient, std::vector<float>(40, 0.0f)) << spec;
          EXPECT_EQ(report.formula_bytes, 0u) << spec;
          EXPECT_TRUE(report.finite);
          session.next_step();
          StateWriter writer;
          session.save(writer);
          const StateReader state(std::move(writer));
          std::vector<float> residual(40, 1.0f);
          state.get("residual/w", Span<float>(residual));
          EXPECT_EQ(residual, std::vector<float>(40, 0.0f)) << spec;
        }
        session.set_learning_rate(0.5);
        for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i) - 7;
        session.synchronize(0, gradient);
        return gradient;
      };
      // Sketches and bits are drawn by the number of the step.
      const std::vector<float> later = train(true);
      if (spec.starts_with("global_top_k")) {
        EXPECT_EQ(later, train(false)) << spec;
      }
    }
  });
}

TEST(Session, TakesOverWhatWaitsInUnitsOfItsOwnSystem) {
  run_in_process(1, [](Communicator& communicator) {
    const std::string inside = "sketched_sgd:k=1", outside = "top_k:k=1+zen";
    for (const auto& [before, after, expected] :
         {std::tuple(inside, outside, 2.0f), std::tuple(outside, inside, 1.0f),
          std::tuple(inside, std::string("global_top_k:k=1"), 1.0f),
          std::tuple(outside, std::string("casq"), 2.0f)}) {
      Session first(before, communicator);
      first.add_bucket({{"w", 2}});
      first.set_learning_rate(0.5);
      std::vector<float> gradient = {4, 2};
      first.synchronize(0, gradient);
      first.next_step();
      StateWriter writer;
      first.save(writer);
      const StateReader state(std::move(writer));
      Session second(after, communicator);
      second.add_bucket({{"w", 2}});
      second.set_learning_rate(0);
      if ((before == inside) != (after == "global_top_k:k=1" || after == inside)) {
        EXPECT_THROW(second.take_over(state), std::runtime_error) << before << " to " << after;
      }
      second.set_learning_rate(0.5);
      second.take_over(state);
      EXPECT_EQ(second.residual(0)[0], 0) << before << " to " << after;
      EXPECT_EQ(second.residual(0)[1], expected) << before << " to " << after;
    }
  });
}

TEST(Session, TakesOverRowsInTheirOwnUnits) {
  run_in_process(1, [](Communicator& communicator) {
    Session first("rows=casq,dense=sketched_sgd:k=1", communicator);
    first.add_bucket({{"w", 2}});
    const BucketId table = first.add_rows("table", 8, 2);
    first.set_learning_rate(0.5);
    std::vector<float> gradient = {4, 2};
    first.synchronize(0, gradient);
    const std::vector<std::uint32_t> indices = {1, 5};
    const std::vector<float> values = {1, -3, 2, 7};
    first.synchronize_rows(table, {.row_indices = indices, .values = values, .rows = 8, .width = 2});
    first.next_step();
    const std::vector<float> before(first.residual(table).begin(), first.residual(table).end());
    StateWriter writer;
    first.save(writer);
    Session second("rows=casq,dense=casq:bits=4", communicator);
    second.add_bucket({{"w", 2}});
    second.add_rows("table", 8, 2);
    second.set_learning_rate(0.5);
    second.take_over(StateReader(std::move(writer)));
    EXPECT_EQ(second.residual(0)[1], 2);
    EXPECT_EQ(std::vector<float>(second.residual(table).begin(), second.residual(table).end()), before);
    EXPECT_TRUE(std::ranges::any_of(before, [](float value) { return value != 0; }));
  });
}

TEST(Session, ATorusThatCannotBeIsRefusedOnEveryRank) {
  run_in_process(4, [](Communicator& communicator) {
    for (const char* spec : {"marsit:full_every=0:eta_s=1:topology=torus:rows=5"}) {
      Session session(spec, communicator);
      session.add_bucket({{"w", 100}});
      std::vector<float> gradient(100, 1.0f);
      EXPECT_THROW(session.synchronize(0, gradient), std::invalid_argument);
    }
  });
}

/// Runs `start` on three ranks, rank 2 configured by `odd`, and returns what rank 0 was told.
std::string complaint(const std::string& odd_spec, std::uint64_t odd_seed, std::size_t odd_elements,
                      const std::string& odd_configuration, const std::string& spec = "marsit") {
  std::mutex mutex;
  std::vector<std::string> messages(3);
  run_in_process(3, [&](Communicator& communicator) {
    const bool odd = communicator.rank() == 2;
    Session session(odd ? odd_spec : spec, communicator,
                    {.seed = odd ? odd_seed : 1, .configuration = odd ? odd_configuration : "lr=0.1"});
    session.add_bucket({{"w", odd ? odd_elements : 100}});
    try {
      session.start();
    } catch (const std::runtime_error& error) {
      std::lock_guard lock(mutex);
      messages[static_cast<std::size_t>(communicator.rank())] = error.what();
    }
  });
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_EQ(messages[0], messages[2]);
  return messages[0];
}

TEST(Session, ChecksumsOfSumsAreAskedForOnAllRanksOrNone) {
  run_in_process(3, [](Communicator& communicator) {
    communicator.set_checked_sums(communicator.rank() == 1);
    Session session("dense", communicator);
    session.add_bucket({{"w", 100}});
    try {
      session.start();
      ADD_FAILURE() << "rank " << communicator.rank();
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("checked sums"), std::string::npos) << error.what();
    }
  });
}

TEST(Session, DifferentlyConfiguredRanksRefuseToRunAndSayWhoDiffersInWhat) {
  EXPECT_EQ(complaint("marsit", 1, 100, "lr=0.1"), "");
  EXPECT_NE(complaint("marsit", 7, 100, "lr=0.1").find("rank 2 differs from rank 0 in seed (7 against 1)"),
            std::string::npos);
  EXPECT_NE(complaint("marsit:full_every=5", 1, 100, "lr=0.1").find("in spec (marsit:full_every=5"),
            std::string::npos);
  // What runs has all options, and somebody wrote one.
  const std::string option = complaint("casq:feedback=off", 1, 100, "lr=0.1", "casq");
  EXPECT_NE(option.find("in spec (casq:feedback=off against casq);"), std::string::npos) << option;
  const std::string rows = complaint("rows=zen,dense=casq:bits=4", 1, 100, "", "rows=zen,dense=ecsq");
  EXPECT_NE(rows.find("in spec (casq:bits=4 against ecsq)"), std::string::npos) << rows;
  EXPECT_NE(complaint("marsit", 1, 99, "lr=0.1").find("in bucket sizes (99 against 100)"), std::string::npos);
  EXPECT_NE(complaint("marsit", 1, 100, "lr=0.2").find("in configuration (lr=0.2 against lr=0.1)"),
            std::string::npos);
  const std::string prefix(200, 'x');
  EXPECT_NE(complaint("marsit", 1, 100, prefix + " limit=5").find("in configuration ("), std::string::npos);
  const auto both = complaint("dense", 2, 100, "lr=0.1");
  EXPECT_NE(both.find("spec"), std::string::npos);
  EXPECT_NE(both.find("seed"), std::string::npos);
}

std::string saved_state(const std::string& spec, Communicator& communicator, std::uint64_t seed,
                        std::vector<BucketLayout> buckets) {
  Session session(spec, communicator, {.seed = seed});
  for (auto& bucket : buckets) session.add_bucket(std::move(bucket));
  StateWriter writer;
  session.save(writer);
  std::ostringstream stream;
  writer.write(stream);
  return stream.str();
}

TEST(Session, RanksThatShapeAParameterDifferentlyRefuseToRun) {
  run_in_process(2, [](Communicator& communicator) {
    Session session("dense", communicator);
    session.add_bucket({{"w", 12, communicator.rank() == 0 ? 3u : 4u}, {"b", 4}});
    try {
      session.start();
      ADD_FAILURE() << "started";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("in parameter shapes (12/4 4 against 12/3 4)"),
                std::string::npos)
          << error.what();
    }
  });
}

TEST(Session, StateOfAnotherRunIsRefused) {
  run_in_process(1, [](Communicator& communicator) {
    std::istringstream stream(saved_state("marsit", communicator, 1, {{{"w", 3}}}));
    const StateReader reader(stream);
    auto load = [&](const char* spec, std::uint64_t seed, BucketLayout layout) {
      Session session(spec, communicator, {.seed = seed});
      session.add_bucket(std::move(layout));
      session.load(reader);
    };
    EXPECT_NO_THROW(load("marsit", 1, {{"w", 3}}));
    EXPECT_THROW(load("marsit:full_every=7", 1, {{"w", 3}}), std::runtime_error);
    EXPECT_THROW(load("marsit", 2, {{"w", 3}}), std::runtime_error);
    EXPECT_THROW(load("marsit", 1, {{"w", 4}}), std::runtime_error);
    EXPECT_THROW(load("marsit", 1, {{"v", 3}}), std::runtime_error);
  });
}

TEST(Session, ResidualsFollowTheirParametersIntoOtherBuckets) {
  run_in_process(2, [](Communicator& communicator) {
    Session before("ef_signsgd", communicator);
    before.add_bucket({{"a", 2}, {"b", 1}});
    before.add_bucket({{"c", 2}});
    std::vector<float> first = {1, -2, 3};
    std::vector<float> second = {4, -6};
    before.synchronize(0, first);
    before.synchronize(1, second);
    before.next_step();
    StateWriter writer;
    before.save(writer);
    std::stringstream stream;
    writer.write(stream);

    Session after("ef_signsgd", communicator);
    after.add_bucket({{"c", 2}, {"b", 1}, {"a", 2}});
    after.load(StateReader(stream));
    const auto regrouped = after.residual(0);
    EXPECT_EQ(regrouped[0], before.residual(1)[0]);
    EXPECT_EQ(regrouped[1], before.residual(1)[1]);
    EXPECT_EQ(regrouped[2], before.residual(0)[2]);
    EXPECT_EQ(regrouped[3], before.residual(0)[0]);
    EXPECT_EQ(regrouped[4], before.residual(0)[1]);
    EXPECT_EQ(after.step(), 1u);
  });
}

std::vector<float> residual_of(const Session& session, BucketId bucket) {
  const auto span = session.residual(bucket);
  return {span.begin(), span.end()};
}

TEST(Session, AStepThatIsLeftOutLeavesResidualsAsTheyWere) {
  run_in_process(2, [](Communicator& communicator) {
    Session session("ef_signsgd", communicator);
    session.add_bucket({{"a", 3}});
    session.add_bucket({{"b", 2}});
    const auto step = [&](float scale, bool both, bool counts) {
      std::vector<float> first = {scale, -2 * scale, 3 * scale};
      std::vector<float> second = {scale, 5 * scale};
      session.synchronize(0, first);
      if (both) session.synchronize(1, second);
      EXPECT_EQ(session.next_step(counts), counts);
    };
    step(1, true, true);
    const auto first = residual_of(session, 0);
    const auto second = residual_of(session, 1);
    step(7, true, false);
    EXPECT_EQ(residual_of(session, 0), first);
    EXPECT_EQ(residual_of(session, 1), second);
    session.undo_step();  // nothing is under way
    EXPECT_EQ(residual_of(session, 0), first);
    EXPECT_EQ(session.step(), 2u);
    step(3, true, true);
    EXPECT_NE(residual_of(session, 0), first);
    const auto third = residual_of(session, 1);
    step(5, false, false);  // without the second bucket, of which the step before stays
    EXPECT_EQ(residual_of(session, 1), third);
  });
}

/// The state of an ef_signsgd session after one step of a dense bucket and one of rows.
StateReader state_with_residuals(Communicator& communicator) {
  Session session("ef_signsgd", communicator);
  session.add_bucket({{"a", 3}});
  session.add_rows("table", 4, 2);
  std::vector<float> gradient = {1, -2, 30};
  session.synchronize(0, gradient);
  const std::vector<std::uint32_t> indices = {2};
  const std::vector<float> values = {1, 5};
  session.synchronize_rows(1, {indices, values, 4, 2});
  session.next_step();
  StateWriter writer;
  session.save(writer);
  return StateReader(std::move(writer));
}

/// What marsit's residual asks for is known before the step, and after a step that did not count or a state.
TEST(Session, AFullStepOfMarsitsThatIsDueStaysDue) {
  constexpr std::size_t kElements = 600;
  run_in_process(3, [&](Communicator& communicator) {
    const auto gradient_of = [&](std::uint64_t step) {
      std::vector<float> gradient(kElements);
      std::uint32_t random = static_cast<std::uint32_t>(step) * 7919 +
                             static_cast<std::uint32_t>(communicator.rank()) * 104729 + 1;
      for (float& one : gradient) {
        random = random * 1664525u + 1013904223u;
        one = static_cast<float>(static_cast<std::int32_t>(random)) * 0x1p-31f;
      }
      return gradient;
    };
    const std::string spec = "marsit:full_every=0:eta_factor=1:full_above=4";
    Session session(spec, communicator);
    session.add_bucket({{"a", kElements}});
    const std::uint64_t full = communicator.ring_sent_bytes(kElements, sizeof(float));
    const auto is_due = [&](const Session& one) { return one.payload_bytes(0) > full; };  // with the sample
    int steps = 0;
    // In the first step ranks agree on the step size by as many bytes.
    for (; (steps == 0 || !is_due(session)) && steps < 40; ++steps) {
      std::vector<float> gradient = gradient_of(session.step());
      session.synchronize(0, gradient);
      ASSERT_TRUE(session.next_step());
    }
    ASSERT_TRUE(is_due(session));
    EXPECT_GT(steps, 1);
    std::vector<float> spoilt(kElements, std::numeric_limits<float>::infinity());
    session.synchronize(0, spoilt);
    EXPECT_FALSE(session.next_step());
    EXPECT_TRUE(is_due(session)) << "the step that was to be full did not count";

    StateWriter writer;
    session.save(writer);
    Session resumed(spec, communicator);
    resumed.add_bucket({{"a", kElements}});
    resumed.load(StateReader(std::move(writer)));
    ASSERT_TRUE(is_due(resumed));
    std::vector<float> mean = gradient_of(session.step()), again = mean;
    session.synchronize(0, mean);
    resumed.synchronize(0, again);
    EXPECT_EQ(mean, again);
    EXPECT_EQ(session.report(0).residual_norm, 0) << "it was full";
    EXPECT_FALSE(is_due(session));
    ASSERT_TRUE(session.next_step());
    ASSERT_TRUE(resumed.next_step());
  });
}

TEST(Session, WithoutFeedbackTheNextFiniteStepDeliversWhatWasLeft) {
  run_in_process(1, [](Communicator& communicator) {
    const StateReader state = state_with_residuals(communicator);
    Session session("dense", communicator);
    session.add_bucket({{"a", 3}});
    session.add_rows("table", 4, 2);
    EXPECT_TRUE(session.residual(0).empty());
    EXPECT_THROW(session.load(state), std::runtime_error);
    session.take_over(state);
    EXPECT_EQ(session.step(), 1u);
    const auto left = residual_of(session, 0);
    const auto left_rows = residual_of(session, 1);
    ASSERT_EQ(left.size(), 3u);
    ASSERT_EQ(left_rows.size(), 8u);

    std::vector<float> spoilt = {1, std::numeric_limits<float>::infinity(), 0};
    session.synchronize(0, spoilt);
    EXPECT_FALSE(session.finite());
    EXPECT_FALSE(session.next_step());
    EXPECT_EQ(residual_of(session, 0), left) << "the step did not count";

    StateWriter writer;
    session.save(writer);
    const StateReader saved(std::move(writer));
    const std::vector<std::uint32_t> indices = {2, 0};
    const std::vector<float> values = {1, 2, 3, 4};
    for (int time = 0; time < 2; ++time) {
      std::vector<float> gradient = {1, 2, 3};
      session.synchronize(0, gradient);
      EXPECT_EQ(gradient, (std::vector<float>{1 + left[0], 2 + left[1], 3 + left[2]}));
      const RowSparse mean = session.synchronize_rows(1, {indices, values, 4, 2});
      const std::vector<float> dense = {3, 4, 0, 0, 1, 2, 0, 0};
      ASSERT_EQ(mean.size(), 4u) << "the residual has values in every row";
      for (std::size_t i = 0; i < dense.size(); ++i) EXPECT_EQ(mean.values[i], dense[i] + left_rows[i]) << i;
      EXPECT_TRUE(session.residual(0).empty());
      EXPECT_TRUE(session.residual(1).empty());
      // What was delivered in a step that is left out waits again.
      session.next_step(false);
      EXPECT_EQ(residual_of(session, 0), left);
      EXPECT_EQ(residual_of(session, 1), left_rows);
    }
    session.load(saved);
    EXPECT_EQ(residual_of(session, 1), left_rows);
  });
}

}  // namespace
}  // namespace thinwire::session_test
