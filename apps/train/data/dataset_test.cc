#include "apps/train/data/dataset.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <functional>

#include "apps/test_folder.h"
#include "apps/train/data/image_dataset.h"

namespace thinwire::train {
namespace {

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 255);
  return bytes;
}

std::string idx_images(std::uint32_t count) {
  std::string bytes = big_endian(0x803) + big_endian(count) + big_endian(28) + big_endian(28);
  for (std::uint32_t i = 0; i < count * 784; ++i) bytes += static_cast<char>(i % 251);
  return bytes;
}

std::string idx_labels(std::uint32_t count) {
  std::string bytes = big_endian(0x801) + big_endian(count);
  for (std::uint32_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 10);
  return bytes;
}

void write_gzipped(const std::string& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

void write_fashion(const apps::TestFolder& folder) {
  folder.write("train-images-idx3-ubyte", idx_images(12));
  folder.write("train-labels-idx1-ubyte", idx_labels(12));
  write_gzipped(folder.file("t10k-images-idx3-ubyte.gz"), idx_images(5));
  write_gzipped(folder.file("t10k-labels-idx1-ubyte.gz"), idx_labels(5));
}

std::string cifar_records(int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) {
    bytes += static_cast<char>(i % 10);
    bytes += std::string(1024, static_cast<char>(10)) + std::string(1024, static_cast<char>(i)) +
             std::string(1024, static_cast<char>(200));
  }
  return bytes;
}

std::unique_ptr<ImageDataset> load_images(const std::string& name) {
  std::unique_ptr<Dataset> dataset = load_dataset(name);
  return std::unique_ptr<ImageDataset>(dynamic_cast<ImageDataset*>(dataset.release()));
}

/// What load_dataset complains about.
std::string complaint_about_data(const std::string& name) {
  try {
    load_dataset(name);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

void expect_mention(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

TEST(FashionMnist, ReadsPlainAndGzippedFiles) {
  const apps::TestFolder folder;
  write_fashion(folder);
  const auto loaded = load_images("fashion-mnist:" + folder.path());
  const ImageSet& dataset = loaded->images();
  EXPECT_EQ(dataset.train.count(), 12u);
  EXPECT_EQ(dataset.test.count(), 5u);
  EXPECT_EQ(dataset.image_bytes(), 784u);
  EXPECT_EQ(dataset.train.pixels[784], 784 % 251);
  EXPECT_EQ(dataset.test.labels[4], 4);
  EXPECT_NEAR(dataset.mean[0], 125, 1);
  EXPECT_NEAR(dataset.deviation[0], 72.4, 1);
}

TEST(FashionMnist, NamesWhatIsMissing) {
  const apps::TestFolder folder;
  const std::string text = complaint_about_data("fashion-mnist:" + folder.path());
  expect_mention(text, "train-labels-idx1-ubyte.gz is missing");
  expect_mention(text, "dataset-fashion-mnist");
}

TEST(FashionMnist, RefusesDamagedFiles) {
  struct Case {
    std::string file, bytes, complaint;
  };
  const std::string images = idx_images(12);
  std::string wrong_label = idx_labels(12);
  wrong_label.back() = 10;
  const std::vector<Case> cases = {
      {"train-images-idx3-ubyte", images.substr(0, 2), "ends before its magic number"},
      {"train-images-idx3-ubyte", images.substr(0, 14), "ends before its number of columns"},
      {"train-images-idx3-ubyte", images.substr(0, images.size() - 1), "is cut short"},
      {"train-images-idx3-ubyte", images + "x", "goes on after"},
      {"train-images-idx3-ubyte", idx_labels(12), "is no IDX file of images"},
      {"train-images-idx3-ubyte", idx_images(11), "holds 11 images for 12 labels"},
      {"train-labels-idx1-ubyte", images, "is no IDX file of labels"},
      {"train-labels-idx1-ubyte", wrong_label, "holds the label 10"},
      {"train-labels-idx1-ubyte", idx_labels(0), "holds no labels"},
  };
  for (const auto& damage : cases) {
    const apps::TestFolder folder;
    write_fashion(folder);
    folder.write(damage.file, damage.bytes);
    const std::string text = complaint_about_data("fashion-mnist:" + folder.path());
    expect_mention(text, damage.complaint);
    expect_mention(text, damage.file);
  }
}

TEST(FashionMnist, RefusesTruncatedGzip) {
  const apps::TestFolder folder;
  write_fashion(folder);
  const std::string name = folder.file("t10k-images-idx3-ubyte.gz");
  std::filesystem::resize_file(name, std::filesystem::file_size(name) / 2);
  expect_mention(complaint_about_data("fashion-mnist:" + folder.path()), "t10k-images-idx3-ubyte.gz");
}

TEST(Cifar10, ReadsRecordsAndMeasuresChannels) {
  const apps::TestFolder folder;
  for (int i = 1; i <= 5; ++i) folder.write("data_batch_" + std::to_string(i) + ".bin", cifar_records(4));
  folder.write("test_batch.bin", cifar_records(3));
  const auto loaded = load_images("cifar10:" + folder.path());
  const ImageSet& dataset = loaded->images();
  EXPECT_EQ(dataset.train.count(), 20u);
  EXPECT_EQ(dataset.test.count(), 3u);
  EXPECT_TRUE(dataset.augment);
  EXPECT_EQ(dataset.train.labels[5], 1);
  EXPECT_DOUBLE_EQ(dataset.mean[0], 10);
  EXPECT_DOUBLE_EQ(dataset.mean[1], 1.5);
  EXPECT_DOUBLE_EQ(dataset.deviation[2], 1);
  folder.write("data_batch_3.bin", cifar_records(2) + "x");
  expect_mention(complaint_about_data("cifar10:" + folder.path()),
                 "data_batch_3.bin has 6147 bytes, no multiple of 3073");
  std::filesystem::remove(folder.file("data_batch_3.bin"));
  expect_mention(complaint_about_data("cifar10:" + folder.path()), "data_batch_3.bin is missing");
}

TEST(Datasets, UnknownNamesListTheKnown) {
  EXPECT_THROW(load_dataset("imagenet"), std::invalid_argument);
  expect_mention(complaint_about_data("imagenet"),
                 "fashion-mnist[:DIR], cifar10:DIR, text[:FILE], adult:DIR");
  EXPECT_THROW(load_dataset("cifar10"), std::invalid_argument);
  EXPECT_THROW(load_dataset("adult"), std::invalid_argument);
}

TEST(Datasets, LimitKeepsTheFirst) {
  const apps::TestFolder folder;
  write_fashion(folder);
  const auto dataset = load_images("fashion-mnist:" + folder.path());
  dataset->limit_training(0);
  EXPECT_EQ(dataset->training_examples(), 12u);
  dataset->limit_training(7);
  EXPECT_EQ(dataset->training_examples(), 7u);
  EXPECT_EQ(dataset->images().train.pixels.size(), 7u * 784);
  EXPECT_EQ(dataset->test_examples(), 5u);
}

}  // namespace
}  // namespace thinwire::train
