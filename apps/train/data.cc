#include "data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "cifar.h"
#include "idx.h"

namespace thinwire::train {

namespace {

constexpr std::string_view kKnown = "fashion-mnist[:DIR], cifar10:DIR";
constexpr std::string_view kFashionFolder = "/usr/share/datasets/fashion-mnist";

}  // namespace

Dataset load_dataset(std::string_view name) {
  const std::size_t colon = name.find(':');
  const std::string_view kind = name.substr(0, colon);
  const std::string folder(colon == std::string_view::npos ? "" : name.substr(colon + 1));
  Dataset dataset;
  if (kind == "fashion-mnist") {
    dataset = load_fashion_mnist(folder.empty() ? std::string(kFashionFolder) : folder);
  } else if (kind == "cifar10") {
    if (folder.empty()) {
      throw std::invalid_argument("data set 'cifar10' needs the folder of its binary files: cifar10:DIR");
    }
    dataset = load_cifar10(folder);
  } else {
    throw std::invalid_argument(fmt::format("unknown data set '{}'; known: {}", name, kKnown));
  }
  dataset.name = name;
  measure_channels(dataset);
  return dataset;
}

void limit_training(Dataset& dataset, std::uint64_t count) {
  if (count == 0 || count >= dataset.train.count()) return;
  dataset.train.labels.resize(count);
  dataset.train.pixels.resize(count * dataset.image_bytes());
}

void measure_channels(Dataset& dataset) {
  const std::size_t channels = static_cast<std::size_t>(dataset.channels);
  const std::size_t plane = dataset.image_bytes() / channels;
  dataset.mean.assign(channels, 0);
  dataset.deviation.assign(channels, 1);
  for (std::size_t channel = 0; channel < channels; ++channel) {
    std::array<std::uint64_t, 256> histogram{};
    for (std::size_t image = 0; image < dataset.train.count(); ++image) {
      const std::uint8_t* pixels = &dataset.train.pixels[(image * channels + channel) * plane];
      for (std::size_t i = 0; i < plane; ++i) ++histogram[pixels[i]];
    }
    const double count = static_cast<double>(dataset.train.count() * plane);
    double sum = 0;
    double squares = 0;
    for (std::size_t value = 0; value < 256; ++value) {
      const double weight = static_cast<double>(histogram[value]);
      sum += weight * static_cast<double>(value);
      squares += weight * static_cast<double>(value * value);
    }
    const double mean = sum / count;
    dataset.mean[channel] = mean;
    // Images of one colour have no deviation; 1 keeps their pixels finite.
    dataset.deviation[channel] = std::max(1.0, std::sqrt(std::max(0.0, squares / count - mean * mean)));
  }
}

}  // namespace thinwire::train
