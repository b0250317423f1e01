#include "stages/sparsifier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "baselines/baselines.h"
#include "kernels/selection/select.h"
#include "stages/momentum.h"
#include "stages/stages.h"
#include "tests/random_values.h"
#include "thinwire/in_process.h"

namespace thinwire::sparsifier_test {
namespace {

/// Delivers half of every row, densely; the other half stays in the residual when there is one.
class HalfOfRows final : public Synchronizer {
 public:
  explicit HalfOfRows(bool rows) : rows_(rows) {}
  bool takes_rows() const override { return rows_; }
  void synchronize(BucketId, Span<float> gradient, Span<float> residual, Step& step) override {
    const float world = static_cast<float>(step.communicator.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const float p = residual.empty() ? gradient[i] : gradient[i] + residual[i];
      gradient[i] = 0.5f * p;
      if (!residual.empty()) residual[i] = 0.5f * p;
    }
    step.communicator.all_reduce_sum(gradient);
    for (float& value : gradient) value /= world;
  }
  RowSparse synchronize_rows(BucketId bucket, const RowSparse& gradient, Span<float> residual,
                             Step& step) override {
    const auto table = step.workspace.take<float>(gradient.elements());
    std::fill(table.begin(), table.end(), 0.0f);
    for (std::size_t k = 0; k < gradient.values.size(); ++k) {
      table[gradient.row_indices[k / gradient.width] * gradient.width + k % gradient.width] =
          gradient.values[k];
    }
    synchronize(bucket, table, residual, step);
    const auto all = step.workspace.take<std::uint32_t>(gradient.rows);
    std::iota(all.begin(), all.end(), 0u);
    return {all, table, gradient.rows, gradient.width};
  }
  std::uint64_t payload_bytes(const Workload& workload) const override {
    return static_cast<std::uint64_t>(std::llround(workload.density * 1e6));
  }

 private:
  bool rows_;
};

const Registry& registry() {
  static const Registry all = [] {
    Registry made;
    for (const auto& info : {top_k_info(), block_top_k_info(), dgc_info(), agsparse_info(), dense_info(),
                             momentum_correction_info(), decay_info()}) {
      made.add(info);
    }
    for (const bool rows : {true, false}) {
      SystemInfo info;
      info.name = rows ? "half_of_rows" : "half_of_dense";
      info.takes_rows = true;
      info.make = [rows](const Options&, Inner) -> std::unique_ptr<Synchronizer> {
        return std::make_unique<HalfOfRows>(rows);
      };
      made.add(info);
    }
    return made;
  }();
  return all;
}

/// One rank's pipeline with what belongs to it.
struct Worker {
  Worker(const std::string& spec, Communicator& comm, std::size_t elements, bool feedback = true)
      : communicator(comm), pipeline(registry().make(spec)), residual(feedback ? elements : 0, 0.0f) {}

  std::vector<float> step(std::vector<float> gradient) {
    workspace.reset();
    Step one{.communicator = communicator,
             .executor = *executor,
             .workspace = workspace,
             .index = index++,
             .seed = 5};
    pipeline.synchronizer->synchronize(2, gradient, residual, one);
    delivered = one.delivered;
    report = one.report;
    return gradient;
  }

  bool was_delivered(std::size_t i) const {
    switch (delivered.kind) {
      case Delivered::Kind::indices:
        return std::binary_search(delivered.indices.begin(), delivered.indices.end(), i);
      case Delivered::Kind::bitset:
        return ((delivered.bits[i / 64] >> (i % 64)) & 1) != 0;
      default:
        return true;
    }
  }

