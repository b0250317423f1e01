#include "apps/train/models/sparse_models.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

namespace thinwire::train {

namespace {

namespace nn = torch::nn;

/// A table of `rows` rows of `width`, whose gradient lists the rows that a batch touched.
nn::Embedding table(int rows, int width) {
  return nn::Embedding(nn::EmbeddingOptions(rows, width).sparse(true));
}

class WordLstm : public Model {
 public:
  static constexpr int kWidth = 128;   // of an embedding
  static constexpr int kHidden = 128;  // of the LSTM

  explicit WordLstm(const ModelShape& shape) {
    embedding_ = register_module("embedding", table(shape.classes, kWidth));
    lstm_ = register_module("lstm", nn::LSTM(nn::LSTMOptions(kWidth, kHidden).batch_first(true)));
    output_ = register_module("output", nn::Linear(kHidden, shape.classes));
    // Zaremba et al. 2014, section 4.1: small uniform values, as the rest of the network has.
    nn::init::uniform_(embedding_->weight, -0.1, 0.1);
  }

  torch::Tensor forward(const torch::Tensor& words) override {
    const torch::Tensor states = std::get<0>(lstm_(embedding_(words)));
    return output_(states.flatten(0, 1));
  }

 private:
  nn::Embedding embedding_{nullptr};
  nn::LSTM lstm_{nullptr};
  nn::Linear output_{nullptr};
};

class DeepFm : public Model {
 public:
  static constexpr int kFactors = 16;
  static constexpr int kHidden = 64;

  explicit DeepFm(const ModelShape& shape) {
    first_order_ = register_module("first_order", table(shape.table_rows, 1));
    factors_ = register_module("factors", table(shape.table_rows, kFactors));
    bias_ = register_parameter("bias", torch::zeros({1}));
    hidden1_ = register_module("hidden1", nn::Linear(shape.fields * kFactors, kHidden));
    hidden2_ = register_module("hidden2", nn::Linear(kHidden, kHidden));
    output_ = register_module("output", nn::Linear(kHidden, 1));
    nn::init::zeros_(first_order_->weight);
    nn::init::normal_(factors_->weight, 0, 0.05);
  }

  torch::Tensor forward(const torch::Tensor& categories) override {
    const torch::Tensor first = first_order_(categories).sum({1, 2});
    const torch::Tensor factors = factors_(categories);  // [n, fields, kFactors]
    // Rendle 2010, lemma 3.1: the sum over all pairs of fields in linear time.
    const torch::Tensor pairs = 0.5 * (factors.sum(1).square() - factors.square().sum(1)).sum(1);
    const torch::Tensor hidden = torch::relu(hidden2_(torch::relu(hidden1_(factors.flatten(1)))));
    const torch::Tensor score = bias_ + first + pairs + output_(hidden).squeeze(1);
    // The softmax of (0, score) is the logistic function of score.
    return torch::stack({torch::zeros_like(score), score}, 1);
  }

 private:
  nn::Embedding first_order_{nullptr};
  nn::Embedding factors_{nullptr};
  torch::Tensor bias_;
  nn::Linear hidden1_{nullptr};
  nn::Linear hidden2_{nullptr};
  nn::Linear output_{nullptr};
};

}  // namespace

std::shared_ptr<Model> make_word_lstm(const ModelShape& shape, const TransformerSizes&) {
  return std::make_shared<WordLstm>(shape);
}

std::shared_ptr<Model> make_deep_fm(const ModelShape& shape, const TransformerSizes&) {
  return std::make_shared<DeepFm>(shape);
}

}  // namespace thinwire::train
