#include "apps/train/options.h"

#include <gtest/gtest.h>

namespace thinwire::train {
namespace {

TEST(LearningRate, ConstantStays) {
  Options options;
  options.schedule = Schedule::constant;
  options.learning_rate = 0.3;
  EXPECT_EQ(learning_rate_at(options, 0, 100), 0.3);
  EXPECT_EQ(learning_rate_at(options, 99, 100), 0.3);
}

TEST(LearningRate, CosineRisesThenFallsToZero) {
  Options options;
  options.schedule = Schedule::cosine;
  options.learning_rate = 1;
  EXPECT_GT(learning_rate_at(options, 0, 1000), 0);
  for (std::uint64_t step = 1; step <= 50; ++step) {
    EXPECT_GT(learning_rate_at(options, step, 1000), learning_rate_at(options, step - 1, 1000)) << step;
  }
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 50, 1000), 1);
  for (std::uint64_t step = 51; step < 1000; ++step) {
    EXPECT_LT(learning_rate_at(options, step, 1000), learning_rate_at(options, step - 1, 1000)) << step;
  }
  EXPECT_LT(learning_rate_at(options, 999, 1000), 1e-5);
  EXPECT_GT(learning_rate_at(options, 0, 1), 0.9);  // a single step has hardly any warm-up
}

TEST(LearningRate, LinearRisesToItsPeakAndFallsToZero) {
  Options options;
  options.schedule = Schedule::linear;
  options.learning_rate = 2;
  options.warm_up_steps = 20;
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 0, 100), 2.0 / 21);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 20, 100), 2);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 60, 100), 1);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 99, 100), 2.0 / 80);
  options.warm_up_steps = -1;  // a twentieth
  EXPECT_LT(learning_rate_at(options, 4, 100), 2);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 5, 100), 2);
}

TEST(LearningRate, FallsToATenthAtEachDrop) {
  Options options;
  options.learning_rate = 0.1;
  options.rate_drops = {40, 60};
  options.warm_up_steps = 0;
  for (const Schedule schedule : {Schedule::constant, Schedule::cosine, Schedule::linear}) {
    options.schedule = schedule;
    Options without = options;
    without.rate_drops.clear();
    for (const auto& [step, divisor] :
         {std::pair<std::uint64_t, double>{0, 1}, {39, 1}, {40, 10}, {59, 10}, {60, 100}, {99, 100}}) {
      EXPECT_DOUBLE_EQ(learning_rate_at(options, step, 100), learning_rate_at(without, step, 100) / divisor)
          << name_of(schedule) << " " << step;
    }
  }
}

TEST(LearningRate, SchedulesAreFoundByName) {
  for (const Schedule schedule : {Schedule::constant, Schedule::cosine, Schedule::linear}) {
    EXPECT_EQ(schedule_named(name_of(schedule)), schedule);
  }
  EXPECT_THROW(schedule_named("steps"), std::invalid_argument);
}

TEST(LearningRate, RisesForAsManyStepsAsAskedFor) {
  Options options;
  options.learning_rate = 1;
  options.warm_up_steps = 10;
  for (const Schedule schedule : {Schedule::cosine, Schedule::constant}) {
    options.schedule = schedule;
    EXPECT_LT(learning_rate_at(options, 0, 1000), 0.2);
    EXPECT_LT(learning_rate_at(options, 9, 1000), 1);
    EXPECT_DOUBLE_EQ(learning_rate_at(options, 10, 1000), 1);
  }
  options.warm_up_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 0, 1000), 1);
}

TEST(Steps, MustBeEnoughForAStepAndForTheRise) {
  const auto refusal = [](std::size_t examples, std::int64_t rise, int epoch_steps) -> std::string {
    Options options;
    options.workers = 2;
    options.batch = 5;
    options.epochs = 3;
    options.warm_up_steps = rise;
    options.epoch_steps = epoch_steps;
    try {
      require_steps(options, examples);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal(9, -1, 0).find("need 10 training examples for one step, there are 9"), std::string::npos);
  EXPECT_EQ(refusal(40, 11, 0), "");
  EXPECT_NE(refusal(40, 12, 0).find("--lr-warm-up 12: the training has 12 steps"), std::string::npos);
  EXPECT_EQ(refusal(40, 12, 7), "");
  EXPECT_NE(refusal(40, 21, 7).find("the training has 21 steps"), std::string::npos);
}

TEST(Steps, DropsMustAscendAndComeBeforeTheEnd) {
  const auto refusal = [](const std::vector<std::uint64_t>& drops) -> std::string {
    Options options;
    options.workers = 2;
    options.batch = 5;
    options.epochs = 3;
    options.rate_drops = drops;
    try {
      require_steps(options, 40);  // 12 steps
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({1, 11}), "");
  for (const auto& drops : {std::vector<std::uint64_t>{0}, {0, 5}, {5, 5}, {8, 5}}) {
    EXPECT_NE(refusal(drops).find("steps from 1 on, each later than the one before"), std::string::npos);
  }
  EXPECT_NE(refusal({5, 12}).find("--lr-drops 5,12: the training has 12 steps, numbered from 0, so step 12"),
            std::string::npos);
}

TEST(Defaults, DependOnTheModel) {
  const Options options;
  EXPECT_EQ(defaults_of("cnn").epochs, options.epochs);
  EXPECT_EQ(defaults_of("resnet20").learning_rate, options.learning_rate);
  EXPECT_EQ(defaults_of("lstm").data, "text");
  EXPECT_EQ(defaults_of("deepfm").data, "adult");
  EXPECT_EQ(defaults_of("deepfm").weight_decay, 0);
  EXPECT_EQ(defaults_of("cnn").optimizer, OptimizerKind::sgd);
  EXPECT_EQ(defaults_of("transformer").optimizer, OptimizerKind::adamw);
}

TEST(Trajectory, NamesTheLengthOnlyWhereItMatters) {
  Options options;
  options.schedule = Schedule::cosine;
  options.epochs = 7;
  EXPECT_NE(trajectory(options, "dense", 5).find("epochs=7\n"), std::string::npos);
  options.schedule = Schedule::constant;
  EXPECT_NE(trajectory(options, "dense", 5).find("epochs=any\n"), std::string::npos);
  EXPECT_EQ(trajectory(options, "dense", 5).find("ranks_per_host"), std::string::npos);
  options.ranks_per_host = 2;
  EXPECT_NE(trajectory(options, "dense", 5).find("ranks_per_host=2\n"), std::string::npos);
  EXPECT_EQ(trajectory(options, "dense", 5).find("lr_drops"), std::string::npos);
  options.rate_drops = {40, 60};
  EXPECT_NE(trajectory(options, "dense", 5).find("lr_drops=40,60\n"), std::string::npos);
  options.schedule = Schedule::linear;
  EXPECT_NE(trajectory(options, "dense", 5).find("epochs=7\n"), std::string::npos);
}

}  // namespace
}  // namespace thinwire::train
