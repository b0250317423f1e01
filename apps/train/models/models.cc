#include "apps/train/models/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <array>
#include <map>
#include <mutex>
#include <stdexcept>

#include "apps/train/models/sparse_models.h"

namespace thinwire::train {

namespace {

namespace nn = torch::nn;

nn::Conv2d convolution(int in, int out, int stride, bool bias) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(bias));
}

/// Two convolutions and two dense layers: 794,310 parameters at 28x28x1, most of them in the first dense
/// layer, so that gradients are large for the little arithmetic that a CPU has to do.
class Cnn : public Model {
 public:
  explicit Cnn(const ModelShape& shape) {
    first_ = register_module("conv1", convolution(shape.channels, 16, 1, true));
    second_ = register_module("conv2", convolution(16, 32, 1, true));
    hidden_ = register_module("fc1", nn::Linear(32 * (shape.height / 4) * (shape.width / 4), 500));
    output_ = register_module("fc2", nn::Linear(500, shape.classes));
  }

  torch::Tensor forward(const torch::Tensor& images) override {
    // Pooling first gives the same values as ReLU first and leaves ReLU a quarter of the work.
    torch::Tensor x = torch::relu(torch::max_pool2d(first_(images), 2));
    x = torch::relu(torch::max_pool2d(second_(x), 2));
    return output_(torch::relu(hidden_(x.flatten(1))));
  }

 private:
  nn::Conv2d first_{nullptr};
  nn::Conv2d second_{nullptr};
  nn::Linear hidden_{nullptr};
  nn::Linear output_{nullptr};
};

/// He et al. 2015, figure 2: two 3x3 convolutions beside a shortcut.
class ResidualBlock : public nn::Module {
 public:
  ResidualBlock(int in, int out, int stride) : stride_(stride), extra_channels_(out - in) {
    first_ = register_module("conv1", convolution(in, out, stride, false));
    first_norm_ = register_module("bn1", nn::BatchNorm2d(out));
    second_ = register_module("conv2", convolution(out, out, 1, false));
    second_norm_ = register_module("bn2", nn::BatchNorm2d(out));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = second_norm_(second_(torch::relu(first_norm_(first_(x)))));
    return torch::relu(y + shortcut(x));
  }

 private:
  /// Option A of the paper's section 4.2: every second pixel, missing channels filled with zeros. It has no
  /// parameters, hence ResNet-20's 0.27 million.
  torch::Tensor shortcut(const torch::Tensor& x) const {
    if (stride_ == 1 && extra_channels_ == 0) return x;
    using torch::indexing::None;
    using torch::indexing::Slice;
    const torch::Tensor thinned =
        x.index({Slice(), Slice(), Slice(None, None, stride_), Slice(None, None, stride_)});
    const int before = extra_channels_ / 2;
    return torch::constant_pad_nd(thinned, {0, 0, 0, 0, before, extra_channels_ - before});
  }

  int stride_;
  int extra_channels_;
  nn::Conv2d first_{nullptr};
  nn::BatchNorm2d first_norm_{nullptr};
  nn::Conv2d second_{nullptr};
  nn::BatchNorm2d second_norm_{nullptr};
};

/// CIFAR's ResNet-20: three stages of three blocks with 16, 32 and 64 channels.
class ResNet20 : public Model {
 public:
  explicit ResNet20(const ModelShape& shape) {
    stem_ = register_module("conv", convolution(shape.channels, 16, 1, false));
    stem_norm_ = register_module("bn", nn::BatchNorm2d(16));
    int channels = 16;
    for (int stage = 0; stage < 3; ++stage) {
      for (int block = 0; block < 3; ++block) {
        const int out = 16 << stage;
        const int stride = stage > 0 && block == 0 ? 2 : 1;
        blocks_.push_back(register_module(fmt::format("stage{}_block{}", stage + 1, block + 1),
                                          std::make_shared<ResidualBlock>(channels, out, stride)));
        channels = out;
      }
    }
    output_ = register_module("fc", nn::Linear(channels, shape.classes));
    for (const auto& module : modules(/*include_self=*/false)) {
      if (const auto* conv = module->as<nn::Conv2dImpl>()) {
        nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
      }
    }
  }

