#include "kernels/sketches/sketch_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kernels/test_executors.h"
#include "kernels/test_vectors.h"

namespace thinwire::sketch_select_test {
namespace {

/// Power-law tails, both signs, some neighbours heavy together.
std::vector<float> heavy_tailed(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(1e-7f, 1);
  std::vector<float> values(count);
  for (auto& value : values) value = (random() % 2 == 0 ? 1.0f : -1.0f) / std::sqrt(uniform(random));
  for (std::size_t i = count / 3; i < std::min(count, count / 3 + 40); ++i) values[i] = 300;
  return values;
}

void expect_same(const Selection& selection, const Selection& expected) {
  ASSERT_EQ(selection.size(), expected.size());
  if (expected.size() == 0) return;
  ASSERT_EQ(std::memcmp(selection.indices.data(), expected.indices.data(), expected.indices.size_bytes()), 0);
  ASSERT_EQ(std::memcmp(selection.values.data(), expected.values.data(), expected.values.size_bytes()), 0);
}

/// What both selections must give for a sketch of these values, by query and select.h, which are their
/// definition.
class Definition {
 public:
  Definition(const CountSketch& sketch, const std::vector<float>& values)
      : sketch_(sketch), elements_(values.size()), cells_(sketch.cells(), 0.0f) {
    const auto host = make_cpu_executor(1);
    insert(*host, sketch, values, {}, cells_);
    std::vector<float> estimates(elements_);
    query(*host, sketch, cells_, estimates);
    for (const std::size_t k :
         {std::size_t{0}, std::size_t{1}, elements_ / 300, elements_ / 20, elements_ / 2, elements_}) {
      Wanted wanted{.k = k, .largest = select_largest(*host, workspace_, estimates, {}, k), .at_least = {}};
      if (k != 0) {
        const std::uint32_t least = cut_of_largest(*host, estimates, {}, k).bits;
        for (const std::uint32_t bits : {least, least + 1, 0u}) {
          wanted.at_least.emplace_back(bits, select_at_least(*host, workspace_, estimates, {}, bits));
        }
      }
      wanted_.push_back(std::move(wanted));
    }
  }

  void expect_of(Executor& executor) const {
    Workspace workspace(executor.shared_allocator());
    Placed table(executor, cells_);
    for (const Wanted& wanted : wanted_) {
      SCOPED_TRACE(testing::Message()
                   << "n " << elements_ << " table " << sketch_.rows << "x" << sketch_.columns << " run "
                   << sketch_.run_length << " k " << wanted.k);
      workspace.reset();
      expect_same(select_largest_estimates(executor, workspace, sketch_, elements_, table, wanted.k),
                  wanted.largest);
      for (const auto& [bits, selection] : wanted.at_least) {
        expect_same(select_estimates_at_least(executor, workspace, sketch_, elements_, table, bits),
                    selection);
      }
      // Emulations are slow.
      if (wanted.k != 0 && executor.memory() != Memory::host && elements_ > 1000) break;
    }
  }

 private:
  struct Wanted {
    std::size_t k;
    Selection largest;
    std::vector<std::pair<std::uint32_t, Selection>> at_least;
  };

