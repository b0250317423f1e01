#pragma once
// The IDX files of the MNIST family: a big-endian header (magic, count, for images rows and columns), then
// one byte per pixel or label. Gzipped or plain.

#include <string>

#include "apps/train/data/images.h"

namespace thinwire::train {

/// Reads {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz] of 28x28 images in 10 classes; mean and deviation
/// are left to the caller. Throws std::runtime_error.
ImageSet load_fashion_mnist(const std::string& folder);

}  // namespace thinwire::train