  torch::Tensor forward(const torch::Tensor& images) override {
    torch::Tensor x = torch::relu(stem_norm_(stem_(images)));
    for (const auto& block : blocks_) x = block->forward(x);
    return output_(x.mean({2, 3}));
  }

 private:
  nn::Conv2d stem_{nullptr};
  nn::BatchNorm2d stem_norm_{nullptr};
  std::vector<std::shared_ptr<ResidualBlock>> blocks_;
  nn::Linear output_{nullptr};
};

/// A convolution, its normalisation and ReLU.
class ConvolutionUnit : public nn::Module {
 public:
  ConvolutionUnit(int in, int out) {
    convolution_ = register_module("conv", convolution(in, out, 1, false));
    norm_ = register_module("bn", nn::BatchNorm2d(out));
  }

  torch::Tensor forward(const torch::Tensor& x) { return torch::relu(norm_(convolution_(x))); }

 private:
  nn::Conv2d convolution_{nullptr};
  nn::BatchNorm2d norm_{nullptr};
};

/// The ResNet-9 of the DAWNBench entries for CIFAR-10, which the Sketched-SGD paper trains: 64, 128, 256 and
/// 512 channels, halved by pooling, and a pair of convolutions beside a shortcut after the second and the
/// fourth; 6,573,120 parameters at 32x32x3.
class ResNet9 : public Model {
 public:
  explicit ResNet9(const ModelShape& shape) {
    const auto add = [&](const char* name, int in, int out) {
      return register_module(name, std::make_shared<ConvolutionUnit>(in, out));
    };
    prepare_ = add("prep", shape.channels, 64);
    first_ = add("layer1", 64, 128);
    first_residual_ = {add("layer1_residual1", 128, 128), add("layer1_residual2", 128, 128)};
    second_ = add("layer2", 128, 256);
    third_ = add("layer3", 256, 512);
    third_residual_ = {add("layer3_residual1", 512, 512), add("layer3_residual2", 512, 512)};
    output_ = register_module("fc", nn::Linear(nn::LinearOptions(512, shape.classes).bias(false)));
  }

  torch::Tensor forward(const torch::Tensor& images) override {
    torch::Tensor x = torch::max_pool2d(first_->forward(prepare_->forward(images)), 2);
    x = x + first_residual_[1]->forward(first_residual_[0]->forward(x));
    x = torch::max_pool2d(second_->forward(x), 2);
    x = torch::max_pool2d(third_->forward(x), 2);
    x = x + third_residual_[1]->forward(third_residual_[0]->forward(x));
    // Logits begin small, or the first steps would overshoot.
    return output_(x.amax({2, 3})) * 0.125;
  }

 private:
  using Unit = std::shared_ptr<ConvolutionUnit>;
  Unit prepare_, first_, second_, third_;
  std::array<Unit, 2> first_residual_, third_residual_;
  nn::Linear output_{nullptr};
};

/// AlexNet (Krizhevsky et al., 2012) at the size of CIFAR-10's images, which the Marsit paper trains with 23
/// million parameters: its five convolutions with kernels of 3, and its three dense layers behind what is 2x2
/// then; 23,272,266 parameters at 32x32x3. Without dropout.
class AlexNet : public Model {
 public:
  explicit AlexNet(const ModelShape& shape) {
    const std::array<int, 6> channels = {static_cast<int>(shape.channels), 64, 192, 384, 256, 256};
    for (std::size_t i = 0; i < convolutions_.size(); ++i) {
      convolutions_[i] = register_module(fmt::format("conv{}", i + 1),
                                         convolution(channels[i], channels[i + 1], i == 0 ? 2 : 1, true));
    }
    // Halved four times, the first time rounded up by the convolution's border.
    const auto left = [](std::int64_t side) { return (side + 1) / 2 / 8; };
    const std::array<std::int64_t, 4> widths = {256 * left(shape.height) * left(shape.width), 4096, 4096,
                                                shape.classes};
    for (std::size_t i = 0; i < dense_.size(); ++i) {
      dense_[i] = register_module(fmt::format("fc{}", i + 1), nn::Linear(widths[i], widths[i + 1]));
    }
    // Without a normalisation torch's own initial weights let the signal fade from layer to layer.
    for (const auto& module : modules(/*include_self=*/false)) {
      if (auto* conv = module->as<nn::Conv2dImpl>()) {
        nn::init::kaiming_normal_(conv->weight, 0, torch::kFanIn, torch::kReLU);
      } else if (auto* dense = module->as<nn::LinearImpl>()) {
        nn::init::kaiming_normal_(dense->weight, 0, torch::kFanIn, torch::kReLU);
      }
    }
  }

