// The stage `clip` in front of real systems, in one bucket and in several, and in several sessions.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "thinwire/in_process.h"
#include "thinwire/session.h"

namespace thinwire::clip_test {
namespace {

constexpr int kWorkers = 3;
/// Two parameters to a bucket.
constexpr std::size_t kLarge = 300;
constexpr std::size_t kSmall = 40;
constexpr std::size_t kElements = kLarge + kSmall;

BucketLayout layout(const std::string& name) {
  return {{name + ".large", kLarge, 10}, {name + ".small", kSmall, kSmall}};
}

/// Of a rank, a bucket and a step. The second bucket's is four times as large, and the last element apart.
std::vector<float> gradient_of(int rank, BucketId bucket, std::uint64_t step) {
  std::vector<float> gradient(kElements);
  for (std::size_t i = 0; i < kElements; ++i) {
    const float size = (bucket == 0 ? 1.0f : 4.0f) * (1 + 0.3f * static_cast<float>(step % 3));
    gradient[i] = size * std::sin(static_cast<float>(i) * 0.37f + static_cast<float>(rank) +
                                  2.1f * static_cast<float>(step) + static_cast<float>(bucket));
  }
  return gradient;
}

double squares_of(const std::vector<float>& values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}

std::vector<float> scaled(std::vector<float> values, double factor) {
  for (float& value : values) value *= static_cast<float>(factor);
  return values;
}

/// The mean over ranks, by an engine's own sum.
std::vector<float> mean_of(std::vector<float> values, Communicator& communicator) {
  communicator.all_reduce_sum(values);
  return scaled(std::move(values), 1.0 / communicator.size());
}

void expect_near(const std::vector<float>& left, const std::vector<float>& right, double tolerance,
                 const std::string& where) {
  for (std::size_t i = 0; i < left.size(); ++i)
    ASSERT_NEAR(left[i], right[i], tolerance) << where << ' ' << i;
}

TEST(Clip, OfOneBucketIsThatOfItsNorm) {
  run_in_process(kWorkers, [&](Communicator& communicator) {
    Session session("clip:norm=2+dense", communicator);
    session.add_bucket(layout("a"));
    EXPECT_FALSE(session.pipeline(0).lossless);
    for (std::uint64_t step = 0; step < 4; ++step) {
      std::vector<float> gradient = gradient_of(communicator.rank(), 0, step);
      const double norm = std::sqrt(squares_of(gradient));
      ASSERT_GT(norm, 2);
      const auto expected = mean_of(scaled(gradient, 2 / (norm + 1e-6)), communicator);
      session.synchronize(0, gradient);
      session.next_step();
      expect_near(gradient, expected, 1e-6, "step " + std::to_string(step));
    }
    // One that is short enough stays as it is.
    std::vector<float> gradient = scaled(gradient_of(communicator.rank(), 0, 4), 0.01);
    const auto expected = mean_of(gradient, communicator);
    session.synchronize(0, gradient);
    expect_near(gradient, expected, 1e-7, "a short one");
  });
}

TEST(Clip, WhatIsTakenInIsDelivered) {
  for (const std::string inner : {"casq:interval=1", "top_k:ratio=0.1+zen", "power_sgd:rank=1"}) {
    run_in_process(kWorkers, [&](Communicator& communicator) {
      Session session("clip:norm=0.5+" + inner, communicator);
      session.add_bucket(layout("a"));
      EXPECT_FALSE(session.pipeline(0).conserves);
      std::vector<double> balance(kElements);
      for (std::uint64_t step = 0; step < 5; ++step) {
        std::vector<float> gradient = gradient_of(communicator.rank(), 0, step);
        std::vector<float> sum = scaled(gradient, 0.5 / std::sqrt(squares_of(gradient)));
        communicator.all_reduce_sum(sum);
        session.synchronize(0, gradient);
        session.next_step();
        for (std::size_t i = 0; i < kElements; ++i) balance[i] += sum[i] - kWorkers * gradient[i];
      }
      std::vector<float> left(session.residual(0).begin(), session.residual(0).end());
      ASSERT_GT(squares_of(left), 0);
      communicator.all_reduce_sum(left);
      for (std::size_t i = 0; i < kElements; ++i) EXPECT_NEAR(balance[i], left[i], 1e-4) << inner << ' ' << i;
    });
  }
}

/// What the page says of several buckets, one after the other: the norm so far over the root of the shares.
class Estimate {
 public:
  double factor(double limit, BucketId bucket, double squares) {
    of_step_[bucket] = squares;
    seen_ += squares;
    share_ += known_ ? shares_[bucket] : 1;
    return std::min(1.0, limit / std::sqrt(seen_ / std::min(share_, 1.0)));
  }
  void end_step() {
    for (BucketId bucket = 0; bucket < 2; ++bucket) {
      const double share = of_step_[bucket] / seen_;
      shares_[bucket] = known_ ? 0.9 * shares_[bucket] + 0.1 * share : share;
    }
    known_ = true;
    give_up_step();
  }
  void give_up_step() { seen_ = share_ = 0; }

