// Data-parallel training with libtorch and Thinwire: every rank learns from examples of its own, and
// gradients are synchronized by any system.
//
//   thinwire launch -n 4 -- libtorch_train marsit:full_every=50
//   thinwire launch -n 4 -- libtorch_train power_sgd:rank=32:bits=8 --model transformer --optimizer adamw
//     --lr 0.002 --clip 1 --warm-up 30 --schedule cosine
//
// --model teacher|transformer: what a fixed network of two layers computes, or a decoder-only transformer
// on text. Of the latter: --text FILE (without it the King James Bible), --vocabulary, --width, --heads,
// --layers, --context.
//
// Options: --optimizer sgd|adamw, --lr, --momentum (of sgd), --weight-decay, --clip NORM (the largest norm of
// the mean gradient; 0: any), --warm-up STEPS (in which the rate rises), --schedule constant|cosine (cosine:
// half a cosine brings the rate down to 0), --steps, --batch (examples per rank and step), --seed.
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <numbers>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/libtorch_models.h"
#include "thinwire/registry.h"
#include "thinwire/session.h"
#include "torch/gloo_environment.h"

namespace {

struct Options {
  std::string spec = "dense";
  std::string optimizer = "sgd";
  double lr = 0.05;
  double momentum = 0;
  double weight_decay = 0;
  double clip = 0;
  int warm_up = 0;
  bool cosine = false;
  int steps = 300;
  ModelOptions model{};
};

double number(const std::string& name, const std::string& text) {
  std::size_t read = 0;
  double value = -1;
  try {
    value = std::stod(text, &read);
  } catch (const std::exception&) {
    read = 0;
  }
  if (read != text.size() || !(value >= 0)) {
    throw std::invalid_argument(name + " " + text + ": give a number that is not negative");
  }
  return value;
}

int whole(const std::string& name, const std::string& text, int least) {
  const double value = number(name, text);
  if (value != std::floor(value) || value < least || value > 1e9) {
    throw std::invalid_argument(name + " " + text + ": give a whole number from " + std::to_string(least) +
                                " to 1000000000");
  }
  return static_cast<int>(value);
}

/// A momentum that the system applies, or that has to be the optimizer's.
void check_momentum(const Options& options) {
  if (options.momentum >= 1) {
    throw std::invalid_argument("--momentum " + std::to_string(options.momentum) + ": give less than 1");
  }
  const bool adam = options.optimizer == "adamw";
  const double own = adam ? 0.9 : options.momentum;
  for (const auto& need : thinwire::builtin_registry().momentum_needs(options.spec)) {
    const bool twice = need.option.empty() && own != 0;
    const bool differs = !need.option.empty() && std::abs(own - need.value) > 1e-6;
    if (twice || differs) {
      throw std::invalid_argument(options.spec + ": " + need.system + " wants an optimizer with momentum " +
                                  std::to_string(need.value) + ", and " +
                                  (adam ? "AdamW's beta1" : "--momentum") + " is " + std::to_string(own));
    }
  }
  if (options.clip == 0) return;
  for (const auto& system : thinwire::builtin_registry().unclipped(options.spec)) {
    throw std::invalid_argument(options.spec + ": a clipped mean is not what " + system +
                                " delivers; leave --clip out");
  }
}

/// Returns whether there is such an option.
bool set(Options& options, const std::string& name, const std::string& value) {
  if (name == "--optimizer") {
    options.optimizer = value;
  } else if (name == "--lr") {
    options.lr = number(name, value);
  } else if (name == "--momentum") {
    options.momentum = number(name, value);
  } else if (name == "--weight-decay") {
    options.weight_decay = number(name, value);
  } else if (name == "--clip") {
    options.clip = number(name, value);
  } else if (name == "--warm-up") {
    options.warm_up = whole(name, value, 0);
  } else if (name == "--schedule") {
    if (value != "constant" && value != "cosine") {
      throw std::invalid_argument("--schedule " + value + ": give constant or cosine");
    }
    options.cosine = value == "cosine";
  } else if (name == "--steps") {
    options.steps = whole(name, value, 1);
  } else {
    return false;
  }
  return true;
}

bool set(ModelOptions& options, const std::string& name, const std::string& value) {
  if (name == "--model") {
    options.model = value;
  } else if (name == "--text") {
    options.text = value;
  } else if (name == "--vocabulary") {
    options.vocabulary = whole(name, value, 1);
  } else if (name == "--width") {
    options.width = whole(name, value, 1);
  } else if (name == "--heads") {
    options.heads = whole(name, value, 1);
  } else if (name == "--layers") {
    options.layers = whole(name, value, 1);
  } else if (name == "--context") {
    options.context = whole(name, value, 1);
  } else if (name == "--batch") {
    options.batch = whole(name, value, 1);
  } else if (name == "--seed") {
    options.seed = whole(name, value, 0);
  } else {
    return false;
  }
  return true;
}

Options parse(const std::vector<std::string>& words) {
  Options options;
  std::size_t at = 0;
  if (!words.empty() && words[0].rfind("--", 0) != 0) options.spec = words[at++];
  for (; at < words.size(); at += 2) {
    const std::string& name = words[at];
    if (name == "--help" || name == "-h") {
      throw std::invalid_argument("[SPEC] [OPTION VALUE ...]; the head of libtorch_train.cc has the options");
    }
    if (at + 1 == words.size()) throw std::invalid_argument(name + " wants a value");
    const std::string& value = words[at + 1];
    if (!set(options, name, value) && !set(options.model, name, value)) {
      throw std::invalid_argument("unknown option " + name);
    }
  }
  check_momentum(options);
  return options;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Options& options,
                                                        const std::vector<torch::Tensor>& parameters) {
  if (options.optimizer == "adamw") {
    if (options.momentum != 0) throw std::invalid_argument("--momentum is of --optimizer sgd");
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(options.lr).weight_decay(options.weight_decay));
  }
  if (options.optimizer != "sgd") {
    throw std::invalid_argument("--optimizer " + options.optimizer + ": give sgd or adamw");
  }
  return std::make_unique<torch::optim::SGD>(
      parameters,
      torch::optim::SGDOptions(options.lr).momentum(options.momentum).weight_decay(options.weight_decay));
}

