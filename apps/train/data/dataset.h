#pragma once
// What one trains on: numbered examples, what is to be learned of each, and how batches of them become
// tensors. A data set lies in memory once and is shared by all ranks of a process.

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "apps/train/models/models.h"
#include "thinwire/span.h"

namespace thinwire::train {

/// What goes into a model, [n, ...], and the class of everything that comes out, [n] or, if each example has
/// several, [n * classes per example].
struct Batch {
  torch::Tensor inputs;
  torch::Tensor labels;
};

class Dataset {
 public:
  Dataset() = default;
  virtual ~Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  virtual ModelShape shape() const = 0;
  virtual std::size_t training_examples() const = 0;
  virtual std::size_t test_examples() const = 0;
  /// How many test examples a model should see at once, so that what it computes of them stays in caches.
  virtual std::size_t test_batch_examples() const = 0;
  /// Keeps the first `count` training examples (0: all).
  virtual void limit_training(std::uint64_t count) = 0;

  /// The training examples `indices`; a pure function of its arguments, may be called by several threads.
  virtual Batch training_batch(Span<const std::uint32_t> indices, std::uint64_t seed,
                               std::uint64_t epoch) const = 0;
  /// Test examples first to first + count. May be called by several threads.
  virtual Batch test_batch(std::size_t first, std::size_t count) const = 0;
};

/// Reads a data set named as on the command line: fashion-mnist[:DIR], cifar10:DIR, text[:FILE], adult:DIR.
/// `vocabulary`: most words of a text that are told apart; `context`: words of a text in one example.
/// Throws std::invalid_argument for an unknown name, listing the known ones, and std::runtime_error naming
/// the file that is missing, cut short or not of its format, and what to do.
std::unique_ptr<Dataset> load_dataset(std::string_view name, std::size_t vocabulary = 10'000,
                                      std::size_t context = 32);

}  // namespace thinwire::train
