#include "apps/train/evaluation.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>

#include "apps/train/agreement.h"

namespace thinwire::train {

namespace {

struct Part {
  std::uint64_t labels = 0;
  std::uint64_t right = 0;
  double loss = 0;
};

}  // namespace

Score evaluate(Model& model, const Dataset& dataset, Communicator& communicator) {
  const at::NoGradGuard no_grad;
  model.eval();
  const std::size_t count = dataset.test_examples();
  const std::size_t most = dataset.test_batch_examples();
  const std::size_t ranks = static_cast<std::size_t>(communicator.size());
  const std::size_t rank = static_cast<std::size_t>(communicator.rank());
  const std::size_t end = count * (rank + 1) / ranks;
  namespace functional = torch::nn::functional;
  const auto sum = functional::CrossEntropyFuncOptions().reduction(torch::kSum);
  Part mine;
  for (std::size_t first = count * rank / ranks; first < end; first += most) {
    const Batch batch = dataset.test_batch(first, std::min(most, end - first));
    const torch::Tensor logits = model.forward(batch.inputs);
    mine.labels += static_cast<std::uint64_t>(batch.labels.numel());
    mine.right += static_cast<std::uint64_t>(logits.argmax(1).eq(batch.labels).sum().item<std::int64_t>());
    mine.loss += functional::cross_entropy(logits, batch.labels, sum).item<double>();
  }
  Part all;
  for (const Part& part : gather(communicator, mine)) {
    all.labels += part.labels;
    all.right += part.right;
    all.loss += part.loss;
  }
  const auto labels = static_cast<double>(all.labels);
  return {static_cast<double>(all.right) / labels, all.loss / labels};
}

}  // namespace thinwire::train
