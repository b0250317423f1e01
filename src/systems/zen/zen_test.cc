#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/partition.h"
#include "core/philox.h"
#include "kernels/rows/index_permutation.h"
#include "systems/systems.h"
#include "thinwire/cuda.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"
#include "thinwire/state.h"

namespace thinwire::zen_test {
namespace {

constexpr std::uint64_t kSeed = 11;
constexpr std::uint64_t kStep = 5;

std::unique_ptr<Synchronizer> make_zen(const std::string& options) {
  const SystemInfo info = zen_info();
  return info.make(Options(parse_spec("zen" + options).front(), info.options), {});
}

struct Result {
  std::vector<float> mean;
  StepReport report;
  Traffic traffic;
};

/// One step of zen on every rank's gradient, in the host's memory or a device's; everything of every rank.
std::vector<Result> run(const std::string& options, const std::vector<std::vector<float>>& gradients,
                        bool on_device = false) {
  std::vector<Result> results(gradients.size());
  run_in_process(static_cast<int>(gradients.size()), [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto zen = make_zen(options);
    const auto executor = on_device ? make_cuda_executor(0) : make_cpu_executor(1);
    Workspace workspace(executor->shared_allocator());
    Workspace scratch(executor->allocator());
    Step step{.communicator = communicator,
              .executor = *executor,
              .workspace = workspace,
              .index = kStep,
              .seed = kSeed,
              .scratch = scratch};
    const auto gradient = scratch.take<float>(gradients[rank].size());
    copy(*executor, Span<const float>(gradients[rank]), gradient);
    zen->synchronize(0, gradient, {}, step);
    results[rank].mean.resize(gradient.size());
    copy(*executor, Span<const float>(gradient), Span<float>(results[rank].mean));
    results[rank].report = step.report;
    results[rank].traffic = communicator.traffic();
  });
  return results;
}

using Pattern = std::vector<float> (*)(std::size_t rank, std::size_t world, std::size_t elements);

float value_of(std::size_t rank, std::size_t i) {
  return std::ldexp(1.0f + static_cast<float>(i * 2654435761u % 1000) / 999.0f, static_cast<int>(rank % 5)) *
         (i % 3 == 0 ? -1.0f : 1.0f);
}

std::vector<float> empty(std::size_t, std::size_t, std::size_t elements) {
  return std::vector<float>(elements, 0.0f);
}
std::vector<float> full(std::size_t rank, std::size_t, std::size_t elements) {
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) values[i] = value_of(rank, i);
  return values;
}
std::vector<float> single(std::size_t rank, std::size_t, std::size_t elements) {
  std::vector<float> values(elements, 0.0f);
  if (elements != 0) values[elements / 2] = value_of(rank, 1);
  return values;
}
/// Every element whose place belongs to the last rank that owns any.
std::vector<float> one_owner(std::size_t rank, std::size_t world, std::size_t elements) {
  std::vector<float> values(elements, 0.0f);
  const auto permutation =
      IndexPermutation::make(elements, random_stream(kSeed, kStep, 0, RandomPurpose::ownership));
  for (std::size_t place = part_begin(elements, world, world - 1); place < elements; ++place) {
    const std::uint32_t index = permutation.index_of(static_cast<std::uint32_t>(place));
    values[index] = value_of(rank, index);
  }
  return values;
}
/// Ranks of even and odd number cancel out.
std::vector<float> cancelling(std::size_t rank, std::size_t, std::size_t elements) {
  std::vector<float> values(elements, 0.0f);
  for (std::size_t i = 0; i < elements; i += 4) values[i] = rank % 2 == 0 ? 3.5f : -3.5f;
  return values;
}
std::vector<float> negative_zeros(std::size_t rank, std::size_t, std::size_t elements) {
  std::vector<float> values(elements, -0.0f);
  for (std::size_t i = rank; i < elements; i += 10) values[i] = value_of(rank, i);
  return values;
}
std::vector<float> scattered(std::size_t rank, std::size_t, std::size_t elements) {
  std::vector<float> values(elements, 0.0f);
  std::mt19937 random(static_cast<std::uint32_t>(rank));
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < elements; ++i) {
    if (random() % 20 == 0) values[i] = normal(random);
  }
  return values;
}
std::vector<float> only_first_rank(std::size_t rank, std::size_t world, std::size_t elements) {
  return rank == 0 ? scattered(rank, world, elements) : empty(rank, world, elements);
}

