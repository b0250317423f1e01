#include "kernels/signs/sign_votes.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "kernels/test_executors.h"

namespace thinwire::sign_votes_test {
namespace {

/// Counts votes bit by bit and compares; workers chosen around powers of two, where a plane is added.
TEST(SignVotes, CountersAndMajorityAgreeWithCounting) {
  for_each_executor([&](Executor& executor, const std::string& target) {
    for (const std::uint32_t workers : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u, 33u}) {
      for (const std::size_t words : {0u, 1u, 7u, 16u, 1030u}) {
        if (workers > 9 && words > 16) continue;
        std::mt19937_64 random(workers * 1000 + words);
        const int planes = static_cast<int>(std::bit_width(workers));
        Placed counters(executor, std::vector<std::uint64_t>(words * static_cast<std::size_t>(planes), 0));
        std::vector<std::uint32_t> counts(words * 64, 0);
        for (std::uint32_t worker = 0; worker < workers; ++worker) {
          std::vector<std::uint64_t> bits(words);
          for (auto& word : bits) word = random();
          add_votes(executor, counters, planes, bits);
          for (std::size_t i = 0; i < counts.size(); ++i)
            counts[i] += static_cast<std::uint32_t>((bits[i / 64] >> (i % 64)) & 1);
        }
        std::vector<std::uint64_t> ties(words);
        for (auto& word : ties) word = random();
        Placed placed_majority(executor, std::vector<std::uint64_t>(words));
        majority_of_votes(executor, counters, planes, workers, ties, placed_majority);
        const auto majority = placed_majority.read();
        for (std::size_t i = 0; i < counts.size(); ++i) {
          const bool tie = (ties[i / 64] >> (i % 64)) & 1;
          const bool expected = 2 * counts[i] == workers ? tie : 2 * counts[i] > workers;
          ASSERT_EQ((majority[i / 64] >> (i % 64)) & 1, expected ? 1u : 0u)
              << target << " workers " << workers;
        }
      }
    }
  });
}

}  // namespace
}  // namespace thinwire::sign_votes_test
