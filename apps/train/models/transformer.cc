#include "apps/train/models/transformer.h"

#include <fmt/format.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "apps/train/models/models.h"

namespace thinwire::train {

namespace {

namespace nn = torch::nn;

/// Deviation of initial weights, as GPT-2 has it.
constexpr double kDeviation = 0.02;

nn::Linear linear(int in, int out, double deviation) {
  nn::Linear layer(in, out);
  nn::init::normal_(layer->weight, 0, deviation);
  nn::init::zeros_(layer->bias);
  return layer;
}

class Block : public nn::Module {
 public:
  explicit Block(const TransformerSizes& sizes) : heads_(sizes.heads) {
    const int width = sizes.width;
    // What the branches add up to must not grow with the number of layers.
    const double last = kDeviation / std::sqrt(2.0 * sizes.layers);
    norm1_ = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
    attention_ = register_module("attention", linear(width, 3 * width, kDeviation));
    project_ = register_module("project", linear(width, width, last));
    norm2_ = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
    hidden_ = register_module("hidden", linear(width, 4 * width, kDeviation));
    output_ = register_module("output", linear(4 * width, width, last));
  }

  /// x [n, length, width]; future [length, length]: true where a word must not look.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& future) {
    const torch::Tensor y = x + project_(attend(attention_(norm1_(x)), future));
    return y + output_(torch::gelu(hidden_(norm2_(y))));
  }

 private:
  /// all: queries, keys and values of every head, [n, length, 3 * width].
  torch::Tensor attend(const torch::Tensor& all, const torch::Tensor& future) const {
    const std::int64_t n = all.size(0);
    const std::int64_t length = all.size(1);
    const std::int64_t width = all.size(2) / 3;
    const torch::Tensor parts = all.view({n, length, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
    const double scale = 1 / std::sqrt(static_cast<double>(width / heads_));
    const torch::Tensor scores = (parts[0] * scale).matmul(parts[1].transpose(-2, -1));
    const torch::Tensor weights = scores.masked_fill(future, -INFINITY).softmax(-1);
    return weights.matmul(parts[2]).transpose(1, 2).reshape({n, length, width});
  }

  std::int64_t heads_;
  nn::LayerNorm norm1_{nullptr};
  nn::Linear attention_{nullptr};
  nn::Linear project_{nullptr};
  nn::LayerNorm norm2_{nullptr};
  nn::Linear hidden_{nullptr};
  nn::Linear output_{nullptr};
};

class Transformer : public Model {
 public:
  Transformer(const ModelShape& shape, const TransformerSizes& sizes) {
    words_ = register_module("words", nn::Embedding(shape.classes, sizes.width));
    places_ = register_module("places", nn::Embedding(shape.length, sizes.width));
    nn::init::normal_(words_->weight, 0, kDeviation);
    nn::init::normal_(places_->weight, 0, kDeviation);
    for (int i = 0; i < sizes.layers; ++i) {
      blocks_.push_back(register_module(fmt::format("block{}", i + 1), std::make_shared<Block>(sizes)));
    }
    norm_ = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({sizes.width})));
  }

  torch::Tensor forward(const torch::Tensor& words) override {
    const std::int64_t length = words.size(1);
    torch::Tensor x = words_(words) + places_->weight.narrow(0, 0, length);
    const torch::Tensor future = torch::ones({length, length}, torch::kBool).triu(1);
    for (const auto& block : blocks_) x = block->forward(x, future);
    return norm_(x).flatten(0, 1).matmul(words_->weight.t());
  }

 private:
  nn::Embedding words_{nullptr};
  nn::Embedding places_{nullptr};
  std::vector<std::shared_ptr<Block>> blocks_;
  nn::LayerNorm norm_{nullptr};
};

}  // namespace

std::shared_ptr<Model> make_transformer(const ModelShape& shape, const TransformerSizes& sizes) {
  if (sizes.layers < 1 || sizes.width < 1 || sizes.heads < 1 || sizes.width % sizes.heads != 0) {
    throw std::invalid_argument(
        fmt::format("a transformer of {} layers, width {} and {} heads: all are at least 1, and heads divide "
                    "the width (--layers, --width, --heads)",
                    sizes.layers, sizes.width, sizes.heads));
  }
  return std::make_shared<Transformer>(shape, sizes);
}

}  // namespace thinwire::train