const std::map<std::string, Pattern> kPatterns = {
    {"empty", empty},           {"full", full},
    {"single", single},         {"one owner", one_owner},
    {"cancelling", cancelling}, {"negative zeros", negative_zeros},
    {"scattered", scattered},   {"only the first rank", only_first_rank}};

std::vector<std::vector<float>> gradients_of(Pattern pattern, std::size_t world, std::size_t elements) {
  std::vector<std::vector<float>> gradients;
  for (std::size_t rank = 0; rank < world; ++rank) gradients.push_back(pattern(rank, world, elements));
  return gradients;
}

/// The sum over ranks, one after the other, divided as the dense baseline divides it.
std::vector<float> rank_order_mean(const std::vector<std::vector<float>>& gradients) {
  std::vector<float> sum(gradients[0].size(), 0.0f);
  for (const auto& gradient : gradients) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
  }
  for (float& value : sum) value *= 1.0f / static_cast<float>(gradients.size());
  return sum;
}

const std::vector<std::size_t> kWorlds = {1, 2, 3, 4, 5, 7, 8, 16};

TEST(Zen, PushPullIsTheRankOrderSumBitForBit) {
  for (const auto& [name, pattern] : kPatterns) {
    for (const std::size_t world : kWorlds) {
      for (const std::size_t elements : {0u, 1u, 5u, 64u, 1000u, 4099u}) {
        SCOPED_TRACE(testing::Message() << name << ", " << world << " ranks, " << elements << " elements");
        const auto gradients = gradients_of(pattern, world, elements);
        const auto wanted = rank_order_mean(gradients);
        for (const char* options : {":scheme=push_pull", ":scheme=push_pull:pull=bitmap"}) {
          for (const auto& result : run(options, gradients)) {
            for (std::size_t i = 0; i < elements; ++i) {
              // + 0 turns -0 into 0: both are zero here.
              ASSERT_EQ(std::bit_cast<std::uint32_t>(result.mean[i] + 0.0f),
                        std::bit_cast<std::uint32_t>(wanted[i] + 0.0f))
                  << options << " " << i;
            }
          }
        }
      }
    }
  }
}

/// Algorithm 1 in place of the sort: the same means, and so many bytes.
TEST(Zen, SplittingByHashGivesWhatSortingGives) {
  for (const auto& [name, pattern] : kPatterns) {
    for (const std::size_t world : kWorlds) {
      SCOPED_TRACE(testing::Message() << name << ", " << world << " ranks");
      const auto gradients = gradients_of(pattern, world, 4099);
      const auto sorted = run(":scheme=push_pull", gradients);
      // With the paper's memory, with little, and with none but the serial area, which is too small at first.
      for (const char* parameters :
           {"", ":hashes=1", ":slots=0.3:serial=0", ":hashes=9:slots=0.01:serial=1"}) {
        const auto hashed = run(":scheme=push_pull:split=hash" + std::string(parameters), gradients);
        for (std::size_t rank = 0; rank < world; ++rank) {
          ASSERT_EQ(hashed[rank].mean, sorted[rank].mean) << parameters;
          ASSERT_EQ(hashed[rank].traffic.sent_bytes, sorted[rank].traffic.sent_bytes) << parameters;
          ASSERT_EQ(hashed[rank].report.imbalance_push, sorted[rank].report.imbalance_push) << parameters;
        }
      }
    }
  }
}

