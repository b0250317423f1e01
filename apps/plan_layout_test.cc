#include "apps/plan_layout.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace thinwire::apps {
namespace {

std::vector<std::size_t> sizes_of(const PlanLayout& layout) {
  std::vector<std::size_t> sizes;
  for (const auto& bucket : layout.buckets) {
    sizes.push_back(0);
    for (const auto& parameter : bucket) sizes.back() += parameter.elements;
  }
  return sizes;
}

TEST(PlanLayout, ANumberOfElementsIsCutAsDdpDoes) {
  const PlanLayout layout = plan_layout({.elements = 10'000'000});
  EXPECT_EQ(sizes_of(layout), (std::vector<std::size_t>{262'144, 6'553'600, 3'184'256}));
  EXPECT_EQ(layout.buckets[0].size(), 1u);
  EXPECT_EQ(layout.buckets[0][0].rows, 512u);
  EXPECT_NE(layout.assumed.find("512 x 512"), std::string::npos);
}

TEST(PlanLayout, WhatRemainsOfAMatrixIsOneOfFewerRowsAndAVector) {
  const PlanLayout layout = plan_layout({.buckets = {10 * 10 + 3 * 10 + 7}, .width = 10});
  ASSERT_EQ(layout.buckets[0].size(), 3u);
  EXPECT_EQ(layout.buckets[0][1].rows, 3u);
  EXPECT_EQ(layout.buckets[0][2].elements, 7u);
  EXPECT_EQ(layout.buckets[0][2].rows, 7u);
}

TEST(PlanLayout, ShapesAreTakenFromTheModelsEnd) {
  const PlanLayout layout = plan_layout({.shapes = {"64x3x3x3", "1024x1024*3", "10"}});
  EXPECT_TRUE(layout.assumed.empty());
  EXPECT_EQ(sizes_of(layout), (std::vector<std::size_t>{10 + 1024 * 1024, 2 * 1024 * 1024 + 64 * 27}));
  EXPECT_EQ(layout.buckets[0][0].rows, 10u);
  EXPECT_EQ(layout.buckets[1].back().rows, 64u);
  EXPECT_EQ(layout.buckets[1].back().elements, 64u * 27);
}

TEST(PlanLayout, RefusesWhatDoesNotFit) {
  EXPECT_THROW(plan_layout({}), std::invalid_argument);
  EXPECT_THROW(plan_layout({.elements = 5, .shapes = {"5"}}), std::invalid_argument);
  EXPECT_THROW(plan_layout({.elements = 5, .buckets = {2, 2}}), std::invalid_argument);
  EXPECT_THROW(plan_layout({.buckets = {2, 0}}), std::invalid_argument);
  EXPECT_THROW(plan_layout({.elements = 5, .width = 0}), std::invalid_argument);
  EXPECT_THROW(plan_layout({.elements = 5, .bucket_megabytes = 0}), std::invalid_argument);
  for (const char* shape :
       {"", "x", "5x", "x5", "5*", "*5", "0x5", "5*0", "5y5", "-5", "65536x65536", "5*2000000"}) {
    EXPECT_THROW(plan_layout({.shapes = {shape}}), std::invalid_argument) << shape;
  }
}

TEST(EvenCompute, AThirdIsForward) {
  const StepCompute compute = even_compute({{{"a", 1}}, {{"b", 3}}}, 12, 1);
  EXPECT_EQ(compute.ready, (std::vector<double>{6, 12}));
  EXPECT_EQ(compute.backward_end, 12);
  EXPECT_THROW(even_compute({{{"a", 1}}}, -1, 1), std::invalid_argument);
}

}  // namespace
}  // namespace thinwire::apps
