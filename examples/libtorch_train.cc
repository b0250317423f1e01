// Data-parallel training with libtorch and Thinwire: every rank learns from examples of its own, and
// gradients are synchronized by any system.
//
//   thinwire launch -n 4 -- libtorch_train marsit:full_every=50
//   thinwire launch -n 4 -- libtorch_train power_sgd:rank=32:bits=8 --model transformer --optimizer adamw
//     --lr 0.002 --clip 1 --warm-up 30 --schedule cosine
//
// libtorch_train --help prints all options.
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <numbers>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/libtorch_models.h"
#include "thinwire/known_losses.h"
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
  std::string schedule = "constant";
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
  if (thinwire::builtin_registry().freezes_variance(options.spec)) {
    throw std::invalid_argument(options.spec +
                                " needs an Adam whose variance stands still in some steps "
                                "(Session::variance_is_frozen), and this example has none");
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
  if (options.warm_up >= options.steps) {
    throw std::invalid_argument("--warm-up " + std::to_string(options.warm_up) + ": the training has " +
                                std::to_string(options.steps) +
                                " steps, so the rate would never reach --lr: give fewer than these");
  }
  if (options.clip == 0) return;
  for (const auto& system : thinwire::builtin_registry().unclipped(options.spec)) {
    throw std::invalid_argument(options.spec + ": a clipped mean is not what " + system +
                                " delivers; leave --clip out");
  }
}

struct Choice {
  std::string name;
  std::string value;  ///< What it is given, for people.
  std::string meaning;
  std::string by_default;
  std::function<void(const std::string& value)> set;
};

std::string short_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

/// Every option. `set` writes to `options`, whose values are the defaults.
std::vector<Choice> choices(Options& options) {
  std::vector<Choice> all;
  const auto add_text = [&all](const char* name, const char* value, const char* meaning, std::string& field) {
    all.push_back({name, value, meaning, field, [&field](const std::string& given) { field = given; }});
  };
  const auto add_number = [&all](const std::string& name, const char* value, const char* meaning,
                                 double& field) {
    const auto set = [&field, name](const std::string& given) { field = number(name, given); };
    all.push_back({name, value, meaning, short_text(field), set});
  };
  const auto add_whole = [&all](const std::string& name, const char* value, const char* meaning, auto& field,
                                int least) {
    const auto set = [&field, name, least](const std::string& given) { field = whole(name, given, least); };
    all.push_back({name, value, meaning, std::to_string(field), set});
  };
  ModelOptions& model = options.model;
  add_text("--model", "teacher|transformer", "a small network that imitates another, or one of text",
           model.model);
  add_text("--optimizer", "sgd|adamw", "what takes the steps", options.optimizer);
  add_number("--lr", "RATE", "the largest learning rate", options.lr);
  add_number("--momentum", "SHARE", "of sgd", options.momentum);
  add_number("--weight-decay", "SHARE", "of the optimizer", options.weight_decay);
  add_number("--clip", "NORM", "the largest norm of the mean gradient, 0 for any", options.clip);
  add_whole("--warm-up", "STEPS", "in which the rate rises", options.warm_up, 0);
  add_text("--schedule", "constant|cosine", "of the rate behind these; cosine ends at 0", options.schedule);
  add_whole("--steps", "N", "of the training", options.steps, 1);
  add_whole("--batch", "N", "examples of a rank and step", model.batch, 1);
  add_whole("--seed", "N", "of weights and examples", model.seed, 0);
  add_text("--text", "FILE", "of a transformer: what it learns", model.text);
  all.back().by_default = "the King James Bible";
  add_whole("--vocabulary", "N", "of a transformer: words that it tells apart", model.vocabulary, 1);
  add_whole("--width", "N", "of a transformer: values for each word", model.width, 1);
  add_whole("--heads", "N", "of a transformer's attention; they divide the width", model.heads, 1);
  add_whole("--layers", "N", "of a transformer", model.layers, 1);
  add_whole("--context", "N", "of a transformer: words from which it tells the next", model.context, 1);
  return all;
}

void print_usage() {
  Options options;
  std::printf(
      "libtorch_train [SPEC] [OPTION VALUE]...\n"
      "Every rank learns from examples of its own. SPEC (%s) is the system that synchronizes the gradients.\n"
      "`thinwire systems` lists systems, and `thinwire launch -n 4 -- libtorch_train` starts four ranks.\n"
      "Defaults are in brackets.\n",
      options.spec.c_str());
  for (const Choice& choice : choices(options)) {
    std::printf("  %-29s %s (%s)\n", (choice.name + " " + choice.value).c_str(), choice.meaning.c_str(),
                choice.by_default.c_str());
  }
}

/// Nothing where help is asked for.
std::optional<Options> parse(const std::vector<std::string>& words) {
  Options options;
  const std::vector<Choice> known = choices(options);
  std::size_t at = 0;
  if (!words.empty() && words[0].rfind('-', 0) != 0) options.spec = words[at++];
  for (; at < words.size(); at += 2) {
    const std::string& name = words[at];
    if (name == "--help" || name == "-h") return std::nullopt;
    const auto choice = std::ranges::find(known, name, &Choice::name);
    if (choice == known.end()) throw std::invalid_argument("unknown option " + name + "; --help lists all");
    if (at + 1 == words.size()) throw std::invalid_argument(name + " wants a value, " + choice->value);
    choice->set(words[at + 1]);
  }
  if (options.schedule != "constant" && options.schedule != "cosine") {
    throw std::invalid_argument("--schedule " + options.schedule + ": give constant or cosine");
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
  if (options.schedule == "constant") return options.lr;
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

/// What of the spec does nothing for this model, as where the stage whole names parameters that it has not.
/// And what such trainings were measured to lose.
void tell_of_spec(const Options& options, const thinwire::BucketLayout& layout) {
  std::vector<std::string> names;
  for (const auto& parameter : layout) names.push_back(parameter.name);
  auto lines = thinwire::builtin_registry().idle_options(options.spec, names);
  const auto steps = static_cast<std::uint64_t>(options.steps);
  for (auto& line : thinwire::builtin_registry().never_begun(options.spec, steps)) {
    lines.push_back(std::move(line));
  }
  const bool adam = options.optimizer == "adamw";
  if (adam || options.momentum != 0) {
    using thinwire::TrainedWith;
    lines.push_back(thinwire::known_loss(options.spec, adam ? TrainedWith::adam : TrainedWith::momentum));
  }
  for (const auto& line : lines) {
    if (!line.empty()) std::fprintf(stderr, "%s\n", line.c_str());
  }
}

void train(const Options& options) {
  torch::set_num_threads(1);
  // RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun and `thinwire launch` set them.
  const auto communicator = thinwire::open_gloo_from_environment(std::chrono::seconds(60));
  const auto task = make_task(options.model);
  torch::nn::Module& model = task->model();
  const auto optimizer = make_optimizer(options, model.parameters());

  // One bucket of all parameters: their gradients lie one after the other in `gradients`.
  thinwire::Session session(options.spec, *communicator);
  thinwire::BucketLayout layout;
  for (const auto& parameter : model.named_parameters()) {
    const auto elements = static_cast<std::size_t>(parameter.value().numel());
    layout.push_back({parameter.key(), elements, static_cast<std::size_t>(parameter.value().size(0))});
  }
  const auto bucket = session.add_bucket(layout);
  if (communicator->rank() == 0) tell_of_spec(options, layout);
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
    const std::optional<Options> options = parse({argv + 1, argv + argc});
    options ? train(*options) : print_usage();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "libtorch_train: %s\n", error.what());
    return 1;
  }
}