/// Steps of one zen on every rank, on gradients that move from step to step.
struct Steps {
  std::vector<std::vector<float>> means, wanted;  // by step
  std::vector<std::vector<StepReport>> reports;   // by rank and step
};
constexpr std::size_t kMoving = 4099;
std::vector<float> moving(std::size_t rank, std::size_t step) {
  std::vector<float> values(kMoving, 0.0f);
  std::mt19937 random(static_cast<std::uint32_t>(100 * step + rank));
  for (std::size_t k = 0; k < 200; ++k) values[random() % (kMoving >> step)] = value_of(rank, k);
  return values;
}
/// before(rank, step, zen) comes before each step. Every rank's mean is rank 0's, or the test fails.
template <class Before>
Steps run_steps(const std::string& options, std::size_t world, std::size_t steps, Before before) {
  Steps all;
  all.reports.resize(world, std::vector<StepReport>(steps));
  std::vector<std::vector<std::vector<float>>> means(world);
  run_in_process(static_cast<int>(world), [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto zen = make_zen(options);
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    for (std::size_t index = 0; index < steps; ++index) {
      before(rank, index, *zen);
      workspace.reset();
      auto gradient = moving(rank, index);
      Step step{.communicator = communicator,
                .executor = *executor,
                .workspace = workspace,
                .index = index,
                .seed = kSeed};
      zen->synchronize(0, gradient, {}, step);
      means[rank].push_back(gradient);
      all.reports[rank][index] = step.report;
    }
  });
  for (const auto& of_rank : means) EXPECT_EQ(of_rank, means[0]);
  all.means = means[0];
  for (std::size_t index = 0; index < steps; ++index) {
    std::vector<std::vector<float>> gradients;
    for (std::size_t rank = 0; rank < world; ++rank) gradients.push_back(moving(rank, index));
    all.wanted.push_back(rank_order_mean(gradients));
  }
  return all;
}
void nothing(std::size_t, std::size_t, Synchronizer&) {}

/// The imbalance of the push of `rank` in `step`, by thresholds that cut the union of step `of`.
double imbalance_by_cuts_of(std::size_t of, std::size_t step, std::size_t rank, std::size_t world) {
  std::set<std::size_t> all;
  for (std::size_t other = 0; other < world; ++other) {
    const auto values = moving(other, of);
    for (std::size_t i = 0; i < kMoving; ++i) {
      if (values[i] != 0) all.insert(i);
    }
  }
  const std::vector<std::size_t> sorted(all.begin(), all.end());
  std::vector<std::size_t> counts(world);
  std::size_t nonzeros = 0;
  const auto values = moving(rank, step);
  for (std::size_t i = 0; i < kMoving; ++i) {
    if (values[i] == 0) continue;
    std::size_t owner = 0;
    while (owner + 1 < world && i >= sorted[sorted.size() * (owner + 1) / world]) ++owner;
    ++counts[owner];
    ++nonzeros;
  }
  return static_cast<double>(*std::max_element(counts.begin(), counts.end()) * world) /
         static_cast<double>(nonzeros);
}

TEST(Zen, ThresholdsChangeOwnersAndNoMean) {
  for (const std::size_t world : {1u, 2u, 3u, 4u, 5u}) {
    for (const std::size_t every : {1u, 2u, 1000u}) {
      SCOPED_TRACE(testing::Message() << world << " ranks, every " << every);
      constexpr std::size_t kSteps = 6;
      const auto steps = run_steps(":scheme=push_pull:split=thresholds:every=" + std::to_string(every), world,
                                   kSteps, nothing);
      EXPECT_EQ(steps.means, steps.wanted);
      if (world == 1) continue;
      for (std::size_t rank = 0; rank < world; ++rank) {
        for (std::size_t step = 1; step < kSteps; ++step) {
          const std::size_t of = (step - 1) / every * every;  // the step whose cuts they are
          EXPECT_DOUBLE_EQ(steps.reports[rank][step].imbalance_push,
                           imbalance_by_cuts_of(of, step, rank, world))
              << "rank " << rank << ", step " << step;
        }
      }
    }
  }
}

