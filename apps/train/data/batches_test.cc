#include "apps/train/data/batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "apps/train/data/test_dataset.h"

namespace thinwire::train {
namespace {

TEST(EpochOrder, IsAPermutationOfItsSeedAndEpoch) {
  for (const std::size_t count : {0u, 1u, 2u, 63u, 1000u}) {
    std::vector<std::uint32_t> order = epoch_order(count, 5, 0);
    EXPECT_EQ(order, epoch_order(count, 5, 0));
    if (count > 10) {
      EXPECT_NE(order, epoch_order(count, 5, 1));
      EXPECT_NE(order, epoch_order(count, 6, 0));
    }
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(order[i], i);
  }
}

// A uniform place has mean (n-1)/2; over 2000 permutations of 10 the mean's deviation is 2.87 / sqrt(2000) =
// 0.064; 0.3 is more than 4.6 of them (confidence 99.999 % for each of the ten, seeds fixed).
TEST(EpochOrder, PutsEveryImageEverywhere) {
  std::vector<double> place(10, 0);
  for (std::uint64_t epoch = 0; epoch < 2000; ++epoch) {
    const auto order = epoch_order(10, 1, epoch);
    for (std::size_t i = 0; i < 10; ++i) place[order[i]] += static_cast<double>(i) / 2000;
  }
  for (const double mean : place) EXPECT_NEAR(mean, 4.5, 0.3);
}

TEST(RankBatch, ShardsCoverEveryWholeGlobalBatchOnce) {
  for (const int workers : {1, 2, 3, 4, 5, 8}) {
    const auto order = epoch_order(1000, 1, 0);
    const std::uint64_t steps = steps_per_epoch(1000, workers, 7);
    EXPECT_EQ(steps, 1000u / static_cast<unsigned>(7 * workers));
    std::set<std::uint32_t> seen;
    for (std::uint64_t step = 0; step < steps; ++step) {
      for (int rank = 0; rank < workers; ++rank) {
        for (const std::uint32_t image : rank_batch(order, step, rank, workers, 7)) seen.insert(image);
      }
    }
    EXPECT_EQ(seen.size(), steps * static_cast<unsigned>(7 * workers));
  }
}

TEST(BatchCutter, NormalisesPixels) {
  const ImageSet dataset = banded_set(20, 10);
  const BatchCutter cutter(dataset);
  const std::vector<std::uint32_t> indices = {3, 11};
  std::vector<float> floats(2 * 784);
  std::vector<std::int64_t> labels(2);
  cutter.cut_training(indices, 1, 0, floats, labels);
  EXPECT_EQ(labels, (std::vector<std::int64_t>{3, 1}));
  for (const std::size_t at : {std::size_t{0}, std::size_t{300}, std::size_t{783}}) {
    const double pixel = dataset.train.pixels[11 * 784 + at];
    EXPECT_NEAR(floats[784 + at], (pixel - dataset.mean[0]) / dataset.deviation[0], 1e-6);
  }
  cutter.cut_test(4, floats, labels);
  EXPECT_EQ(labels, (std::vector<std::int64_t>{4, 5}));
}

TEST(BatchCutter, AugmentsTheSameWayForTheSameSeedEpochAndImage) {
  const ImageSet dataset = banded_set(40, 10, /*augment=*/true);
  const BatchCutter cutter(dataset);
  std::vector<std::int64_t> labels(1);
  const auto cut = [&](std::uint32_t image, std::uint64_t epoch) {
    std::vector<float> floats(784);
    const std::vector<std::uint32_t> index = {image};
    cutter.cut_training(index, 9, epoch, floats, labels);
    return floats;
  };
  std::set<std::vector<float>> versions;
  for (std::uint64_t epoch = 0; epoch < 300; ++epoch) {
    EXPECT_EQ(cut(7, epoch), cut(7, epoch));
    versions.insert(cut(7, epoch));
  }
  // 162 shifts and mirrors; 300 draws miss a given one with probability 0.156, so about 137 are seen.
  EXPECT_GT(versions.size(), 110u);
  EXPECT_LE(versions.size(), 162u);
}

TEST(BatchCutter, ShiftedImagesHoldTheOriginalsPixels) {
  const ImageSet dataset = banded_set(10, 10, /*augment=*/true);
  const BatchCutter cutter(dataset);
  std::vector<float> floats(784);
  std::vector<std::int64_t> labels(1);
  const std::vector<std::uint32_t> index = {2};
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    cutter.cut_training(index, 3, epoch, floats, labels);
    // Some shift and mirror of the original explains every pixel.
    bool explained = false;
    for (int shift = 0; shift < 162 && !explained; ++shift) {
      const int down = shift % 9 - 4;
      const int right = shift / 9 % 9 - 4;
      const bool mirrored = shift >= 81;
      explained = true;
      for (int at = 0; at < 784 && explained; ++at) {
        const int y = at / 28 + down;
        const int x = (mirrored ? 27 - at % 28 : at % 28) + right;
        float wanted = 0;
        if (y >= 0 && y < 28 && x >= 0 && x < 28) {
          const int pixel = dataset.train.pixels[static_cast<std::size_t>(2 * 784 + y * 28 + x)];
          wanted = static_cast<float>((pixel - dataset.mean[0]) / dataset.deviation[0]);
        }
        explained = floats[static_cast<std::size_t>(at)] == wanted;
      }
    }
    EXPECT_TRUE(explained) << "epoch " << epoch;
  }
}

}  // namespace
}  // namespace thinwire::train