  Communicator& communicator;
  Pipeline pipeline;
  std::vector<float> residual;
  std::unique_ptr<Executor> executor = make_cpu_executor(1);
  Workspace workspace;
  Delivered delivered;
  StepReport report;
  std::uint64_t index = 0;
};

TEST(Sparsifier, TopKDeliversTheLargestAndKeepsTheRest) {
  run_in_process(1, [](Communicator& communicator) {
    Worker worker("top_k:k=2", communicator, 6);
    EXPECT_EQ(worker.step({1, -5, 2, 0, 4, -3}), (std::vector<float>{0, -5, 0, 0, 4, 0}));
    EXPECT_EQ(worker.residual, (std::vector<float>{1, 0, 2, 0, 0, -3}));
    // Ties go to lower indices; p = {2, 1, 4, 1, 1, -4}.
    EXPECT_EQ(worker.step({1, 1, 2, 1, 1, -1}), (std::vector<float>{0, 0, 4, 0, 0, -4}));
    EXPECT_EQ(worker.step({0, 1, 0, 1, 1, 0}), (std::vector<float>{2, 2, 0, 0, 0, 0}));
    EXPECT_EQ(worker.residual, (std::vector<float>{0, 0, 0, 2, 2, 0}));
    EXPECT_TRUE(worker.was_delivered(0));
    EXPECT_FALSE(worker.was_delivered(3));
    EXPECT_DOUBLE_EQ(worker.report.density_in, 2.0 / 6);
  });
}

TEST(Sparsifier, RatiosAreRoundedAndAtLeastOneElementGoes) {
  run_in_process(1, [](Communicator& communicator) {
    auto delivered = [&](const std::string& spec, std::size_t elements) {
      Worker worker(spec, communicator, elements);
      worker.step(normal_values(elements, 1));
      std::size_t count = 0;
      for (std::size_t i = 0; i < elements; ++i) count += worker.was_delivered(i) ? 1 : 0;
      return count;
    };
    EXPECT_EQ(delivered("top_k:ratio=0.01", 149), 1u);
    EXPECT_EQ(delivered("top_k:ratio=0.01", 151), 2u);
    EXPECT_EQ(delivered("top_k:ratio=0.01", 3), 1u);
    EXPECT_EQ(delivered("top_k:k=10", 4), 4u);
    EXPECT_EQ(delivered("top_k:ratio=1", 1000), 1000u);
    EXPECT_EQ(delivered("block_top_k:block=100:ratio=0.01", 350), 100u);
    EXPECT_EQ(delivered("block_top_k:block=100:ratio=1", 350), 350u);
    EXPECT_EQ(delivered("dgc:ratio=0.5", 1000), 500u);
    Worker empty("top_k", communicator, 0);
    EXPECT_TRUE(empty.step({}).empty());
  });
}

TEST(Sparsifier, BlockTopKDeliversTheBlocksWithTheLargestNorms) {
  constexpr std::size_t kBlock = 70;
  for (const std::size_t elements : {1u, 69u, 70u, 71u, 1000u, 5001u}) {
    run_in_process(1, [&](Communicator& communicator) {
      Worker worker("block_top_k:ratio=0.3:block=70", communicator, elements);
      worker.residual = normal_values(elements, 2);
      const auto gradient = normal_values(elements, 1);
      auto p = gradient;
      for (std::size_t i = 0; i < elements; ++i) p[i] += worker.residual[i];
      const std::size_t blocks = (elements + kBlock - 1) / kBlock;
      std::vector<std::pair<double, std::size_t>> norms(blocks);
      for (std::size_t b = 0; b < blocks; ++b) norms[b] = {0, b};
      for (std::size_t i = 0; i < elements; ++i) {
        norms[i / kBlock].first -= static_cast<double>(p[i]) * static_cast<double>(p[i]);
      }
      std::sort(norms.begin(), norms.end());
      const auto wanted =
          std::max<std::size_t>(1, static_cast<std::size_t>(std::round(0.3 * static_cast<double>(blocks))));
      std::vector<bool> chosen(blocks, false);
      for (std::size_t k = 0; k < wanted; ++k) chosen[norms[k].second] = true;

      const auto mean = worker.step(gradient);
      for (std::size_t i = 0; i < elements; ++i) {
        const bool out = chosen[i / kBlock];
        ASSERT_EQ(mean[i], out ? p[i] : 0) << i;
        ASSERT_EQ(worker.residual[i], out ? 0 : p[i]) << i;
        ASSERT_EQ(worker.was_delivered(i), out) << i;
      }
    });
  }
}

TEST(Sparsifier, RanksSelectForThemselvesAndTheSumIsConserved) {
  run_in_process(3, [](Communicator& communicator) {
    Worker worker("top_k:k=1", communicator, 4);
    const auto mean = worker.step(communicator.rank() == 0   ? std::vector<float>{9, 1, 1, 0}
                                  : communicator.rank() == 1 ? std::vector<float>{1, 6, 1, 0}
                                                             : std::vector<float>{3, -6, 1, 0});
    EXPECT_EQ(mean, (std::vector<float>{3, 0, 0, 0}));
    if (communicator.rank() == 2) {
      EXPECT_EQ(worker.residual, (std::vector<float>{3, 0, 1, 0}));
    }
    EXPECT_DOUBLE_EQ(worker.report.density_out, 0.5);  // two elements, whose values cancel in one
  });
}

TEST(Sparsifier, WhatTheInnerSystemLeavesIsKept) {
  for (const char* inner : {"half_of_rows:feedback=on", "half_of_dense:feedback=on"}) {
    run_in_process(2, [&](Communicator& communicator) {
      Worker worker(std::string("top_k:k=2+") + inner, communicator, 4);
      EXPECT_EQ(worker.step({8, 1, -4, 2}), (std::vector<float>{4, 0, -2, 0})) << inner;
      EXPECT_EQ(worker.residual, (std::vector<float>{4, 1, -2, 2}));
      Worker blocks(std::string("block_top_k:ratio=0.4:block=2+") + inner, communicator, 5);
      EXPECT_EQ(blocks.step({1, 1, 1, 0, 6}), (std::vector<float>{0, 0, 0, 0, 3}));
      EXPECT_EQ(blocks.residual, (std::vector<float>{1, 1, 1, 0, 3}));
      // Without feedback anywhere, both are lost.
      Worker forgetful(std::string("top_k:k=2:feedback=off+") + inner, communicator, 4, false);
      EXPECT_EQ(forgetful.step({8, 1, -4, 2}), (std::vector<float>{4, 0, -2, 0}));
    });
  }
}

TEST(Sparsifier, TheInnerFormulaGetsTheSelectedDensity) {
  const Pipeline top = registry().make("top_k:ratio=0.25+half_of_rows");
  EXPECT_EQ(top.synchronizer->payload_bytes({.elements = 1000}), 250'000u);
  EXPECT_EQ(top.synchronizer->payload_bytes({.elements = 1000, .density = 0.1}), 100'000u);
  EXPECT_EQ(top.synchronizer->payload_bytes({.elements = 0}), 0u);
  const Pipeline blocks = registry().make("block_top_k:ratio=0.1:block=10+half_of_rows");
  EXPECT_EQ(blocks.synchronizer->payload_bytes({.elements = 991}), 100'000u);
}

TEST(Dgc, OnSmallBucketsIsMomentumAroundExactTopK) {
  run_in_process(2, [](Communicator& communicator) {
    constexpr std::size_t kElements = 3000;
    Worker dgc("dgc:ratio=0.02:momentum=0.7", communicator, kElements);
    Worker parts("mc:momentum=0.7+top_k:ratio=0.02", communicator, kElements);
    for (std::uint32_t step = 0; step < 6; ++step) {
      auto gradient = normal_values(kElements, 10 * step + static_cast<std::uint32_t>(communicator.rank()));
      if (step == 3 && communicator.rank() == 1) gradient[7] = std::numeric_limits<float>::infinity();
      const auto mean = dgc.step(gradient);
      const auto expected = parts.step(gradient);
      EXPECT_EQ(dgc.report.finite, step != 3);
      if (step != 3) {
        EXPECT_EQ(mean, expected);
      }
      EXPECT_EQ(dgc.residual, parts.residual);
    }
  });
}

TEST(Dgc, VelocityGathersUntilDelivered) {
  run_in_process(1, [](Communicator& communicator) {
    Worker worker("dgc:ratio=0.3:momentum=0.5", communicator, 3);
    // u = {4, 2, 1}; the first is delivered, its velocity cleared.
    EXPECT_EQ(worker.step({4, 2, 1}), (std::vector<float>{4, 0, 0}));
    // u = {1, 2, 0.5}, p = {1, 4, 1.5}.
    EXPECT_EQ(worker.step({1, 1, 0}), (std::vector<float>{0, 4, 0}));
    // A step that does not count changes neither velocity nor residual.
    worker.step({1, 1, std::numeric_limits<float>::quiet_NaN()});
    EXPECT_FALSE(worker.report.finite);
    // u = {0.5, 0, 0.25}, p = {1.5, 0, 1.75}.
    EXPECT_EQ(worker.step({0, 0, 0}), (std::vector<float>{0, 0, 1.75f}));
    EXPECT_EQ(worker.residual, (std::vector<float>{1.5f, 0, 0}));
  });
}

TEST(Dgc, ClipsToTheNormDividedByTheRootOfTheWorld) {
  run_in_process(4, [](Communicator& communicator) {
    Worker worker("dgc:ratio=1:momentum=0:clip=10", communicator, 2);
    EXPECT_EQ(worker.step({6, 8}), (std::vector<float>{3, 4}));  // norm 10, limit 5
    EXPECT_EQ(worker.step({3, 4}), (std::vector<float>{3, 4}));
    EXPECT_EQ(worker.step({0, 0}), (std::vector<float>{0, 0}));
  });
}

TEST(Dgc, WarmsUpByQuarters) {
  run_in_process(1, [](Communicator& communicator) {
    Worker worker("dgc:ratio=0.001:warmup_steps=8", communicator, 4000);
    std::vector<std::size_t> counts;
    for (std::uint32_t step = 0; step < 10; ++step) {
      worker.step(normal_values(4000, step));
      counts.push_back(worker.delivered.indices.size());
    }
    EXPECT_EQ(counts, (std::vector<std::size_t>{1000, 1000, 250, 250, 63, 63, 16, 16, 4, 4}));
  });
}

// The threshold's own sample has 10 elements above it on average in the sparser case: fewer than k/8 of all
// would be more than 4 sigma away. More than k never pass.
TEST(Dgc, ASampledThresholdNeverSelectsTooMany) {
  run_in_process(1, [](Communicator& communicator) {
    constexpr std::size_t kElements = 100'000;
    for (const auto& [spec, k] :
         {std::pair{"dgc:ratio=0.01:momentum=0", 1000u}, std::pair{"dgc:ratio=0.002:momentum=0", 200u}}) {
      Worker worker(spec, communicator, kElements);
      for (std::uint32_t step = 0; step < 20; ++step) {
        auto p = normal_values(kElements, step);
        const auto gradient = p;
        for (std::size_t i = 0; i < kElements; ++i) p[i] += worker.residual[i];
        const auto mean = worker.step(gradient);
        const std::size_t selected = worker.delivered.indices.size();
        EXPECT_LE(selected, k);
        EXPECT_GE(selected, k / 8) << spec;
        // Those that went are the largest there were.
        float least = std::numeric_limits<float>::infinity();
        float most_left = 0;
        for (std::size_t i = 0; i < kElements; ++i) {
          ASSERT_EQ(mean[i] + worker.residual[i], p[i]);
          if (worker.was_delivered(i)) least = std::min(least, std::fabs(p[i]));
          most_left = std::max(most_left, std::fabs(worker.residual[i]));
        }
        ASSERT_GE(least, most_left);
      }
    }
  });
}

TEST(Sparsifier, ARampFallsByTheSameFactorFromStepToStep) {
  run_in_process(1, [](Communicator& communicator) {
    // 8192 units from a half down to 1/512 in 8 steps: each halves.
    Worker worker("top_k:ratio=0.001953125:ramp_from=0.5:ramp_steps=8", communicator, 8192);
    std::size_t expected = 4096;
    for (std::uint64_t step = 0; step < 10; ++step) {
      worker.step(normal_values(8192, static_cast<std::uint32_t>(step)));
      EXPECT_EQ(worker.delivered.indices.size(), expected) << step;
      EXPECT_EQ(worker.report.density_in, static_cast<double>(expected) / 8192) << step;
      if (step < 8) expected /= 2;
    }
    Worker blocks("block_top_k:ratio=0.0625:block=8:ramp_from=1:ramp_steps=2", communicator, 1024);
    for (const double share : {1.0, 0.25, 0.0625, 0.0625}) {
      blocks.step(normal_values(1024, 3));
      EXPECT_EQ(blocks.report.density_in, share);
    }
    // A ramp that would rise is none.
    Worker small("top_k:k=100:ramp_from=0.001:ramp_steps=8", communicator, 8192);
    small.step(normal_values(8192, 1));
    EXPECT_EQ(small.delivered.indices.size(), 100u);
  });
}

TEST(Sparsifier, ARampsBytesAreThoseOfItsStep) {
  const Pipeline pipeline =
      registry().make("top_k:ratio=0.001:ramp_from=0.1:ramp_steps=2:feedback=on+half_of_rows");
  std::vector<std::uint64_t> bytes;
  for (const std::uint64_t step : {0u, 1u, 2u, 3u}) {
    bytes.push_back(pipeline.synchronizer->payload_bytes({.elements = 100'000, .step = step}));
  }
  EXPECT_EQ(bytes, (std::vector<std::uint64_t>{100'000, 10'000, 1'000, 1'000}));
}

TEST(Decay, OfARankAloneLeavesAllThatIsNotDropped) {
  run_in_process(1, [](Communicator& communicator) {
    Worker worker("decay:factor=0.5+top_k:ratio=0.1", communicator, 1000);
    for (std::uint32_t step = 0; step < 5; ++step) {
      const std::vector<float> gradient = normal_values(1000, step);
      std::vector<float> p = gradient;
      for (std::size_t i = 0; i < p.size(); ++i) p[i] += 0.5f * worker.residual[i];
      const std::vector<float> mean = worker.step(gradient);
      EXPECT_EQ(worker.delivered.indices.size(), 100u);
      for (std::size_t i = 0; i < p.size(); ++i) ASSERT_EQ(mean[i] + worker.residual[i], p[i]) << step;
    }
    const std::vector<float> before = worker.residual;
    std::vector<float> bad = normal_values(1000, 9);
    bad[3] = std::numeric_limits<float>::infinity();
    worker.step(bad);
    EXPECT_FALSE(worker.report.finite);
    EXPECT_EQ(worker.residual, before);
  });
}

TEST(Sparsifier, CombinationsWithoutMeaningAreRefused) {
  auto complaint = [](const std::string& spec) -> std::string {
    try {
      registry().make(spec);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(complaint("top_k:ratio=0").find("ratio=0"), std::string::npos);
  EXPECT_NE(complaint("top_k:ratio=1.5").find("ratio=1.5"), std::string::npos);
  EXPECT_NE(complaint("top_k:k=-1").find("k=-1"), std::string::npos);
  EXPECT_NE(complaint("decay+dense").find("feedback=on"), std::string::npos);
  EXPECT_NE(complaint("top_k+decay+agsparse:feedback=on").find("put decay in front"), std::string::npos);
  EXPECT_FALSE(registry().make("decay+top_k").conserves);
  EXPECT_NE(complaint("top_k:ramp_from=0").find("ramp_from=0"), std::string::npos);
  EXPECT_NE(complaint("block_top_k:ramp_steps=-1").find("ramp_steps=-1"), std::string::npos);
  EXPECT_NE(complaint("top_k+dense").find("saves nothing"), std::string::npos);
  EXPECT_NE(complaint("top_k+block_top_k+agsparse").find("sparse already"), std::string::npos);
  EXPECT_NE(complaint("mc+dgc").find("keep one"), std::string::npos);
  EXPECT_EQ(complaint("mc+block_top_k"), "");
  EXPECT_TRUE(registry().make("top_k").conserves);
  EXPECT_FALSE(registry().make("dgc").conserves);
  EXPECT_EQ(registry().make("top_k").spec,
            "top_k:ratio=0.01:k=0:ramp_from=0.25:ramp_steps=0:feedback=on+agsparse:feedback=off");
}

}  // namespace
}  // namespace thinwire::sparsifier_test