TEST(Zen, ThresholdsOfEveryPatternGiveWhatHashingGives) {
  for (const auto& [name, pattern] : kPatterns) {
    for (const std::size_t world : kWorlds) {
      for (const std::size_t elements : {0u, 1u, 5u, 4099u}) {
        SCOPED_TRACE(testing::Message() << name << ", " << world << " ranks, " << elements << " elements");
        const auto gradients = gradients_of(pattern, world, elements);
        std::vector<std::vector<float>> means(world);
        run_in_process(static_cast<int>(world), [&](Communicator& communicator) {
          const auto rank = static_cast<std::size_t>(communicator.rank());
          const auto zen = make_zen(":scheme=push_pull:split=thresholds");
          const auto executor = make_cpu_executor(1);
          Workspace workspace;
          for (std::uint64_t index = 0; index < 2; ++index) {  // by even slices, and by their cuts
            means[rank] = gradients[rank];
            workspace.reset();
            Step step{
                .communicator = communicator, .executor = *executor, .workspace = workspace, .index = index};
            zen->synchronize(0, means[rank], {}, step);
          }
        });
        for (const auto& mean : means) ASSERT_EQ(mean, rank_order_mean(gradients));
      }
    }
  }
}

/// A checkpoint has no thresholds.
void load_a_state(Synchronizer& zen) {
  const StateReader nothing{StateWriter()};
  zen.load(BucketReader(nothing, {{{.name = "weights", .elements = kMoving}}}));
}

TEST(Zen, ThresholdsAreFoundAnewAfterAStateWasLoaded) {
  constexpr std::size_t kWorld = 3;
  const auto steps = run_steps(":scheme=push_pull:split=thresholds", kWorld, 5,
                               [](std::size_t, std::size_t step, Synchronizer& zen) {
                                 if (step == 2) load_a_state(zen);
                               });
  EXPECT_EQ(steps.means, steps.wanted);
  for (std::size_t rank = 0; rank < kWorld; ++rank) {
    EXPECT_DOUBLE_EQ(steps.reports[rank][1].imbalance_push, imbalance_by_cuts_of(0, 1, rank, kWorld));
    EXPECT_DOUBLE_EQ(steps.reports[rank][3].imbalance_push, imbalance_by_cuts_of(2, 3, rank, kWorld));
    EXPECT_DOUBLE_EQ(steps.reports[rank][4].imbalance_push, imbalance_by_cuts_of(2, 4, rank, kWorld));
  }
}

TEST(Zen, AStepThatIsUndoneLeavesTheThresholdsBeforeIt) {
  constexpr std::size_t kWorld = 3;
  const auto steps = run_steps(":scheme=push_pull:split=thresholds:every=1", kWorld, 4,
                               [](std::size_t, std::size_t step, Synchronizer& zen) {
                                 if (step == 1 || step == 2) zen.keep_step(0);
                                 if (step == 3) zen.undo_step(0);
                               });
  EXPECT_EQ(steps.means, steps.wanted);
  for (std::size_t rank = 0; rank < kWorld; ++rank) {
    EXPECT_DOUBLE_EQ(steps.reports[rank][2].imbalance_push, imbalance_by_cuts_of(1, 2, rank, kWorld));
    EXPECT_DOUBLE_EQ(steps.reports[rank][3].imbalance_push, imbalance_by_cuts_of(1, 3, rank, kWorld));
  }
}

/// One rank alone lost its history: no rank takes a step with it.
TEST(Zen, ThresholdsThatOneRankDoesNotShareAreRefused) {
  constexpr std::size_t kWorld = 3;
  std::vector<std::string> complaints(kWorld);
  EXPECT_ANY_THROW(run_in_process(kWorld, [&](Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto zen = make_zen(":scheme=push_pull:split=thresholds");
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    for (std::size_t index = 0; index < 3; ++index) {
      if (rank == 1 && index == 2) load_a_state(*zen);
      workspace.reset();
      auto gradient = moving(rank, index);
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace, .index = index};
      try {
        zen->synchronize(0, gradient, {}, step);
      } catch (const CorruptFrame& error) {
        EXPECT_EQ(index, 2u);
        complaints[rank] = error.what();
        throw;
      }
    }
  }));
  // Which of these comes first depends on whose message is read first.
  bool named = false;
  for (const std::string& complaint : complaints) {
    for (const char* part : {"owners of one history?", "first slot is ", " are possible"}) {
      named |= complaint.find(part) != std::string::npos;
    }
  }
  EXPECT_TRUE(named) << complaints[0] << complaints[1] << complaints[2];
}

