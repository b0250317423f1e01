#pragma once
// Data that a network learns in a few steps: images whose class lights up one band of rows, with some noise;
// a text in which each word decides the next; records whose label one category decides.

#include <fmt/format.h>

#include "apps/train/data/adult.h"
#include "apps/train/data/image_dataset.h"
#include "apps/train/data/text.h"

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

inline ImageSet banded_set(std::size_t train, std::size_t test, bool augment = false) {
  ImageSet images;
  images.channels = 1;
  images.height = 28;
  images.width = 28;
  images.classes = 10;
  images.augment = augment;
  images.train = banded_images(train, 1, 1);
  images.test = banded_images(test, 1, 2);
  measure_channels(images);
  return images;
}

/// Words w1 to w16 in a cycle: each is followed by the one of three times its number, modulo 17.
inline std::string chain_text(std::size_t words) {
  std::string text;
  std::size_t word = 1;
  for (std::size_t i = 0; i < words; ++i) {
    text += fmt::format("w{} ", word);
    word = 3 * word % 17;
  }
  return text;
}

inline std::vector<AdultRecord> adult_records(std::size_t count, std::uint32_t noise) {
  std::vector<AdultRecord> records(count);
  const auto draw = [&noise](std::uint32_t bound) {
    noise = noise * 1664525u + 1013904223u;
    return (noise >> 16) % bound;
  };
  for (auto& record : records) {
    for (auto& category : record.categories) category = fmt::format("value-{}", draw(6));
    for (auto& number : record.numbers) number = draw(100);
    record.above_50k = record.categories[1] < "value-3";
  }
  return records;
}

}  // namespace thinwire::train
