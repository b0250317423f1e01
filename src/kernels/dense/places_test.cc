#include "kernels/dense/places.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/partition.h"
#include "kernels/rows/bitmap.h"
#include "kernels/test_executors.h"
#include "kernels/test_vectors.h"

namespace thinwire {
namespace {

/// Every third place, from the back.
std::vector<std::uint32_t> some_places(std::size_t count) {
  std::vector<std::uint32_t> places;
  for (std::size_t i = count; i-- > 0;) {
    if (i % 3 == 0) places.push_back(static_cast<std::uint32_t>(i));
  }
  return places;
}

TEST(Places, GatherAddsTheResidual) {
  for_each_executor([](Executor& executor, const std::string& name) {
    for (const std::size_t count : kTestSizes) {
      const auto gradient = test_values(count, 1);
      const auto residual = test_values(count, 2);
      const auto places = some_places(count);
      for (const bool feedback : {false, true}) {
        // In host memory, where systems read it.
        std::vector<float> out(places.size());
        gather_places(executor, Placed(executor, gradient),
                      Placed(executor, feedback ? residual : std::vector<float>()), places, out);
        for (std::size_t i = 0; i < places.size(); ++i) {
          const std::size_t at = places[i];
          ASSERT_EQ(out[i], feedback ? gradient[at] + residual[at] : gradient[at]) << name;
        }
      }
    }
  });
}

TEST(Places, HoldBackAndAddResidualAgreeWithTheirDefinitions) {
  for_each_executor([](Executor& executor, const std::string& name) {
    for (const std::size_t count : kTestSizes) {
      const auto gradient = test_values(count, 1);
      for (const bool feedback : {false, true}) {
        const auto residual = feedback ? test_values(count, 2) : std::vector<float>();
        auto sums = gradient;
        for (std::size_t i = 0; i < residual.size(); ++i) sums[i] += residual[i];
        Placed g(executor, gradient);
        Placed r(executor, residual);
        Placed out(executor, std::vector<float>(count));
        add_residual(executor, g, r, out);
        ASSERT_EQ(out.read(), sums) << name;
        hold_back(executor, g, r);
        ASSERT_EQ(g.read(), std::vector<float>(count, 0.0f)) << name;
        ASSERT_EQ(r.read(), feedback ? sums : residual) << name;
      }
    }
  });
}

TEST(Places, ScatterAndClearTouchNothingElse) {
  for_each_executor([](Executor& executor, const std::string& name) {
    for (const std::size_t count : kTestSizes) {
      const auto before = test_values(count, 1);
      const auto places = some_places(count);
      const auto values = test_values(places.size(), 2);
      auto expected = before;
      for (std::size_t i = 0; i < places.size(); ++i) expected[places[i]] = values[i];
      Placed vector(executor, before);
      scatter_places(executor, places, values, vector);
      ASSERT_EQ(vector.read(), expected) << name;
      for (const auto place : places) expected[place] = 0;
      clear_places(executor, places, vector);
      ASSERT_EQ(vector.read(), expected) << name;
    }
  });
}

TEST(Places, ClearBitsClearsWhatIsSet) {
  for_each_executor([](Executor& executor, const std::string& name) {
    for (const std::size_t count : kTestSizes) {
      auto expected = test_values(count, 1);
      Placed vector(executor, expected);
      std::vector<std::uint64_t> bits(bitmap_words(count));
      std::mt19937_64 random(3);
      for (auto& word : bits) word = random();
      for (std::size_t i = 0; i < count; ++i) {
        if (((bits[i / 64] >> (i % 64)) & 1) != 0) expected[i] = 0;
      }
      clear_bits(executor, bits, vector);
      ASSERT_EQ(vector.read(), expected) << name;
    }
  });
}

TEST(Places, SampleIsSpreadEvenly) {
  for_each_executor([](Executor& executor, const std::string& name) {
    std::vector<float> values(5000);
    std::iota(values.begin(), values.end(), 0.0f);
    Placed vector(executor, values);
    for (const std::size_t count : {0u, 1u, 7u, 1000u, 4000u}) {
      std::vector<float> out(count);
      sample_evenly(executor, vector, 900, 4000, out);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(out[i], static_cast<float>(900 + part_begin(4000, count, i))) << name;
      }
    }
  });
}

TEST(Places, MomentumIsAddedOnce) {
  for_each_executor([](Executor& executor, const std::string& name) {
    for (const std::size_t count : kTestSizes) {
      const auto velocity = test_values(count, 1);
      const auto before = test_values(count, 2);
      Placed gradient(executor, before);
      Placed corrected(executor, std::vector<float>(count));
      correct_by_momentum(executor, 0.9f, Placed(executor, velocity), gradient, corrected);
      ASSERT_EQ(gradient.read(), corrected.read()) << name;
      const auto got = corrected.read();
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(got[i], 0.9f * velocity[i] + before[i]) << name;
      }
    }
  });
}

}  // namespace
}  // namespace thinwire