TEST(Zen, ADeviceSendsAndComputesTheSame) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device";
  auto expect_same = [](const char* options, Pattern pattern, std::size_t world) {
    constexpr std::size_t kElements = 500;
    const auto gradients = gradients_of(pattern, world, kElements);
    const auto host = run(options, gradients);
    const auto device = run(options, gradients, true);
    for (std::size_t rank = 0; rank < world; ++rank) {
      ASSERT_EQ(0, std::memcmp(host[rank].mean.data(), device[rank].mean.data(), kElements * sizeof(float)));
      ASSERT_EQ(host[rank].traffic.sent_bytes, device[rank].traffic.sent_bytes);
      ASSERT_EQ(host[rank].report.imbalance_push, device[rank].report.imbalance_push);
      ASSERT_EQ(host[rank].report.density_out, device[rank].report.density_out);
    }
  };
  for (const auto& [name, pattern] : kPatterns) {
    SCOPED_TRACE(name);
    expect_same(":scheme=push_pull", pattern, 3);
  }
  expect_same(":scheme=push_pull:pull=list", scattered, 3);
  expect_same(":scheme=push_pull:pull=bitmap", empty, 3);
  expect_same(":scheme=push_pull:split=hash", scattered, 3);
  expect_same(":scheme=push_pull:split=hash:hashes=1:slots=0.1:serial=0", scattered, 3);
  expect_same(":scheme=centralization", scattered, 3);
  expect_same(":gbit=1", scattered, 2);
}

TEST(Zen, CentralizationIsExactOnIntegersAndTheSameOnAllRanks) {
  for (const std::size_t world : kWorlds) {
    for (const std::size_t elements : {1u, 5u, 1000u}) {
      auto gradients = gradients_of(scattered, world, elements);
      auto real = run(":scheme=centralization", gradients);
      const auto close = rank_order_mean(gradients);
      for (const auto& result : real) {
        ASSERT_EQ(0, std::memcmp(result.mean.data(), real[0].mean.data(), elements * sizeof(float)));
        for (std::size_t i = 0; i < elements; ++i) ASSERT_NEAR(result.mean[i], close[i], 1e-6);
      }
      for (auto& gradient : gradients) {
        for (float& value : gradient) value = std::round(value * 8);
      }
      const auto wanted = rank_order_mean(gradients);
      for (const auto& result : run(":scheme=centralization", gradients)) EXPECT_EQ(result.mean, wanted);
    }
  }
}

