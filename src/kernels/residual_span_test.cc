// A new residual beside the old one is the one that would have replaced it, bit for bit. The old one stays.
#include "thinwire/residual_span.h"
#include "kernels/dense/apply_products.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels/dense/dense.h"
#include "kernels/dense/half.h"
#include "kernels/signs/sign_bits.h"
#include "kernels/test_executors.h"

namespace thinwire::residual_span_test {
namespace {

std::vector<float> values(std::size_t count, float phase) {
  std::vector<float> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = std::sin(phase + 0.37f * static_cast<float>(i));
  return all;
}

/// kernel(executor, gradient, residual), in place and beside, cached and past the caches, aligned and not.
void expect_same_beside(std::size_t count,
                        const std::function<void(Executor&, Span<float>, const ResidualSpan&)>& kernel) {
  for_each_executor([&](Executor& executor, const std::string& name) {
    const std::vector<float> gradient = values(count, 0), before = values(count, 1);
    std::vector<float> mean_in_place = gradient, in_place = before;
    kernel(executor, mean_in_place, Span<float>(in_place));
    for (const bool large : {false, true}) {
      for (const std::size_t offset : {0, 3, 16}) {
        SCOPED_TRACE(name + ", " + std::to_string(count) + " elements, " + (large ? "large, " : "small, ") +
                     std::to_string(offset) + " floats behind a line");
        std::vector<float> mean = gradient, old = before;
        alignas(64) std::array<float, 5000> room{};
        ASSERT_LE(offset + count + 1, room.size());
        room.fill(77);
        ResidualSpan beside(Span<const float>(old), Span<float>(room.data() + offset, count));
        beside.large = large;
        kernel(executor, mean, beside);
        EXPECT_EQ(mean, mean_in_place);
        EXPECT_EQ(std::vector<float>(room.data() + offset, room.data() + offset + count), in_place);
        EXPECT_EQ(room[offset + count], 77) << "written beyond its end";
        EXPECT_EQ(old, before);
      }
    }
  });
}

TEST(ResidualBeside, IsTheOneThatWouldHaveReplacedTheOldOne) {
  for (const std::size_t count : {1, 63, 64, 200, 4500}) {
    const std::vector<std::uint64_t> bits((count + 63) / 64, 0x5A5A3C3C0F0F1234u);
    expect_same_beside(count, [&](Executor& executor, Span<float> gradient, const ResidualSpan& residual) {
      apply_signs(executor, bits, 0.25f, gradient, residual);
    });
    const std::vector<float> own = values(count, 2), sums = values(count, 3);
    expect_same_beside(count, [&](Executor& executor, Span<float> gradient, const ResidualSpan& residual) {
      apply_average(executor, own, sums, 0.5f, gradient, residual);
    });
    const std::vector<std::uint16_t> mean(count, 0x3C00);
    expect_same_beside(count, [&](Executor& executor, Span<float> gradient, const ResidualSpan& residual) {
      apply_half(executor, HalfFormat::fp16, mean, gradient, residual);
    });
  }
}

TEST(ResidualBeside, AlsoOfAProductOfFactors) {
  for (const MatrixShape shape : {MatrixShape{3, 5}, MatrixShape{17, 64}, MatrixShape{40, 100}}) {
    for (const std::size_t rank : {2, 32}) {
      const std::vector<float> left = values(shape.rows * rank, 2), right = values(shape.columns * rank, 3);
      const std::vector<float> own = values(shape.columns * rank, 4);
      expect_same_beside(shape.rows * shape.columns, [&](Executor& executor, Span<float> gradient,
                                                         const ResidualSpan& residual) {
        apply_products(executor, shape, rank, {left, right}, {left, own}, gradient, residual);
      });
    }
  }
}

}  // namespace
}  // namespace thinwire::residual_span_test
