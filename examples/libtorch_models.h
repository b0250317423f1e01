#pragma once
// What libtorch_train learns: a small network, or a decoder-only transformer on text.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

struct ModelOptions {
  std::string model = "teacher";
  std::string
      text{};  ///< A file; empty: the King James Bible, from Debian's packages bible-kjv and bible-kjv-text.
  std::int64_t vocabulary = 2000;  ///< The most frequent words; all others are one word more.
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t layers = 2;
  std::int64_t context = 32;  ///< Words from which the next one is told.
  std::int64_t batch = 32;    ///< Examples of a rank and step.
  int seed = 1;
};

/// A model, and the batches that one rank sees.
class Task {
 public:
  virtual ~Task() = default;
  /// Has the same first weights on every rank.
  virtual torch::nn::Module& model() = 0;
  /// Of a batch that is this rank's own, drawn by torch's generator.
  virtual torch::Tensor loss() = 0;
  /// On examples that no rank learns from; nothing where there are none. Has no gradient.
  virtual std::optional<double> held_out_loss() = 0;
};

/// Throws std::invalid_argument for options that fit no model, and for a text that is too short.
std::unique_ptr<Task> make_task(const ModelOptions& options);
