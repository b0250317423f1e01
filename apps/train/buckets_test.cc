#include "apps/train/buckets.h"

#include <gtest/gtest.h>

#include "apps/train/models/models.h"
#include "thinwire/in_process.h"

namespace thinwire::train {
namespace {

using Plan = std::vector<std::vector<std::size_t>>;

TEST(PlanBuckets, FillsInReverseOrder) {
  EXPECT_EQ(plan_buckets({}, 40), Plan{});
  EXPECT_EQ(plan_buckets({4, 3, 2}, 1000), (Plan{{2, 1, 0}}));
  EXPECT_EQ(plan_buckets({4, 3, 2}, 20), (Plan{{2, 1}, {0}}));
  EXPECT_EQ(plan_buckets({4, 3, 2}, 19), (Plan{{2}, {1}, {0}}));
}

TEST(PlanBuckets, GivesALongParameterABucketOfItsOwn) {
  EXPECT_EQ(plan_buckets({1, 100, 1, 1}, 40), (Plan{{3, 2}, {1}, {0}}));
  EXPECT_EQ(plan_buckets({100}, 40), (Plan{{0}}));
}

TEST(GradientBuckets, BackwardWritesIntoThem) {
  run_in_process(1, [](Communicator& communicator) {
    const auto model = make_model("cnn", {}, 1);
    std::vector<std::pair<std::string, torch::Tensor>> parameters;
    for (const auto& item : model->named_parameters()) parameters.emplace_back(item.key(), item.value());
    Session session("dense", communicator);
    GradientBuckets buckets(parameters, session, 1u << 20);
    ASSERT_EQ(buckets.count(),
              3u);  // fc2 and fc1's bias; fc1's weight, longer than a bucket; the convolutions
    EXPECT_EQ(buckets.bucket(0).size(), 5010u + 500u);
    EXPECT_EQ(buckets.bucket(1).size(), 784000u);
    EXPECT_EQ(buckets.bucket(2).size(), 4640u + 160u);
    const auto backward = [&] { model->forward(torch::ones({2, 1, 28, 28})).sum().backward(); };
    backward();
    // The sum of logits of two images has a gradient of 2 for every output's bias, the last parameter.
    for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(buckets.bucket(0)[i], 2.0f);
    EXPECT_EQ(parameters.back().second.grad().data_ptr<float>(), buckets.bucket(0).data());
    buckets.zero();
    backward();
    EXPECT_EQ(buckets.bucket(0)[0], 2.0f);
  });
}

}  // namespace
}  // namespace thinwire::train