  CountSketch sketch_;
  std::size_t elements_;
  std::vector<float> cells_;
  Workspace workspace_;
  std::vector<Wanted> wanted_;
};

void expect_definition(Executor& executor, const CountSketch& sketch, const std::vector<float>& values) {
  Definition(sketch, values).expect_of(executor);
}

TEST(SketchSelect, EqualsTheLargestOfAllEstimates) {
  for (const std::size_t rows : {1u, 2u, 3u, 4u, 5u, 8u, 15u, 16u, 29u, 31u}) {
    const auto stream = random_stream(rows, 0, 0, RandomPurpose::sketch);
    const std::size_t columns = rows % 3 == 0 ? 77 : rows % 3 == 1 ? 1003 : 64;
    const std::size_t run = std::size_t{1} << (6 - rows % 7);
    const Definition few(make_count_sketch(stream, rows, columns, 64), test_values(1000, 2));
    const Definition some(make_count_sketch(stream, rows, columns, run), heavy_tailed(3001, 1));
    const Definition many(make_count_sketch(stream, rows, columns, run), heavy_tailed(20'003, 1));
    for_each_executor([&](Executor& executor, const std::string& name) {
      SCOPED_TRACE(name);
      few.expect_of(executor);
      some.expect_of(executor);
      if (executor.memory() == Memory::host && rows % 11 == 5) many.expect_of(executor);
    });
  }
}

TEST(SketchSelect, EdgeSizesAndThreads) {
  std::vector<std::unique_ptr<Executor>> executors;
  for (const int threads : {1, 3}) executors.push_back(make_cpu_executor(threads));
  if (cuda_devices() != 0) executors.push_back(make_cuda_executor(0));
  for (const std::size_t n : {0u, 1u, 63u, 64u, 65u, 16'385u, 200'003u}) {
    for (const std::size_t columns : {1u, 5u, 63u, 64u, 65u, 128u, 2000u}) {
      if (kSanitized && n > 100'000 && columns % 64 != 1) continue;
      const auto stream = random_stream(n, columns, 0, RandomPurpose::sketch);
      const Definition definition(make_count_sketch(stream, 5, columns, 64), heavy_tailed(n, 3));
      for (const auto& executor : executors) {
        if (executor->memory() == Memory::host || n <= 1000 || columns % 64 == 1)
          definition.expect_of(*executor);
      }
    }
  }
}

TEST(SketchSelect, DenormalsZerosAndTies) {
  auto check = [](Executor& executor) {
    const auto stream = random_stream(4, 0, 0, RandomPurpose::sketch);
    for (const std::size_t rows : {1u, 2u, 4u, 5u}) {
      const CountSketch sketch = make_count_sketch(stream, rows, 500, 64);
      std::vector<float> values(50'000, 0.0f);
      expect_definition(executor, sketch, values);  // all zero
      values[777] = -3;
      expect_definition(executor, sketch, values);  // one element, and those that share all of its cells
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) * 1e-45f;
      expect_definition(executor, sketch, values);
      std::fill(values.begin(), values.end(), 1.0f);
      expect_definition(executor, sketch, values);  // few different estimates
    }
  };
  check(*make_cpu_executor(1));
  if (cuda_devices() != 0) check(*make_cuda_executor(0));
}

TEST(SketchSelect, HeavyElementsAreFoundAsOftenAsChebyshevSays) {
  // An element's square is 4 |g|^2 / k: it is missed only if its estimate is off by half of it, so by
  // |g| / sqrt(k). A row is with probability at most k / columns = 1/8, three of five rows with at most
  // 10 (1/8)^3 (7/8)^2 + 5 (1/8)^4 (7/8) + (1/8)^5 = 0.0161.
  constexpr std::size_t kElements = 30'000;
  constexpr std::size_t kWanted = 32;
  const auto executor = make_cpu_executor(1);
  std::vector<float> values(kElements, 1.0f);
  // 4 of squares x among 30,000 ones: x = 4 (4 x + 29,996) / 32 gives x = 7,499.
  const std::vector<std::size_t> heavy = {5, 6, 700, 29'999};
  for (const std::size_t i : heavy) values[i] = std::sqrt(7499.0f);
  const double norm = 4 * 7499.0 + (kElements - 4);
  const auto least = std::bit_cast<std::uint32_t>(static_cast<float>(std::sqrt(norm / kWanted)));
  constexpr int kDraws = 1000;
  int missed = 0;
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
    const CountSketch sketch =
        make_count_sketch(random_stream(seed, 9, 0, RandomPurpose::sketch), 5, 8 * kWanted, 64);
    std::vector<float> table(sketch.cells(), 0.0f);
    insert(*executor, sketch, values, {}, table);
    Workspace workspace;
    const Selection found = select_estimates_at_least(*executor, workspace, sketch, kElements, table, least);
    for (const std::size_t i : heavy) {
      missed += std::binary_search(found.indices.begin(), found.indices.end(), i) ? 0 : 1;
    }
  }
  // 64 are allowed, with a deviation of 8.
  EXPECT_LT(missed, 64 + 4 * 8);
}

TEST(SketchSelect, ASampleThatDeceivesOnlyCostsTime) {
  // Everything large lies in one run, which the sample may or may not meet.
  std::vector<float> values(300'000, 1e-3f);
  for (std::size_t i = 128'000; i < 128'064; ++i) values[i] = static_cast<float>(i);
  const auto executor = make_cpu_executor(1);
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const auto stream = random_stream(seed, 0, 0, RandomPurpose::sketch);
    expect_definition(*executor, make_count_sketch(stream, 5, 3000, 64), values);
  }
}

}  // namespace
}  // namespace thinwire::sketch_select_test
