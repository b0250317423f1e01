#pragma once
// CIFAR-10's binary files: records of one label byte and 3072 pixel bytes (32x32: red, green and blue plane).

#include <string>

#include "apps/train/data/images.h"

namespace thinwire::train {

/// Reads data_batch_1.bin to data_batch_5.bin and test_batch.bin; mean and deviation are left to the caller.
/// Throws std::runtime_error.
ImageSet load_cifar10(const std::string& folder);

}  // namespace thinwire::train
