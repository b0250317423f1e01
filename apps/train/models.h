#pragma once
// The networks that `thinwire train` trains, in libtorch.

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace thinwire::train {

/// The shape of what goes in and the number of classes that come out.
struct ModelShape {
  int channels = 1;
  int height = 28;
  int width = 28;
  int classes = 10;
};

class Model : public torch::nn::Module {
 public:
  /// images [n, channels, height, width] -> logits [n, classes].
  virtual torch::Tensor forward(const torch::Tensor& images) = 0;
};

const std::vector<std::string>& known_models();

/// Builds `name` with initial weights that depend on nothing but the seed. Torch has one generator for the
/// whole process: threads take turns here. Throws std::invalid_argument for an unknown name, listing the
/// known ones.
std::shared_ptr<Model> make_model(const std::string& name, const ModelShape& shape, std::uint64_t seed);

std::uint64_t count_parameters(const Model& model);

}  // namespace thinwire::train