  torch::Tensor forward(const torch::Tensor& images) override {
    torch::Tensor x = images;
    for (std::size_t i = 0; i < convolutions_.size(); ++i) {
      x = convolutions_[i](x);
      if (i == 0 || i == 1 || i == 4) x = torch::max_pool2d(x, 2);
      x = torch::relu(x);
    }
    x = torch::relu(dense_[0](x.flatten(1)));
    return dense_[2](torch::relu(dense_[1](x)));
  }

 private:
  std::array<nn::Conv2d, 5> convolutions_{nullptr, nullptr, nullptr, nullptr, nullptr};
  std::array<nn::Linear, 3> dense_{nullptr, nullptr, nullptr};
};

}  // namespace

namespace {

struct Known {
  Input input;
  std::shared_ptr<Model> (*make)(const ModelShape&, const TransformerSizes&);
};

template <class M>
std::shared_ptr<Model> make_shared_model(const ModelShape& shape, const TransformerSizes&) {
  return std::make_shared<M>(shape);
}

const std::map<std::string, Known>& models() {
  static const std::map<std::string, Known> known = {
      {"cnn", {Input::images, make_shared_model<Cnn>}},
      {"resnet20", {Input::images, make_shared_model<ResNet20>}},
      {"resnet9", {Input::images, make_shared_model<ResNet9>}},
      {"alexnet", {Input::images, make_shared_model<AlexNet>}},
      {"lstm", {Input::words, make_word_lstm}},
      {"transformer", {Input::words, make_transformer}},
      {"deepfm", {Input::categories, make_deep_fm}},
  };
  return known;
}

const Known& find_model(const std::string& name) {
  const auto found = models().find(name);
  if (found != models().end()) return found->second;
  throw std::invalid_argument(
      fmt::format("unknown model '{}'; known: {}", name, fmt::join(known_models(), ", ")));
}

}  // namespace

const std::vector<std::string>& known_models() {
  static const std::vector<std::string> names = {"cnn",  "resnet20",    "resnet9", "alexnet",
                                                 "lstm", "transformer", "deepfm"};
  return names;
}

Input input_of(const std::string& name) {
  return find_model(name).input;
}

void require_input(const std::string& name, const ModelShape& shape) {
  const Input wanted = input_of(name);
  if (wanted == shape.input) return;
  constexpr std::array<const char*, 3> kInputs = {"images", "words", "categories"};
  constexpr std::array<const char*, 3> kRemedies = {"--data fashion-mnist or --data cifar10:DIR",
                                                    "--data text or --data text:FILE", "--data adult:DIR"};
  throw std::invalid_argument(fmt::format("model '{}' learns from {}, these data are {}: give {}", name,
                                          kInputs[static_cast<std::size_t>(wanted)],
                                          kInputs[static_cast<std::size_t>(shape.input)],
                                          kRemedies[static_cast<std::size_t>(wanted)]));
}

std::shared_ptr<Model> make_model(const std::string& name, const ModelShape& shape, std::uint64_t seed,
                                  const TransformerSizes& sizes) {
  const Known& known = find_model(name);
  require_input(name, shape);
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(seed);
  return known.make(shape, sizes);
}

std::set<std::string> row_sparse_parameters(const Model& model) {
  std::set<std::string> names;
  for (const auto& module : model.named_modules("", /*include_self=*/false)) {
    const auto* embedding = module.value()->as<nn::EmbeddingImpl>();
    if (embedding != nullptr && embedding->options.sparse()) names.insert(module.key() + ".weight");
  }
  return names;
}

std::uint64_t count_parameters(const Model& model) {
  std::uint64_t count = 0;
  for (const auto& parameter : model.parameters()) count += static_cast<std::uint64_t>(parameter.numel());
  return count;
}

}  // namespace thinwire::train
