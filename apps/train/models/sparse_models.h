#pragma once
// The models with large tables of which a batch touches few rows.

#include <memory>

#include "apps/train/models/models.h"

namespace thinwire::train {

/// A word's embedding, one LSTM layer from a state of zeros, a softmax over the whole vocabulary.
std::shared_ptr<Model> make_word_lstm(const ModelShape& shape, const TransformerSizes& = {});

/// DeepFM (Guo et al. 2017): on the same rows first-order weights, a
/// factorization machine, a small perceptron.
std::shared_ptr<Model> make_deep_fm(const ModelShape& shape, const TransformerSizes& = {});

}  // namespace thinwire::train
