#include "apps/train/data/batches.h"

#include <numeric>
#include <utility>

namespace thinwire::train {

namespace {

constexpr int kMargin = 4;

/// SplitMix64's finaliser: every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t epoch, std::uint64_t position) {
  return mix(mix(mix(seed) ^ epoch) ^ position);
}

/// Below `bound`; the bias of at most bound / 2^32 does not matter for an order of examples.
std::uint32_t below(std::uint64_t bits, std::uint64_t bound) {
  return static_cast<std::uint32_t>(((bits >> 32) * bound) >> 32);
}

}  // namespace

std::vector<std::uint32_t> epoch_order(std::size_t count, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  for (std::size_t i = count; i > 1; --i) {
    std::swap(order[i - 1], order[below(random_bits(seed, epoch, i), i)]);
  }
  return order;
}

std::uint64_t steps_per_epoch(std::size_t examples, int workers, int batch) {
  return examples / (static_cast<std::uint64_t>(workers) * static_cast<std::uint64_t>(batch));
}

Span<const std::uint32_t> rank_batch(const std::vector<std::uint32_t>& order, std::uint64_t step, int rank,
                                     int workers, int batch) {
  const std::size_t size = static_cast<std::size_t>(batch);
  const std::size_t slot = step * static_cast<std::uint64_t>(workers) + static_cast<std::uint64_t>(rank);
  return Span<const std::uint32_t>(order.data() + slot * size, size);
}

BatchCutter::BatchCutter(const ImageSet& images) : images_(images) {
  for (std::size_t channel = 0; channel < static_cast<std::size_t>(images.channels); ++channel) {
    for (int value = 0; value < 256; ++value) {
      table_.push_back(static_cast<float>((value - images.mean[channel]) / images.deviation[channel]));
    }
  }
}

void BatchCutter::cut_training(Span<const std::uint32_t> indices, std::uint64_t seed, std::uint64_t epoch,
                               Span<float> floats, Span<std::int64_t> labels) const {
  const std::size_t size = images_.image_bytes();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::size_t image = indices[i];
    labels[i] = images_.train.labels[image];
    const std::uint8_t* pixels = &images_.train.pixels[image * size];
    if (!images_.augment) {
      convert(pixels, &floats[i * size]);
      continue;
    }
    // Other streams than the epoch's order: that one uses positions up to the number of images.
    const std::uint64_t bits = random_bits(~seed, epoch, image);
    const int down = static_cast<int>(below(bits, 2 * kMargin + 1)) - kMargin;
    const int right = static_cast<int>(below(bits << 16, 2 * kMargin + 1)) - kMargin;
    convert_shifted(pixels, down, right, (bits & 1) != 0, &floats[i * size]);
  }
}

void BatchCutter::cut_test(std::size_t first, Span<float> floats, Span<std::int64_t> labels) const {
  const std::size_t size = images_.image_bytes();
  for (std::size_t i = 0; i < labels.size(); ++i) {
    labels[i] = images_.test.labels[first + i];
    convert(&images_.test.pixels[(first + i) * size], &floats[i * size]);
  }
}

void BatchCutter::convert(const std::uint8_t* pixels, float* floats) const {
  const std::size_t plane = images_.image_bytes() / static_cast<std::size_t>(images_.channels);
  for (std::size_t channel = 0; channel < static_cast<std::size_t>(images_.channels); ++channel) {
    const float* table = &table_[channel * 256];
    for (std::size_t i = channel * plane; i < (channel + 1) * plane; ++i) floats[i] = table[pixels[i]];
  }
}

void BatchCutter::convert_shifted(const std::uint8_t* pixels, int down, int right, bool mirrored,
                                  float* floats) const {
  const int height = images_.height;
  const int width = images_.width;
  for (int channel = 0; channel < images_.channels; ++channel) {
    const float* table = &table_[static_cast<std::size_t>(channel) * 256];
    for (int y = 0; y < height; ++y) {
      const int from_y = y + down;
      const bool row_inside = from_y >= 0 && from_y < height;
      const std::uint8_t* row = pixels + (channel * height + (row_inside ? from_y : 0)) * width;
      for (int x = 0; x < width; ++x) {
        const int from_x = (mirrored ? width - 1 - x : x) + right;
        const bool inside = row_inside && from_x >= 0 && from_x < width;
        *floats++ =
            inside ? table[row[from_x]] : 0.0f;  // 0 is the mean: what padding after normalising gives
      }
    }
  }
}

}  // namespace thinwire::train
