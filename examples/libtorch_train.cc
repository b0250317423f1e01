// Data-parallel training with libtorch and Thinwire: every rank learns from examples of its own what a fixed
// network of two layers computes, and gradients are synchronized by any system.
//
//   thinwire launch -n 4 -- libtorch_train marsit:full_every=50
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "thinwire/session.h"
#include "torch/gloo_environment.h"

namespace {

constexpr int kSteps = 300;
constexpr int kBatch = 32;

torch::nn::Sequential make_network(std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(torch::nn::Linear(64, 256), torch::nn::Tanh(), torch::nn::Linear(256, 8));
}

void train(const std::string& spec) {
  torch::set_num_threads(1);
  // RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun and `thinwire launch` set them.
  const auto communicator = thinwire::open_gloo_from_environment(std::chrono::seconds(60));
  auto teacher = make_network(1);
  auto student = make_network(2);  // the same first weights on every rank
  torch::optim::SGD optimizer(student->parameters(), torch::optim::SGDOptions(0.05));

  // One bucket of all parameters: their gradients lie one after the other in `gradients`.
  thinwire::Session session(spec, *communicator);
  thinwire::BucketLayout layout;
  for (const auto& parameter : student->named_parameters()) {
    const auto elements = static_cast<std::size_t>(parameter.value().numel());
    layout.push_back({parameter.key(), elements, static_cast<std::size_t>(parameter.value().size(0))});
  }
  const auto bucket = session.add_bucket(layout);
  session.start();  // compares the configurations of all ranks

  std::vector<float> gradients;
  torch::manual_seed(100 + communicator->rank());  // other examples on every rank
  double loss_sum = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const auto inputs = torch::randn({kBatch, 64});
    const auto loss = torch::mse_loss(student->forward(inputs), teacher->forward(inputs).detach());
    optimizer.zero_grad();
    loss.backward();
    gradients.clear();
    for (const auto& parameter : student->parameters()) {
      const auto flat = parameter.grad().contiguous().flatten();
      gradients.insert(gradients.end(), flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
    }
    session.synchronize(bucket, gradients);
    session.next_step();
    auto* mean = gradients.data();
    for (const auto& parameter : student->parameters()) {
      parameter.grad().copy_(torch::from_blob(mean, parameter.sizes()));
      mean += parameter.numel();
    }
    optimizer.step();
    loss_sum += loss.item<double>();
    if (step % 100 == 0 && communicator->rank() == 0) {
      std::printf("step %d, loss %.5f, %llu bytes sent in this step\n", step, loss_sum / 100,
                  static_cast<unsigned long long>(session.report(bucket).wire.sent_bytes));
      loss_sum = 0;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    train(argc > 1 ? argv[1] : "dense");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "libtorch_train: %s\n", error.what());
    return 1;
  }
}
