#include "evaluation.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "agreement.h"

namespace thinwire::train {

namespace {

constexpr std::size_t kBatch = 100;  // activations of so many images still fit a core's cache

}  // namespace

double test_accuracy(Model& model, const Dataset& dataset, const BatchCutter& cutter,
                     Communicator& communicator) {
  const at::NoGradGuard no_grad;
  model.eval();
  const std::size_t count = dataset.test.count();
  const std::size_t ranks = static_cast<std::size_t>(communicator.size());
  const std::size_t rank = static_cast<std::size_t>(communicator.rank());
  const std::size_t end = count * (rank + 1) / ranks;
  std::uint64_t right = 0;
  for (std::size_t first = count * rank / ranks; first < end; first += kBatch) {
    const std::size_t size = std::min(kBatch, end - first);
    const auto length = static_cast<std::int64_t>(size);
    torch::Tensor images =
        torch::empty({length, dataset.channels, dataset.height, dataset.width}, torch::kFloat32);
    torch::Tensor labels = torch::empty({length}, torch::kInt64);
    cutter.cut_test(first, {images.data_ptr<float>(), size * dataset.image_bytes()},
                    {labels.data_ptr<std::int64_t>(), size});
    right +=
        static_cast<std::uint64_t>(model.forward(images).argmax(1).eq(labels).sum().item<std::int64_t>());
  }
  std::uint64_t all_right = 0;
  for (const std::uint64_t part : gather(communicator, right)) all_right += part;
  return static_cast<double>(all_right) / static_cast<double>(count);
}

}  // namespace thinwire::train
