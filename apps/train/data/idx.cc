#include "apps/train/data/idx.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <stdexcept>

namespace thinwire::train {

namespace {

constexpr std::uint32_t kImageMagic = 0x803;  // unsigned bytes, 3 dimensions
constexpr std::uint32_t kLabelMagic = 0x801;  // unsigned bytes, 1 dimension
constexpr std::uint32_t kSide = 28;
constexpr int kIdxClasses = 10;

/// A gzipped or plain file, read forward.
class CompressedFile {
 public:
  explicit CompressedFile(std::string path) : path_(std::move(path)), file_(gzopen(path_.c_str(), "rb")) {
    if (!file_) throw std::runtime_error(fmt::format("{} cannot be opened: check its permissions", path_));
    gzbuffer(file_.get(), 1u << 17);
  }

  std::uint32_t big_endian(const char* what) {
    std::uint8_t bytes[4] = {};
    if (read(bytes, 4) != 4) fail(fmt::format("ends before its {}", what));
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 |
           bytes[3];
  }

  /// Exactly `count` bytes up to the file's end. Grows as it reads, so that a header that promises more than
  /// there is costs no memory.
  std::vector<std::uint8_t> rest(std::uint64_t count) {
    constexpr std::uint64_t kChunk = 1u << 20;
    std::vector<std::uint8_t> bytes;
    while (bytes.size() < count) {
      const std::size_t before = bytes.size();
      const std::size_t wanted = static_cast<std::size_t>(std::min(kChunk, count - before));
      bytes.resize(before + wanted);
      const std::size_t got = read(bytes.data() + before, wanted);
      if (got != wanted) {
        fail(fmt::format("is cut short: {} bytes of data where its header promises {}", before + got, count));
      }
    }
    std::uint8_t beyond = 0;
    if (read(&beyond, 1) != 0)
      fail(fmt::format("goes on after the {} bytes that its header promises", count));
    return bytes;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(fmt::format("{} {}: fetch it again", path_, what));
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };

  std::size_t read(std::uint8_t* to, std::size_t count) {
    const int got = gzread(file_.get(), to, static_cast<unsigned>(count));
    int error = Z_OK;
    const char* text = gzerror(file_.get(), &error);
    // Z_BUF_ERROR is the end inside a compressed block: the caller says how much is missing.
    if (got < 0 && error != Z_BUF_ERROR) fail(fmt::format("does not decompress ({})", text));
    return got < 0 ? 0 : static_cast<std::size_t>(got);
  }

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

std::string find_file(const std::string& folder, const std::string& name) {
  const std::filesystem::path base(folder);
  for (const auto& path : {base / (name + ".gz"), base / name}) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) return path.string();
  }
  throw std::runtime_error(fmt::format(
      "{}/{}.gz is missing: install Debian's dataset-fashion-mnist, or name the folder that holds it "
      "with --data fashion-mnist:DIR",
      folder, name));
}

Images load_images(const std::string& folder, const std::string& prefix) {
  Images images;
  CompressedFile labels(find_file(folder, prefix + "-labels-idx1-ubyte"));
  CompressedFile pixels(find_file(folder, prefix + "-images-idx3-ubyte"));
  if (labels.big_endian("magic number") != kLabelMagic) labels.fail("is no IDX file of labels");
  if (pixels.big_endian("magic number") != kImageMagic) pixels.fail("is no IDX file of images");
  const std::uint32_t count = labels.big_endian("count");
  if (count == 0) labels.fail("holds no labels");
  const std::uint32_t image_count = pixels.big_endian("count");
  if (image_count != count) pixels.fail(fmt::format("holds {} images for {} labels", image_count, count));
  const std::uint32_t rows = pixels.big_endian("number of rows");
  const std::uint32_t columns = pixels.big_endian("number of columns");
  if (rows != kSide || columns != kSide) {
    pixels.fail(fmt::format("holds {}x{} images, not {}x{}", rows, columns, kSide, kSide));
  }
  images.labels = labels.rest(count);
  images.pixels = pixels.rest(std::uint64_t{count} * kSide * kSide);
  const auto wrong = std::find_if(images.labels.begin(), images.labels.end(),
                                  [](std::uint8_t label) { return label >= kIdxClasses; });
  if (wrong != images.labels.end()) labels.fail(fmt::format("holds the label {}, above 9", *wrong));
  return images;
}

}  // namespace

ImageSet load_fashion_mnist(const std::string& folder) {
  ImageSet dataset;
  dataset.channels = 1;
  dataset.height = kSide;
  dataset.width = kSide;
  dataset.classes = kIdxClasses;
  dataset.train = load_images(folder, "train");
  dataset.test = load_images(folder, "t10k");
  return dataset;
}

}  // namespace thinwire::train
