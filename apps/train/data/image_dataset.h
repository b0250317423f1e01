#pragma once
// Images as a data set: every image is an example.

#include "apps/train/data/batches.h"
#include "apps/train/data/dataset.h"
#include "apps/train/data/images.h"

namespace thinwire::train {

class ImageDataset : public Dataset {
 public:
  /// Measures the channels.
  explicit ImageDataset(ImageSet images);

  const ImageSet& images() const { return images_; }

  ModelShape shape() const override;
  std::size_t training_examples() const override { return images_.train.count(); }
  std::size_t test_examples() const override { return images_.test.count(); }
  std::size_t test_batch_examples() const override { return 100; }
  void limit_training(std::uint64_t count) override;
  Batch training_batch(Span<const std::uint32_t> indices, std::uint64_t seed,
                       std::uint64_t epoch) const override;
  Batch test_batch(std::size_t first, std::size_t count) const override;

 private:
  Batch empty_batch(std::size_t count) const;

  ImageSet images_;
  BatchCutter cutter_;
};

}  // namespace thinwire::train