/// Of a step, counted from 0.
double rate_at(const Options& options, int step) {
  if (step < options.warm_up) return options.lr * (step + 1) / (options.warm_up + 1);
  if (!options.cosine) return options.lr;
  const double done =
      static_cast<double>(step - options.warm_up) / std::max(1, options.steps - options.warm_up);
  return options.lr * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

/// All gradients, one after the other.
void gather(const torch::nn::Module& model, std::vector<float>& gradients) {
  gradients.clear();
  for (const auto& parameter : model.parameters()) {
    const auto flat = parameter.grad().contiguous().flatten();
    gradients.insert(gradients.end(), flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
  }
}

void scatter(std::vector<float>& mean, const torch::nn::Module& model) {
  float* values = mean.data();
  for (const auto& parameter : model.parameters()) {
    parameter.grad().copy_(torch::from_blob(values, parameter.sizes()));
    values += parameter.numel();
  }
}

void train(const Options& options) {
  torch::set_num_threads(1);
  // RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun and `thinwire launch` set them.
  const auto communicator = thinwire::open_gloo_from_environment(std::chrono::seconds(60));
  const auto task = make_task(options.model);
  torch::nn::Module& model = task->model();
  const auto optimizer = make_optimizer(options, model.parameters());

  if (thinwire::builtin_registry().freezes_variance(options.spec)) {
    throw std::invalid_argument(options.spec +
                                " needs an Adam whose variance stands still in some steps "
                                "(Session::variance_is_frozen), and this example has none");
  }
  // One bucket of all parameters: their gradients lie one after the other in `gradients`.
  thinwire::Session session(options.spec, *communicator);
  thinwire::BucketLayout layout;
  for (const auto& parameter : model.named_parameters()) {
    const auto elements = static_cast<std::size_t>(parameter.value().numel());
    layout.push_back({parameter.key(), elements, static_cast<std::size_t>(parameter.value().size(0))});
  }
  const auto bucket = session.add_bucket(layout);
  session.start();  // compares the configurations of all ranks

  std::vector<float> gradients;
  // Other examples on every rank, and with every seed. torch takes the low 32 bits.
  std::seed_seq sequence{options.model.seed, communicator->rank(), 7};
  std::array<std::uint32_t, 1> mixed{};
  sequence.generate(mixed.begin(), mixed.end());
  torch::manual_seed(mixed[0]);
  double loss_sum = 0, summed = 0;  // over the steps that the next line is about
  for (int step = 1; step <= options.steps; ++step) {
    const auto loss = task->loss();
    optimizer->zero_grad();
    loss.backward();
    gather(model, gradients);
    const double rate = rate_at(options, step - 1);
    session.set_learning_rate(rate);  // some systems work with it
    session.synchronize(bucket, gradients);
    // Not finite on some rank: on no rank anything was delivered, nor lost.
    if (!session.next_step()) continue;
    scatter(gradients, model);
    // The mean is the same on every rank, and so is its norm.
    if (options.clip > 0) torch::nn::utils::clip_grad_norm_(model.parameters(), options.clip);
    optimizer->param_groups()[0].options().set_lr(rate);
    optimizer->step();
    loss_sum += loss.item<double>();
    ++summed;
    if ((step % 100 == 0 || step == options.steps) && communicator->rank() == 0) {
      std::printf("step %d, loss %.5f, %llu bytes sent in this step\n", step, loss_sum / summed,
                  static_cast<unsigned long long>(session.report(bucket).wire.sent_bytes));
      loss_sum = summed = 0;
    }
  }
  // Weights are the same on every rank.
  if (communicator->rank() != 0) return;
  if (const auto loss = task->held_out_loss()) std::printf("held-out loss %.5f\n", *loss);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    train(parse({argv + 1, argv + argc}));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "libtorch_train: %s\n", error.what());
    return 1;
  }
}