/// The formula of SPEC section 1 from scratch: owners by the published bijection, counts, both phases.
TEST(Zen, BytesAreTheFormula) {
  for (const auto& [name, pattern] : kPatterns) {
    for (const std::size_t world : {2u, 3u, 8u}) {
      constexpr std::size_t kElements = 4099;
      SCOPED_TRACE(testing::Message() << name << ", " << world << " ranks");
      const auto gradients = gradients_of(pattern, world, kElements);
      const auto permutation =
          IndexPermutation::make(kElements, random_stream(kSeed, kStep, 0, RandomPurpose::ownership));
      std::vector<std::set<std::size_t>> union_of(world);
      std::vector<std::vector<std::uint64_t>> pushed(world, std::vector<std::uint64_t>(world, 0));
      std::uint64_t owned_in_all = 0;
      for (std::size_t owner = 0; owner < world; ++owner) {
        const std::size_t begin = part_begin(kElements, world, owner);
        const std::size_t end = part_begin(kElements, world, owner + 1);
        owned_in_all += end - begin;
        for (std::size_t place = begin; place < end; ++place) {
          const std::uint32_t index = permutation.index_of(static_cast<std::uint32_t>(place));
          for (std::size_t rank = 0; rank < world; ++rank) {
            if (gradients[rank][index] == 0) continue;
            ++pushed[rank][owner];
            union_of[owner].insert(place);
          }
        }
      }
      EXPECT_EQ(owned_in_all, kElements);
      const auto results = run(":scheme=push_pull", gradients);
      const auto as_bitmaps = run(":scheme=push_pull:pull=bitmap", gradients);
      const auto as_lists = run(":scheme=push_pull:pull=list", gradients);
      for (std::size_t rank = 0; rank < world; ++rank) {
        std::uint64_t payload = 0;
        for (std::size_t owner = 0; owner < world; ++owner)
          payload += owner == rank ? 0 : 8 * pushed[rank][owner];
        const std::uint64_t listed = union_of[rank].size();
        const std::uint64_t bits = (part_size(kElements, world, rank) + 7) / 8;
        EXPECT_EQ(as_bitmaps[rank].report.formula_bytes, payload + (world - 1) * (4 * listed + bits));
        EXPECT_EQ(as_lists[rank].report.formula_bytes, payload + (world - 1) * 8 * listed);
        for (const auto* one : {&as_bitmaps[rank], &as_lists[rank]}) {
          EXPECT_EQ(one->traffic.sent_bytes, one->report.formula_bytes + one->report.frame_header_bytes);
          EXPECT_EQ(one->mean, results[rank].mean);
        }
        payload += (world - 1) * std::min(8 * listed, 4 * listed + bits);
        const StepReport& report = results[rank].report;
        EXPECT_EQ(report.formula_bytes, payload);
        EXPECT_EQ(results[rank].traffic.sent_bytes, payload + report.frame_header_bytes);
        EXPECT_EQ(report.frame_header_bytes, 64 * 2 * (world - 1));
        const std::uint64_t nonzeros =
            std::accumulate(pushed[rank].begin(), pushed[rank].end(), std::uint64_t{0});
        if (nonzeros != 0) {
          EXPECT_DOUBLE_EQ(
              report.imbalance_push,
              static_cast<double>(*std::max_element(pushed[rank].begin(), pushed[rank].end()) * world) /
                  static_cast<double>(nonzeros));
        }
      }
    }
  }
}

TEST(Zen, SumsThatOverflowAreToldToEveryRank) {
  std::vector<std::vector<float>> gradients(3, std::vector<float>(100, 0.0f));
  for (auto& gradient : gradients) gradient[42] = std::numeric_limits<float>::max();
  for (const char* scheme : {":scheme=push_pull", ":scheme=centralization"}) {
    for (const auto& result : run(scheme, gradients)) EXPECT_FALSE(result.report.finite) << scheme;
  }
}

