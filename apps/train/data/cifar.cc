#include "apps/train/data/cifar.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace thinwire::train {

namespace {

constexpr std::size_t kPixels = 3072;
constexpr std::size_t kRecord = 1 + kPixels;
constexpr int kCifarClasses = 10;

void append_file(const std::string& folder, const std::string& name, Images& images) {
  const std::filesystem::path path = std::filesystem::path(folder) / name;
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  std::ifstream stream(path, std::ios::binary);
  if (error || !stream) {
    throw std::runtime_error(
        fmt::format("{} is missing: give the folder with CIFAR-10's binary files (data_batch_1.bin to "
                    "data_batch_5.bin and "
                    "test_batch.bin), --data cifar10:DIR",
                    path.string()));
  }
  if (bytes == 0 || bytes % kRecord != 0) {
    throw std::runtime_error(
        fmt::format("{} has {} bytes, no multiple of {}: fetch it again", path.string(), bytes, kRecord));
  }
  std::vector<char> record(kRecord);
  for (std::uintmax_t i = 0; i < bytes / kRecord; ++i) {
    if (!stream.read(record.data(), static_cast<std::streamsize>(kRecord))) {
      throw std::runtime_error(fmt::format("{} cannot be read to its end", path.string()));
    }
    const auto label = static_cast<std::uint8_t>(record[0]);
    if (label >= kCifarClasses) {
      throw std::runtime_error(
          fmt::format("{}: record {} has the label {}, above 9: fetch it again", path.string(), i, label));
    }
    images.labels.push_back(label);
    images.pixels.insert(images.pixels.end(), record.begin() + 1, record.end());
  }
}

}  // namespace

ImageSet load_cifar10(const std::string& folder) {
  ImageSet dataset;
  dataset.channels = 3;
  dataset.height = 32;
  dataset.width = 32;
  dataset.classes = kCifarClasses;
  dataset.augment = true;
  for (int i = 1; i <= 5; ++i) append_file(folder, fmt::format("data_batch_{}.bin", i), dataset.train);
  append_file(folder, "test_batch.bin", dataset.test);
  return dataset;
}

}  // namespace thinwire::train
