// Files of data sets, made of any bytes: a reader throws std::runtime_error, or returns examples of which
// every label is one of the classes.

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "apps/train/data/adult_records.h"
#include "apps/train/data/cifar.h"
#include "apps/train/data/idx.h"
#include "fuzz/input.h"

namespace {

using namespace thinwire::train;
using thinwire::fuzz::require;
namespace fs = std::filesystem;

/// In memory where the system has a place for it; removed at the end.
class Folder {
 public:
  Folder()
      : path_((fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()) /
              ("thinwire-fuzz-" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path() const { return path_.string(); }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary | std::ios::trunc) << bytes;
  }

 private:
  fs::path path_;
};

void require_sound(const ImageSet& set) {
  for (const auto* images : {&set.train, &set.test}) {
    require(images->pixels.size() == images->count() * set.image_bytes());
    for (const auto label : images->labels) require(label < set.classes);
  }
}

std::string repeated(const std::string& text, std::size_t size) {
  std::string all;
  while (!text.empty() && all.size() < size) all += text;
  return all.substr(0, size);
}

/// Of one image, so that a file can be whole; the input changes some of its bytes.
void read_idx(const Folder& folder, thinwire::fuzz::Input& input) {
  std::string labels = std::string("\0\0\x08\x01\0\0\0\x01\x03", 9);
  std::string pixels = std::string("\0\0\x08\x03\0\0\0\x01\0\0\0\x1c\0\0\0\x1c", 16) + std::string(784, 'p');
  for (int changes = 0; changes < 4 && !input.empty(); ++changes) {
    const auto at = input.take<std::uint16_t>();
    const auto byte = static_cast<char>(input.take<std::uint8_t>());
    std::string& file = at % 2 == 0 ? labels : pixels;
    if (at / 2 % 900 < file.size()) {
      file[at / 2 % 900] = byte;
    } else {
      file.resize(at / 2 % 900 + 1);
    }
  }
  const std::string rest = input.rest();
  for (const std::string prefix : {"train", "t10k"}) {
    folder.write(prefix + "-labels-idx1-ubyte", rest.size() > 40 ? rest : labels);
    folder.write(prefix + "-images-idx3-ubyte", pixels);
  }
  require_sound(load_fashion_mnist(folder.path()));
}

void read_cifar(const Folder& folder, thinwire::fuzz::Input& input) {
  constexpr std::size_t kRecord = 3073;
  const std::size_t records = input.take<std::uint8_t>() % 4;
  const std::size_t odd = input.take<std::uint8_t>() % 8;
  const std::string rest = input.rest();
  folder.write("test_batch.bin", repeated(rest, records * kRecord + odd / 7));
  for (int i = 1; i <= 5; ++i)
    folder.write("data_batch_" + std::to_string(i) + ".bin", repeated(rest, kRecord));
  require_sound(load_cifar10(folder.path()));
}

void read_adult(const Folder& folder, thinwire::fuzz::Input& input) {
  const std::string text = input.rest();
  folder.write("adult.data", text);
  folder.write("adult.test", text);
  require(!load_adult(folder.path()).train.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  thinwire::fuzz::Input input(data, size);
  const auto kind = input.take<std::uint8_t>() % 3;
  try {
    if (kind == 0) read_idx(folder, input);
    if (kind == 1) read_cifar(folder, input);
    if (kind == 2) read_adult(folder, input);
  } catch (const std::runtime_error&) {
  }
  return 0;
}
