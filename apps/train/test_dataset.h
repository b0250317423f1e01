#pragma once
// Images that a network learns in a few steps: each class lights up one band of rows, with some noise.

#include "data.h"

namespace thinwire::train {

inline Images banded_images(std::size_t count, int channels, std::uint32_t noise) {
  Images images;
  for (std::size_t i = 0; i < count; ++i) {
    const auto label = static_cast<std::uint8_t>(i % 10);
    images.labels.push_back(label);
    for (int at = 0; at < channels * 28 * 28; ++at) {
      noise = noise * 1664525u + 1013904223u;
      const int row = at / 28 % 28;
      const std::uint32_t light = row / 2 == label + 2 ? 180 : 0;
      images.pixels.push_back(static_cast<std::uint8_t>(light + (noise >> 26)));
    }
  }
  return images;
}

inline Dataset banded_dataset(std::size_t train, std::size_t test, bool augment = false) {
  Dataset dataset;
  dataset.name = "bands";
  dataset.channels = 1;
  dataset.height = 28;
  dataset.width = 28;
  dataset.classes = 10;
  dataset.augment = augment;
  dataset.train = banded_images(train, 1, 1);
  dataset.test = banded_images(test, 1, 2);
  measure_channels(dataset);
  return dataset;
}

}  // namespace thinwire::train
