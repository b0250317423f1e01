#pragma once
// A decoder-only transformer that learns a text word by word.

#include <cstdint>
#include <memory>

namespace thinwire::train {

class Model;
struct ModelShape;

/// `heads` divides `width`.
struct TransformerSizes {
  int layers = 4;
  int width = 128;
  int heads = 4;
};

/// words [n, length], int64, length at most shape.length -> logits of the next word [n * length, classes].
/// Radford et al. 2019 (GPT-2): learned places, a norm before each attention and each perceptron of 4 *
/// width, GELU, and one table for reading words and for foretelling them. Throws std::invalid_argument for
/// sizes below 1 and for heads that do not divide the width.
std::shared_ptr<Model> make_transformer(const ModelShape& shape, const TransformerSizes& sizes);

}  // namespace thinwire::train
