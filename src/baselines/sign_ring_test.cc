// SSDM and EF-signSGD on a ring whose sums grow.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "baselines/sign_ring.h"
#include "thinwire/errors.h"
#include "thinwire/in_process.h"
#include "thinwire/session.h"

namespace thinwire::sign_ring_test {
namespace {

std::vector<float> gradient_of(int rank, std::size_t elements) {
  std::mt19937 random(static_cast<unsigned>(11 + rank));
  std::normal_distribution<float> normal(0.1f, static_cast<float>(1 + rank));
  std::vector<float> gradient(elements);
  for (float& value : gradient) value = normal(random);
  return gradient;
}

struct Outcome {
  std::vector<float> mean;
  StepReport report;
  std::uint64_t formula = 0;
};

std::vector<Outcome> step_of(const std::string& spec, int world, std::size_t elements,
                             std::uint64_t seed = 1) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(world));
  run_in_process(world, [&](Communicator& communicator) {
    SessionOptions options;
    options.seed = seed;
    Session session(spec, communicator, options);
    session.add_bucket({{"p", elements, elements}});
    Outcome& outcome = outcomes[static_cast<std::size_t>(communicator.rank())];
    outcome.mean = gradient_of(communicator.rank(), elements);
    outcome.report = session.synchronize(0, outcome.mean);
    session.next_step();
  });
  return outcomes;
}

TEST(SignRing, EfSignSgdGivesTheMeanSignTimesTheMeanMagnitude) {
  for (const int world : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12}) {
    for (const std::size_t elements : {1u, 3u, 63u, 64u, 1000u, 70'001u}) {
      SCOPED_TRACE(testing::Message() << world << " ranks, " << elements << " elements");
      double scale = 0;
      std::vector<int> sums(elements);
      for (int rank = 0; rank < world; ++rank) {
        double magnitude = 0;
        const auto gradient = gradient_of(rank, elements);
        for (std::size_t i = 0; i < elements; ++i) {
          magnitude += std::fabs(static_cast<double>(gradient[i]));
          sums[i] += gradient[i] >= 0 ? 1 : -1;
        }
        scale += magnitude / static_cast<double>(elements) / world;
      }
      for (const std::string topology : {"ring", "torus"}) {
        const auto outcomes = step_of("ef_signsgd:topology=" + topology, world, elements);
        for (const Outcome& outcome : outcomes) {
          EXPECT_EQ(outcome.mean, outcomes[0].mean);
          EXPECT_NEAR(outcome.report.scale, scale, 1e-6 * scale);
          for (std::size_t i = 0; i < elements; ++i) {
            ASSERT_NEAR(static_cast<double>(outcome.mean[i]), scale * sums[i] / world, 1e-5 * scale)
                << topology << ", " << i;
          }
        }
      }
    }
  }
}

TEST(SignRing, SsdmIsUnbiasedForRanksOfDifferentNorms) {
  constexpr int kWorld = 3;
  constexpr std::size_t kElements = 40;
  constexpr int kTrials = 4000;
  std::vector<double> exact(kElements), found(kElements);
  double largest = 0;
  for (int rank = 0; rank < kWorld; ++rank) {
    double squares = 0;
    const auto gradient = gradient_of(rank, kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      exact[i] += static_cast<double>(gradient[i]) / kWorld;
      squares += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
    }
    largest = std::max(largest, std::sqrt(squares));
  }
  for (int trial = 0; trial < kTrials; ++trial) {
    const auto outcome =
        step_of("ssdm:topology=ring", kWorld, kElements, static_cast<std::uint64_t>(trial))[0];
    EXPECT_NEAR(outcome.report.scale, largest, 1e-5 * largest);
    for (std::size_t i = 0; i < kElements; ++i) found[i] += static_cast<double>(outcome.mean[i]) / kTrials;
  }
  // A mean of signs has a deviation of at most 1 / sqrt(ranks * trials).
  const double deviation = largest / std::sqrt(1.0 * kWorld * kTrials);
  for (std::size_t i = 0; i < kElements; ++i) EXPECT_NEAR(found[i], exact[i], 4.5 * deviation) << i;
}

TEST(SignRing, ChunksAndRanksDrawDifferentBits) {
  // Each of three ranks has two chunks in a part.
  constexpr std::size_t kElements = 3 * ((std::size_t{1} << 20) + 4096);
  std::vector<float> mean;
  run_in_process(3, [&](Communicator& communicator) {
    Session session("ssdm:topology=ring", communicator);
    session.add_bucket({{"p", kElements, kElements}});
    std::vector<float> gradient(kElements, 0.0f);
    gradient[5] = 1;  // nearly all signs are fair coins
    session.synchronize(0, gradient);
    session.next_step();
    if (communicator.rank() == 0) mean = gradient;
  });
  std::size_t same_chunk = 0, same_part = 0, extreme = 0;
  constexpr std::size_t kPart = kElements / 3, kChunk = std::size_t{1} << 20;
  for (std::size_t i = 0; i < 4096; ++i) {
    same_chunk += mean[i] == mean[kChunk + i];
    same_part += mean[i] == mean[kPart + i];
    extreme += std::fabs(mean[i]) > 0.9f;
  }
  // Sums of three coins are alike with probability 20/64, and all three are with 1/4.
  EXPECT_NEAR(static_cast<double>(same_chunk) / 4096, 20.0 / 64, 0.03);
  EXPECT_NEAR(static_cast<double>(same_part) / 4096, 20.0 / 64, 0.03);
  EXPECT_NEAR(static_cast<double>(extreme) / 4096, 0.25, 0.03);
}