/// Rows of any width: the sums of the same tables, ascending, bitmaps or lists.
TEST(Zen, RowsAreMergedLikeElements) {
  for (const char* scheme :
       {":scheme=push_pull", ":scheme=centralization", ":scheme=push_pull:split=thresholds"}) {
    for (const int world : {1, 2, 5}) {
      for (const std::size_t width : {1u, 3u, 64u}) {
        for (const std::size_t every : {1u, 3u, 100u}) {
          constexpr std::size_t kRows = 500;
          std::vector<std::map<std::uint32_t, std::vector<float>>> means(static_cast<std::size_t>(world));
          run_in_process(world, [&](Communicator& communicator) {
            const auto rank = static_cast<std::size_t>(communicator.rank());
            std::vector<std::uint32_t> indices;
            std::vector<float> values;
            for (std::uint32_t row = 0; row < kRows; ++row) {
              if ((row + rank) % every != 0) continue;
              indices.push_back(row);
              for (std::size_t i = 0; i < width; ++i)
                values.push_back(static_cast<float>(world * (i + rank + row)));
            }
            const auto zen = make_zen(scheme);
            const auto executor = make_cpu_executor(1);
            Workspace workspace;
            Step step{.communicator = communicator, .executor = *executor, .workspace = workspace};
            // A step before it, off which thresholds are.
            zen->synchronize_rows(0, {indices, values, kRows, width}, {}, step);
            workspace.reset();
            const RowSparse mean = zen->synchronize_rows(0, {indices, values, kRows, width}, {}, step);
            EXPECT_TRUE(std::is_sorted(mean.row_indices.begin(), mean.row_indices.end()));
            for (std::size_t k = 0; k < mean.size(); ++k) {
              const auto row = mean.row(k);
              means[rank][mean.row_indices[k]] = {row.begin(), row.end()};
            }
          });
          for (const auto& mean : means) EXPECT_EQ(mean, means[0]);
          std::size_t listed = 0;
          for (std::uint32_t row = 0; row < kRows; ++row) {
            std::vector<float> wanted(width, 0.0f);
            bool present = false;
            for (int rank = 0; rank < world; ++rank) {
              if ((row + static_cast<std::size_t>(rank)) % every != 0) continue;
              present = true;
              for (std::size_t i = 0; i < width; ++i)
                wanted[i] += static_cast<float>(i + static_cast<std::size_t>(rank) + row);
            }
            if (!present) continue;
            ++listed;
            ASSERT_EQ(means[0][row], wanted) << "row " << row;
          }
          EXPECT_EQ(means[0].size(), listed);
        }
      }
    }
  }
}

/// What a step takes after profiling, by its report.
std::string chosen_scheme(const std::string& options, std::size_t world, std::size_t elements,
                          std::size_t every) {
  std::string scheme;
  run_in_process(static_cast<int>(world), [&](Communicator& communicator) {
    const auto zen = make_zen(options);
    const auto executor = make_cpu_executor(1);
    Workspace workspace;
    StepReport last;
    for (std::uint64_t index = 0; index < 3; ++index) {
      std::vector<float> gradient(elements, 0.0f);
      for (std::size_t i = 0; i < elements; i += every) gradient[i] = 1;  // the same places on all ranks
      workspace.reset();
      Step step{.communicator = communicator, .executor = *executor, .workspace = workspace, .index = index};
      zen->synchronize(0, gradient, {}, step);
      EXPECT_EQ(gradient[0], 1.0f);
      last = step.report;
    }
    if (communicator.rank() == 0) scheme = last.scheme;
  });
  return scheme;
}

TEST(Zen, TheSelectorTakesWhatTheLinkMakesFaster) {
  const std::string profiled = ":profile_steps=2:gbit=1:latency_us=";
  // Two ranks with the same few non-zeros: one hop of 8 nnz against two with bitmaps on top.
  EXPECT_EQ(chosen_scheme(profiled + "1000", 2, 1000, 100), "centralization");
  // Eight ranks whose transfers dwarf the latency: three hops of 8 nnz against 7/8 of 8 nnz + 4 nnz + d/8.
  EXPECT_EQ(chosen_scheme(profiled + "1", 8, 200'000, 4), "push_pull");
  // The measured link decides as well, whatever it is.
  EXPECT_NE(chosen_scheme(":profile_steps=2", 3, 1000, 10), "");
}

TEST(Zen, OptionsOutOfRangeAreRefused) {
  for (const char* options :
       {":scheme=ring", ":profile_steps=0", ":gbit=-1", ":latency_us=x", ":split=both", ":pull=bits",
        ":hashes=0", ":hashes=65", ":slots=0", ":slots=65", ":serial=-1", ":serial=1.5",
        ":scheme=centralization:split=hash", ":scheme=push_pull:split=thresholds:every=0",
        ":split=thresholds", ":scheme=auto:split=thresholds", ":scheme=centralization:split=thresholds"}) {
    EXPECT_THROW(make_zen(options), std::invalid_argument) << options;
  }
}

}  // namespace
}  // namespace thinwire::zen_test
