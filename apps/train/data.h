#pragma once
// Labelled images in memory, one byte per pixel and channel: the whole training set of Fashion-MNIST takes 47
// MB and is shared by all ranks of a process; batches become floats when they are cut (batches.h).

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace thinwire::train {

struct Images {
  std::vector<std::uint8_t> pixels;  ///< [count * channels * height * width]
  std::vector<std::uint8_t> labels;  ///< [count]
  std::size_t count() const { return labels.size(); }
};

struct Dataset {
  std::string name;
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

/// Reads a data set named as on the command line: fashion-mnist[:DIR], cifar10:DIR.
/// Throws std::invalid_argument for an unknown name, listing the known ones, and std::runtime_error naming
/// the file that is missing, cut short or not of its format, and what to do.
Dataset load_dataset(std::string_view name);

/// Keeps the first `count` training images (0: all).
void limit_training(Dataset& dataset, std::uint64_t count);

/// Fills in mean and deviation from the training images.
void measure_channels(Dataset& dataset);

}  // namespace thinwire::train
