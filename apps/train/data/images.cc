#include "apps/train/data/images.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace thinwire::train {

void measure_channels(ImageSet& images) {
  const std::size_t channels = static_cast<std::size_t>(images.channels);
  const std::size_t plane = images.image_bytes() / channels;
  images.mean.assign(channels, 0);
  images.deviation.assign(channels, 1);
  for (std::size_t channel = 0; channel < channels; ++channel) {
    std::array<std::uint64_t, 256> histogram{};
    for (std::size_t image = 0; image < images.train.count(); ++image) {
      const std::uint8_t* pixels = &images.train.pixels[(image * channels + channel) * plane];
      for (std::size_t i = 0; i < plane; ++i) ++histogram[pixels[i]];
    }
    const double count = static_cast<double>(images.train.count() * plane);
    double sum = 0;
    double squares = 0;
    for (std::size_t value = 0; value < 256; ++value) {
      const double weight = static_cast<double>(histogram[value]);
      sum += weight * static_cast<double>(value);
      squares += weight * static_cast<double>(value * value);
    }
    const double mean = sum / count;
    images.mean[channel] = mean;
    // Images of one colour have no deviation; 1 keeps their pixels finite.
    images.deviation[channel] = std::max(1.0, std::sqrt(std::max(0.0, squares / count - mean * mean)));
  }
}

}  // namespace thinwire::train
