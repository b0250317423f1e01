#pragma once
// Which examples a rank sees in which step, and how bytes of images become a normalised batch of floats.
// Everything is a pure function of (seed, epoch, position), so that ranks agree without talking and a resumed
// run sees what an uninterrupted one would have seen.

#include <cstdint>
#include <vector>

#include "apps/train/data/images.h"
#include "thinwire/span.h"

namespace thinwire::train {

/// A permutation of [0, count), the same on every rank.
std::vector<std::uint32_t> epoch_order(std::size_t count, std::uint64_t seed, std::uint64_t epoch);

/// Steps of an epoch: whole global batches; what is left over waits for another epoch's permutation.
std::uint64_t steps_per_epoch(std::size_t examples, int workers, int batch);

/// Rank `rank`'s part of the global batch of `step`.
Span<const std::uint32_t> rank_batch(const std::vector<std::uint32_t>& order, std::uint64_t step, int rank,
                                     int workers, int batch);

/// Cuts batches out of one data set.
class BatchCutter {
 public:
  /// The data set must outlive the cutter.
  explicit BatchCutter(const ImageSet& images);

  /// floats [indices.size() * image_bytes()], labels [indices.size()]: the training images, shifted by up to
  /// 4 pixels and mirrored at random if the data set asks for it.
  void cut_training(Span<const std::uint32_t> indices, std::uint64_t seed, std::uint64_t epoch,
                    Span<float> floats, Span<std::int64_t> labels) const;
  /// Test images first to first + labels.size(), as they are.
  void cut_test(std::size_t first, Span<float> floats, Span<std::int64_t> labels) const;

 private:
  void convert(const std::uint8_t* pixels, float* floats) const;
  void convert_shifted(const std::uint8_t* pixels, int down, int right, bool mirrored, float* floats) const;

  const ImageSet& images_;
  std::vector<float> table_;  // [channels * 256]: the float of each pixel value
};

}  // namespace thinwire::train
