#pragma once
// Labelled images in memory, one byte per pixel and channel. The whole training set of Fashion-MNIST takes 47
// MB and is shared by all ranks of a process. Batches become floats when they are cut (batches.h).

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace thinwire::train {

struct Images {
  std::vector<std::uint8_t> pixels;  ///< [count * channels * height * width]
  std::vector<std::uint8_t> labels;  ///< [count]
  std::size_t count() const { return labels.size(); }
};

struct ImageSet {
  int channels = 0;
  int height = 0;
  int width = 0;
  int classes = 0;
  bool augment = false;  ///< Whether training images are shifted and mirrored.
  Images train;
  Images test;
  /// Mean and standard deviation of each channel over the training images, in units of a pixel value.
  std::vector<double> mean;
  std::vector<double> deviation;

  std::size_t image_bytes() const {
    return static_cast<std::size_t>(channels) * static_cast<std::size_t>(height) *
           static_cast<std::size_t>(width);
  }
};

/// Fills in mean and deviation from the training images.
void measure_channels(ImageSet& images);

}  // namespace thinwire::train