 private:
  std::array<double, 2> shares_{};
  std::array<double, 2> of_step_{};
  double seen_ = 0;
  double share_ = 0;
  bool known_ = false;
};

TEST(Clip, OfSeveralBucketsGoesByTheirShares) {
  run_in_process(kWorkers, [&](Communicator& communicator) {
    Session session("clip:norm=3+dense", communicator);
    session.add_bucket(layout("a"));
    session.add_bucket(layout("b"));
    Estimate estimate;
    for (std::uint64_t step = 0; step < 6; ++step) {
      double delivered = 0;
      for (BucketId bucket = 0; bucket < 2; ++bucket) {
        std::vector<float> gradient = gradient_of(communicator.rank(), bucket, step);
        const double squares = squares_of(gradient);
        const double factor = estimate.factor(3, bucket, squares);
        delivered += factor * factor * squares;
        const auto expected = mean_of(scaled(gradient, factor), communicator);
        session.synchronize(bucket, gradient);
        expect_near(gradient, expected, 1e-5, "step " + std::to_string(step));
      }
      session.next_step();
      estimate.end_step();
      // All buckets grow alike here, so from the second step on the estimate is nearly right.
      if (step > 0) {
        EXPECT_NEAR(std::sqrt(delivered), 3, 0.05);
      }
    }
  });
}

TEST(Clip, StepsThatDoNotCountTeachNothing) {
  run_in_process(kWorkers, [&](Communicator& communicator) {
    Session session("clip:norm=3+casq:interval=1", communicator);
    Session undisturbed("clip:norm=3+casq:interval=1", communicator);
    for (Session* one : {&session, &undisturbed}) {
      one->add_bucket(layout("a"));
      one->add_bucket(layout("b"));
    }
    const auto step = [&](Session& one, std::uint64_t number) {
      std::vector<float> all;
      for (BucketId bucket = 0; bucket < 2; ++bucket) {
        std::vector<float> gradient = gradient_of(communicator.rank(), bucket, number);
        one.synchronize(bucket, gradient);
        all.insert(all.end(), gradient.begin(), gradient.end());
      }
      one.next_step();
      return all;
    };
    step(session, 0);
    step(undisturbed, 0);
    // Of the first bucket alone, and larger than ever.
    std::vector<float> gradient = scaled(gradient_of(communicator.rank(), 0, 7), 1000);
    session.synchronize(0, gradient);
    session.undo_step();
    gradient = gradient_of(communicator.rank(), 0, 7);
    gradient[kLarge] = std::numeric_limits<float>::quiet_NaN();
    session.synchronize(0, gradient);
    EXPECT_FALSE(session.next_step());
    gradient = gradient_of(communicator.rank(), 0, 7);
    session.synchronize(0, gradient);
    EXPECT_FALSE(session.next_step(false));
    undisturbed.next_step(false);
    undisturbed.next_step(false);
    EXPECT_EQ(step(session, 1), step(undisturbed, 1));
    EXPECT_EQ(step(session, 2), step(undisturbed, 2));
  });
}

TEST(Clip, AResumedRunIsTheSame) {
  run_in_process(kWorkers, [&](Communicator& communicator) {
    Session session("clip:norm=3+dense", communicator);
    Session resumed("clip:norm=3+dense", communicator);
    for (Session* one : {&session, &resumed}) {
      one->add_bucket(layout("a"));
      one->add_bucket(layout("b"));
    }
    for (std::uint64_t step = 0; step < 5; ++step) {
      if (step == 3) {
        StateWriter writer;
        session.save(writer);
        resumed.load(StateReader(std::move(writer)));
      }
      for (BucketId bucket = 0; bucket < 2; ++bucket) {
        std::vector<float> gradient = gradient_of(communicator.rank(), bucket, step);
        std::vector<float> again = gradient;
        session.synchronize(bucket, gradient);
        if (step < 3) continue;
        resumed.synchronize(bucket, again);
        EXPECT_EQ(gradient, again) << step;
      }
      session.next_step();
      if (step >= 3) resumed.next_step();
    }
  });
}

/// As lanes do it under DDP: each session has a part of the model.
TEST(Clip, SessionsThatShareAModelKnowItsNorm) {
  run_in_process(kWorkers, [&](Communicator& communicator) {
    Session first("clip:norm=3+dense", communicator);
    Session second("clip:norm=3+dense", communicator);
    first.add_bucket(layout("a"));
    second.add_bucket(layout("b"));
    for (std::uint64_t step = 0; step < 3; ++step) {
      double delivered = 0;
      for (BucketId bucket = 0; bucket < 2; ++bucket) {
        std::vector<float> gradient = gradient_of(communicator.rank(), bucket, step);
        const double squares = squares_of(gradient);
        // Each rank's factor shows in the mean of all, of which only this rank's is not 0.
        if (communicator.rank() != 0) std::fill(gradient.begin(), gradient.end(), 0.0f);
        (bucket == 0 ? first : second).synchronize(0, gradient);
        if (communicator.rank() == 0) {
          const double factor = kWorkers * std::sqrt(squares_of(gradient) / squares);
          delivered += factor * factor * squares;
        }
      }
      const double whole = first.step_squares() + second.step_squares();
      first.next_step(true, whole);
      second.next_step(true, whole);
      // In the first step each bucket takes itself for the whole gradient.
      if (communicator.rank() == 0) {
        EXPECT_NEAR(std::sqrt(delivered), step == 0 ? 3 * std::sqrt(2.0) : 3, 0.05) << step;
      }
    }
  });
}

TEST(Clip, TheLossScaleIsNoPartOfTheNorm) {
  run_in_process(kWorkers, [&](Communicator& communicator) {
    Session session("clip:norm=2+dense", communicator);
    Session scaled_session("clip:norm=2+dense", communicator);
    session.add_bucket(layout("a"));
    scaled_session.add_bucket(layout("a"));
    scaled_session.set_loss_scale(1024);
    std::vector<float> gradient = gradient_of(communicator.rank(), 0, 0);
    std::vector<float> large = scaled(gradient, 1024);
    session.synchronize(0, gradient);
    scaled_session.synchronize(0, large);
    EXPECT_EQ(scaled(large, 1.0 / 1024), gradient);
  });
}

TEST(Clip, ParametersThatHadNoGradientForLongDoNotStopTheOthers) {
  run_in_process(kWorkers, [&](Communicator& communicator) {
    Session session("clip:norm=3+dense", communicator);
    session.add_bucket(layout("a"));
    session.add_bucket(layout("b"));
    for (std::uint64_t step = 0; step < 200; ++step) {
      std::vector<float> nothing(kElements);
      session.synchronize(0, nothing);
      std::vector<float> gradient = gradient_of(communicator.rank(), 1, step);
      session.synchronize(1, gradient);
      session.next_step();
    }
    std::vector<float> gradient = gradient_of(communicator.rank(), 0, 200);
    const double alone = 3 / std::sqrt(squares_of(gradient));
    const auto expected = mean_of(scaled(gradient, alone), communicator);
    session.synchronize(0, gradient);
    EXPECT_GT(squares_of(gradient), 0.009 * squares_of(expected));
  });
}

TEST(Clip, RowsAreClippedAsTheyAre) {
  run_in_process(kWorkers, [&](Communicator& communicator) {
    Session session("clip:norm=2+zen", communicator);
    session.add_rows("table", 100, 4);
    const std::vector<std::uint32_t> indices = {3, 50, 99};
    std::vector<float> values(12, 1.5f + static_cast<float>(communicator.rank()));
    const double norm = std::sqrt(squares_of(values));
    const auto expected = mean_of(scaled(values, 2 / norm), communicator);
    const RowSparse mean =
        session.synchronize_rows(0, {.row_indices = indices, .values = values, .rows = 100, .width = 4});
    EXPECT_EQ(std::vector<std::uint32_t>(mean.row_indices.begin(), mean.row_indices.end()), indices);
    expect_near({mean.values.begin(), mean.values.end()}, expected, 1e-6, "rows");
    EXPECT_EQ(values[0], 1.5f + static_cast<float>(communicator.rank())) << "the caller's rows were changed";
  });
}

TEST(Clip, BelongsInFrontOfWhatMeasuresAndSelects) {
  for (const std::string spec :
       {"guard+clip+casq", "top_k+clip+zen", "clip:norm=0+casq", "clip:norm=-1+casq", "whole+clip+casq",
        "warm_up:steps=50+clip+casq", "momentum+clip+casq", "decay+clip+casq", "clip+clip+casq"}) {
    EXPECT_THROW(builtin_registry().make(spec), std::invalid_argument) << spec;
  }
  EXPECT_NO_THROW(builtin_registry().make("clip+guard+casq"));
  EXPECT_NO_THROW(builtin_registry().make("clip+warm_up+whole+top_k+zen"));
  EXPECT_EQ(builtin_registry().unclipped("clip+casq"), std::vector<std::string>{"clip"});
  EXPECT_EQ(builtin_registry().unclipped("rows=clip+zen,dense=momentum+casq"),
            std::vector<std::string>{"momentum"});
  EXPECT_EQ(builtin_registry().unclipped("whole+casq"), std::vector<std::string>{});
}

TEST(Clip, AStateWithoutSharesOfItsOwnIsRefused) {
  run_in_process(1, [&](Communicator& communicator) {
    Session session("clip+dense", communicator);
    session.add_bucket({{"w", 4}});
    StateWriter writer;
    session.save(writer);
    const std::vector<float> wrong = {1.5f};
    writer.put("clip_share/w", Span<const float>(wrong));
    EXPECT_THROW(session.load(StateReader(std::move(writer))), std::runtime_error);
  });
}

}  // namespace
}  // namespace thinwire::clip_test
