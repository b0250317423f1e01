#include "apps/train/data/dataset.h"

#include <fmt/format.h>

#include <stdexcept>

#include "apps/train/data/adult.h"
#include "apps/train/data/cifar.h"
#include "apps/train/data/idx.h"
#include "apps/train/data/image_dataset.h"
#include "apps/train/data/text.h"
#include "apps/train/data/text_source.h"

namespace thinwire::train {

namespace {

constexpr std::string_view kKnown = "fashion-mnist[:DIR], cifar10:DIR, text[:FILE], adult:DIR";
constexpr std::string_view kFashionFolder = "/usr/share/datasets/fashion-mnist";

}  // namespace

std::unique_ptr<Dataset> load_dataset(std::string_view name, std::size_t vocabulary, std::size_t context) {
  const std::size_t colon = name.find(':');
  const std::string_view kind = name.substr(0, colon);
  const std::string place(colon == std::string_view::npos ? "" : name.substr(colon + 1));
  if (kind == "fashion-mnist") {
    return std::make_unique<ImageDataset>(
        load_fashion_mnist(place.empty() ? std::string(kFashionFolder) : place));
  }
  if (kind == "cifar10") {
    if (place.empty()) {
      throw std::invalid_argument("data set 'cifar10' needs the folder of its binary files: cifar10:DIR");
    }
    return std::make_unique<ImageDataset>(load_cifar10(place));
  }
  if (kind == "text") {
    return std::make_unique<TextDataset>(place.empty() ? read_king_james() : read_text_file(place),
                                         vocabulary, context);
  }
  if (kind == "adult") {
    if (place.empty()) {
      throw std::invalid_argument(
          "data set 'adult' needs the folder with UCI's adult.data and adult.test: adult:DIR");
    }
    return std::make_unique<AdultDataset>(load_adult(place));
  }
  throw std::invalid_argument(fmt::format("unknown data set '{}'; known: {}", name, kKnown));
}

}  // namespace thinwire::train
