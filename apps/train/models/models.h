#pragma once
// The networks that `thinwire train` trains, in libtorch.

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "apps/train/models/transformer.h"

namespace thinwire::train {

enum class Input { images, words, categories };

/// The shape of what goes in and the number of classes that come out.
struct ModelShape {
  Input input = Input::images;
  int channels = 1;  ///< Of images; so are height and width.
  int height = 28;
  int width = 28;
  int classes = 10;    ///< Of words, the whole vocabulary.
  int length = 32;     ///< Of words: of an example.
  int fields = 0;      ///< Of categories: how many make up an example.
  int table_rows = 0;  ///< Of categories: how many there are, over all fields.
};

class Model : public torch::nn::Module {
 public:
  /// images [n, channels, height, width] -> logits [n, classes];
  /// words [n, length], int64 -> logits of the next word [n * length, classes];
  /// categories [n, fields], int64, each below table_rows -> logits [n, classes].
  virtual torch::Tensor forward(const torch::Tensor& inputs) = 0;
};

const std::vector<std::string>& known_models();

/// What `name` learns from. Throws std::invalid_argument for an unknown name, listing the known ones.
Input input_of(const std::string& name);

/// Throws std::invalid_argument, naming data that fit, if `name` does not learn from such inputs.
void require_input(const std::string& name, const ModelShape& shape);

/// Builds `name` with initial weights that depend on nothing but the seed. Torch has one generator for the
/// whole process: threads take turns here. Throws std::invalid_argument for an unknown name, listing the
/// known ones, and for a shape that the model is not made for. `sizes`: of `transformer` alone.
std::shared_ptr<Model> make_model(const std::string& name, const ModelShape& shape, std::uint64_t seed,
                                  const TransformerSizes& sizes = {});

/// Names of the parameters whose gradients are rows: the tables of the embeddings that ask for it.
std::set<std::string> row_sparse_parameters(const Model& model);

std::uint64_t count_parameters(const Model& model);

}  // namespace thinwire::train