/// Where ranks agree sums are large, and their codes longer than planes; where they do not, shorter.
TEST(SignRing, EliasCodesGiveTheSameResultInFewerBytes) {
  for (const std::string spec :
       {"ef_signsgd:topology=ring", "ssdm:topology=ring", "signsgd", "ef_signsgd:topology=torus",
        "ssdm:topology=torus", "signsgd:topology=torus"}) {
    for (const int world : {1, 2, 3, 4, 5, 8, 9}) {
      for (const std::size_t elements : {1u, 64u, 5000u, 70'001u}) {
        SCOPED_TRACE(testing::Message() << spec << ", " << world << " ranks, " << elements << " elements");
        const auto planes = step_of(spec, world, elements);
        const auto coded = step_of(spec + ":coding=elias", world, elements);
        for (std::size_t rank = 0; rank < planes.size(); ++rank) {
          EXPECT_EQ(coded[rank].mean, planes[rank].mean);
          EXPECT_LE(coded[rank].report.formula_bytes, planes[rank].report.formula_bytes);
        }
        if (elements > 4000 && world >= 8 && !spec.starts_with("signsgd")) {
          EXPECT_LT(static_cast<double>(coded[0].report.formula_bytes),
                    0.9 * static_cast<double>(planes[0].report.formula_bytes));
        }
      }
    }
  }
}

TEST(SignRing, CodesOfSeveralChunksGiveTheSameResult) {
  constexpr std::size_t kElements = 3 * ((std::size_t{1} << 20) + 4096);  // two chunks in a rank's part
  for (const std::string spec : {"ef_signsgd:topology=ring", "signsgd"}) {
    const auto planes = step_of(spec, 3, kElements);
    const auto coded = step_of(spec + ":coding=elias", 3, kElements);
    for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(coded[rank].mean, planes[rank].mean) << spec;
  }
}

/// The same counters and so the same majority, wherever there is one: with an odd number of workers.
TEST(SignRing, ATorusVotesAsARingDoes) {
  for (const auto& [world, elements] : {std::pair{9, 70'001u}, {15, 64u}, {9, 9 * (1u << 20) + 9000}}) {
    const auto ring = step_of("signsgd", world, elements);
    const auto torus = step_of("signsgd:topology=torus", world, elements);
    for (std::size_t rank = 0; rank < ring.size(); ++rank) {
      EXPECT_EQ(torus[rank].mean, ring[rank].mean) << world << " ranks, " << elements << " elements";
    }
  }
}

TEST(SignRing, BytesAreTheFormula) {
  // 4 ranks, segments of 250 elements, 32 bytes: 1, 2 and 2 planes on the way, 3 planes three times back.
  EXPECT_EQ(sign_ring_payload_bytes(1000, 4, 0, SignTopology::ring, SignsGathered::counters),
            32u * (1 + 2 + 2 + 9));
  EXPECT_EQ(sign_ring_payload_bytes(1000, 4, 0, SignTopology::ring, SignsGathered::majority),
            32u * (1 + 2 + 2 + 3));
  EXPECT_EQ(sign_ring_payload_bytes(1000, 1, 0, SignTopology::ring, SignsGathered::counters), 0u);
  EXPECT_EQ(sign_ring_payload_bytes(0, 4, 0, SignTopology::ring, SignsGathered::counters), 0u);
  // 2 x 3 ranks, parts of 168 or 160 elements. Rank 0 sends its row's segments 0 and 2 on the way, with 1 and
  // 2 planes, and of segment 1 part 2 with the 2 planes of three workers. Back go parts 3 and segments 1, 0.
  const std::uint64_t on_the_way = 42 + 42 * 2 + 21 * 2;
  EXPECT_EQ(sign_ring_payload_bytes(1008, 6, 0, SignTopology::torus, SignsGathered::counters),
            on_the_way + 3 * (21 + 42 + 42));
  EXPECT_EQ(sign_ring_payload_bytes(1008, 6, 0, SignTopology::torus, SignsGathered::majority),
            on_the_way + 21 + 42 + 42);
}

TEST(SignRing, CodesAreOfSumsAlone) {
  run_in_process(1, [&](Communicator& communicator) {
    for (const std::string spec : {"ssdm:coding=elias", "ef_signsgd:coding=elias"}) {
      try {
        Session session(spec, communicator);
        FAIL() << spec;
      } catch (const std::invalid_argument& error) {
        EXPECT_NE(std::string(error.what()).find("topology=ring"), std::string::npos) << error.what();
      }
    }
  });
}

TEST(SignRing, AValueThatIsNotFiniteIsToldToAllRanks) {
  for (const std::string spec : {"ssdm:topology=ring", "ef_signsgd:topology=ring"}) {
    run_in_process(3, [&](Communicator& communicator) {
      Session session(spec, communicator);
      session.add_bucket({{"p", 500, 500}});
      auto gradient = gradient_of(communicator.rank(), 500);
      if (communicator.rank() == 1) gradient[3] = std::numeric_limits<float>::infinity();
      EXPECT_FALSE(session.synchronize(0, gradient).finite) << spec;
      session.next_step();
    });
  }
}

}  // namespace
}  // namespace thinwire::sign_ring_test
