#include "apps/gradients/recorded.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "apps/simulation.h"
#include "apps/test_folder.h"

namespace thinwire::apps {
namespace {

class RecordedGradients : public ::testing::Test {
 protected:
  /// Two dense tensors around a table of 5 rows of 2; rank r lists row r twice.
  std::string write(int rank, int world, std::uint64_t first_step = 0, int steps = 2,
                    const std::string& name = "weight") {
    const std::string path = folder_.file("rank" + std::to_string(rank) + ".grads");
    GradientFileWriter writer(path, rank, world);
    for (int i = 0; i < steps; ++i) {
      const auto value = static_cast<float>(10 * rank + i + 1);
      const auto row = static_cast<std::uint32_t>(rank);
      RecordedStep step;
      step.step = first_step + static_cast<std::uint64_t>(i);
      step.tensors.push_back({.name = name, .rows = 3, .indices = {}, .values = {value, 0, 1}});
      step.tensors.push_back({.name = "bias", .rows = 2, .indices = {}, .values = {value, value}});
      step.tensors.push_back({.name = "table",
                              .row_sparse = true,
                              .rows = 5,
                              .width = 2,
                              .indices = {row, 4, row},
                              .values = {1, 2, value, value, 3, 4}});
      step.tensors.push_back({.name = "last", .rows = 1, .indices = {}, .values = {value}});
      writer.append(step);
    }
    return path;
  }

  TestFolder folder_;
};

TEST_F(RecordedGradients, TensorsBecomeBucketsAndStepsRepeat) {
  const std::vector<std::string> paths = {write(1, 2), write(0, 2)};
  const RecordedSource source(paths, 20);
  EXPECT_EQ(source.workers(), 2);
  EXPECT_EQ(source.steps(), 2u);
  ASSERT_EQ(source.buckets().size(), 3u);
  EXPECT_EQ(source.buckets()[0].rows, 5u);  // weight and bias: 20 bytes
  ASSERT_EQ(source.buckets()[0].parameters.size(), 2u);
  EXPECT_EQ(source.buckets()[0].parameters[1].name, "bias");
  EXPECT_TRUE(source.buckets()[1].row_sparse);
  EXPECT_EQ(source.buckets()[1].elements(), 10u);
  std::vector<float> dense(5);
  source.dense(1, 3, 0, dense);
  EXPECT_EQ(dense, (std::vector<float>{12, 0, 1, 12, 12}));
  RowBuffer buffer;
  const RowSparse rows = source.rows(1, 0, 1, buffer);
  EXPECT_EQ(std::vector<std::uint32_t>(rows.row_indices.begin(), rows.row_indices.end()),
            (std::vector<std::uint32_t>{1, 4, 1}));
  EXPECT_EQ(rows.values[2], 11);
  // Each tensor by itself.
  EXPECT_EQ(RecordedSource(paths, 0).buckets().size(), 4u);
}

TEST_F(RecordedGradients, ReplayOnAVirtualNetworkIsExact) {
  const RecordedSource source({write(0, 3), write(1, 3), write(2, 3)}, 1000);
  const Simulation simulation = simulate("rows=dense,dense=dense", source, {.workers = 3, .steps = 2});
  const Measurement& measurement = simulation.measurement;
  EXPECT_TRUE(measurement.ranks_agree());
  EXPECT_EQ(measurement.elements, 16u);
  EXPECT_LT(*measurement.relative_error, 1e-6);
  EXPECT_GT(*measurement.modelled_seconds, 0);
  // Dense tensors hold 5 values of 6 that are not zero, the same ones; of the table's rows each rank has two,
  // all ranks have four, of two values each.
  EXPECT_DOUBLE_EQ(simulation.gamma, (5.0 + 8) / (5 + 4));
  EXPECT_DOUBLE_EQ(measurement.density_in, 9.0 / 16);
}

TEST_F(RecordedGradients, FilesOfDifferentRunsAreRefused) {
  const auto complaint = [](const std::vector<std::string>& paths) -> std::string {
    try {
      RecordedSource(paths, 0);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  const std::string zero = write(0, 2);
  EXPECT_NE(complaint({zero}).find("1 files were given"), std::string::npos) << complaint({zero});
  EXPECT_NE(complaint({zero, zero}).find("rank 0 is there twice"), std::string::npos);
  EXPECT_NE(complaint({zero, write(1, 2, 0, 1)}).find("holds 1 steps"), std::string::npos);
  EXPECT_NE(complaint({zero, write(1, 2, 7)}).find("other steps"), std::string::npos);
  EXPECT_NE(complaint({zero, write(1, 2, 0, 2, "other")}).find("tensors"), std::string::npos);
  EXPECT_EQ(complaint({zero, write(1, 2)}), "");
  EXPECT_NE(complaint({write(0, 1, 0, 0)}), "");
}

}  // namespace
}  // namespace thinwire::apps
