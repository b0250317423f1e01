#include "apps/train/data/image_dataset.h"

#include <utility>

namespace thinwire::train {

namespace {

ImageSet measured(ImageSet images) {
  measure_channels(images);
  return images;
}

Span<float> floats_of(const Batch& batch) {
  return {batch.inputs.data_ptr<float>(), static_cast<std::size_t>(batch.inputs.numel())};
}
Span<std::int64_t> labels_of(const Batch& batch) {
  return {batch.labels.data_ptr<std::int64_t>(), static_cast<std::size_t>(batch.labels.numel())};
}

}  // namespace

ImageDataset::ImageDataset(ImageSet images) : images_(measured(std::move(images))), cutter_(images_) {}

ModelShape ImageDataset::shape() const {
  return {.channels = images_.channels,
          .height = images_.height,
          .width = images_.width,
          .classes = images_.classes};
}

void ImageDataset::limit_training(std::uint64_t count) {
  if (count == 0 || count >= images_.train.count()) return;
  images_.train.labels.resize(count);
  images_.train.pixels.resize(count * images_.image_bytes());
}

Batch ImageDataset::empty_batch(std::size_t count) const {
  const auto length = static_cast<std::int64_t>(count);
  return {torch::empty({length, images_.channels, images_.height, images_.width}, torch::kFloat32),
          torch::empty({length}, torch::kInt64)};
}

Batch ImageDataset::training_batch(Span<const std::uint32_t> indices, std::uint64_t seed,
                                   std::uint64_t epoch) const {
  const Batch batch = empty_batch(indices.size());
  cutter_.cut_training(indices, seed, epoch, floats_of(batch), labels_of(batch));
  return batch;
}

Batch ImageDataset::test_batch(std::size_t first, std::size_t count) const {
  const Batch batch = empty_batch(count);
  cutter_.cut_test(first, floats_of(batch), labels_of(batch));
  return batch;
}

}  // namespace thinwire::train
