#include "thinwire/session.h"

#include <gtest/gtest.h>

#include <mutex>
#include <sstream>

#include "thinwire/in_process.h"

namespace thinwire {
namespace {

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
                      const std::string& odd_configuration) {
  std::mutex mutex;
  std::vector<std::string> messages(3);
  run_in_process(3, [&](Communicator& communicator) {
    const bool odd = communicator.rank() == 2;
    Session session(odd ? odd_spec : "marsit", communicator,
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

TEST(Session, DifferentlyConfiguredRanksRefuseToRunAndSayWhoDiffersInWhat) {
  EXPECT_EQ(complaint("marsit", 1, 100, "lr=0.1"), "");
  EXPECT_NE(complaint("marsit", 7, 100, "lr=0.1").find("rank 2 differs from rank 0 in seed (7 against 1)"),
            std::string::npos);
  EXPECT_NE(complaint("marsit:full_every=5", 1, 100, "lr=0.1").find("in spec (marsit:full_every=5"),
            std::string::npos);
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

TEST(Session, AStepThatIsLeftOutLeavesResidualsAsTheyWere) {
  run_in_process(2, [](Communicator& communicator) {
    Session session("ef_signsgd", communicator);
    session.add_bucket({{"a", 3}});
    session.add_bucket({{"b", 2}});
    const auto step = [&](float scale) {
      std::vector<float> first = {scale, -2 * scale, 3 * scale};
      std::vector<float> second = {scale, 5 * scale};
      session.synchronize(0, first);
      session.synchronize(1, second);
      session.next_step();
    };
    const auto owed = [&](BucketId bucket) {
      const auto span = session.residual(bucket);
      return std::vector<float>(span.begin(), span.end());
    };
    step(1);
    session.restore_residual(0);  // nothing was kept yet
    const auto first = owed(0);
    session.keep_residual(0);
    step(7);
    const auto second = owed(1);
    ASSERT_NE(owed(0), first);
    session.restore_residual(0);
    session.restore_residual(1);
    EXPECT_EQ(owed(0), first);
    EXPECT_EQ(owed(1), second);

    const std::vector<float> more = {1, 2, 3};
    EXPECT_TRUE(session.add_to_residual(0, more));
    EXPECT_EQ(owed(0), (std::vector<float>{first[0] + 1, first[1] + 2, first[2] + 3}));
    EXPECT_THROW(session.add_to_residual(1, more), std::invalid_argument);
  });
}

TEST(Session, WithoutFeedbackThereIsNoResidualToChange) {
  run_in_process(1, [](Communicator& communicator) {
    Session session("dense", communicator);
    session.add_bucket({{"a", 2}});
    session.keep_residual(0);
    session.restore_residual(0);
    const std::vector<float> more = {1, 2};
    EXPECT_FALSE(session.add_to_residual(0, more));
    EXPECT_TRUE(session.residual(0).empty());
  });
}

}  // namespace
}  // namespace thinwire
