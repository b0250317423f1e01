#include "examples/libtorch_models.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

namespace {

namespace functional = torch::nn::functional;

/// Learns what a fixed network of two layers computes.
class Teacher final : public Task {
 public:
  explicit Teacher(const ModelOptions& options)
      : teacher_(network(2 * static_cast<std::uint64_t>(options.seed))),
        student_(network(2 * static_cast<std::uint64_t>(options.seed) + 1)),
        batch_(options.batch) {}

  torch::nn::Module& model() override { return *student_; }

  torch::Tensor loss() override {
    const auto inputs = torch::randn({batch_, 64});
    return torch::mse_loss(student_->forward(inputs), teacher_->forward(inputs).detach());
  }

  std::optional<double> held_out_loss() override { return {}; }

 private:
  static torch::nn::Sequential network(std::uint64_t seed) {
    torch::manual_seed(seed);
    return torch::nn::Sequential(torch::nn::Linear(64, 256), torch::nn::Tanh(), torch::nn::Linear(256, 8));
  }

  torch::nn::Sequential teacher_, student_;
  std::int64_t batch_;
};

/// Attention and two layers, each behind a norm and added to what came in.
class Block final : public torch::nn::Module {
 public:
  Block(std::int64_t width, std::int64_t heads)
      : heads_(heads),
        norm_(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        attention_(register_module("attention", torch::nn::Linear(width, 3 * width))),
        projection_(register_module("projection", torch::nn::Linear(width, width))),
        second_norm_(
            register_module("second_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        wide_(register_module("wide", torch::nn::Linear(width, 4 * width))),
        narrow_(register_module("narrow", torch::nn::Linear(4 * width, width))) {}

  /// x: batch, words, width. future: 0 where a word may look, and minus infinity elsewhere.
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& future) {
    const auto split = attention_->forward(norm_->forward(x))
                           .view({x.size(0), x.size(1), 3, heads_, x.size(2) / heads_})
                           .permute({2, 0, 3, 1, 4});
    const double scale = 1 / std::sqrt(static_cast<double>(split.size(4)));
    const auto weights = torch::softmax(scale * split[0].matmul(split[1].transpose(-2, -1)) + future, -1);
    x = x + projection_->forward(weights.matmul(split[2]).transpose(1, 2).reshape(x.sizes()));
    return x + narrow_->forward(functional::gelu(wide_->forward(second_norm_->forward(x))));
  }

 private:
  std::int64_t heads_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear attention_, projection_;
  torch::nn::LayerNorm second_norm_;
  torch::nn::Linear wide_, narrow_;
};

/// As GPT-2 is built (Radford et al. 2019). The head shares the words' table.
class Transformer final : public torch::nn::Module {
 public:
  explicit Transformer(const ModelOptions& options)
      : words_(register_parameter("words", torch::randn({options.vocabulary + 1, options.width}) * 0.02)),
        places_(register_parameter("places", torch::randn({options.context, options.width}) * 0.02)),
        norm_(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})))),
        future_(torch::full({options.context, options.context}, -std::numeric_limits<float>::infinity())
                    .triu(1)) {
    for (std::int64_t i = 0; i < options.layers; ++i) {
      blocks_.push_back(register_module("block" + std::to_string(i),
                                        std::make_shared<Block>(options.width, options.heads)));
    }
  }

  /// words: batch, context. Returns batch, context, vocabulary.
  torch::Tensor forward(const torch::Tensor& words) {
    auto hidden = functional::embedding(words, words_) + places_;
    for (const auto& block : blocks_) hidden = block->forward(hidden, future_);
    return functional::linear(norm_->forward(hidden), words_);
  }

 private:
  torch::Tensor words_, places_;
  torch::nn::LayerNorm norm_;
  torch::Tensor future_;
  std::vector<std::shared_ptr<Block>> blocks_;
};

/// Each line begins with the verse's number.
std::string without_numbers(const std::string& text) {
  std::istringstream lines(text);
  std::string verses;
  for (std::string line; std::getline(lines, line);) {
    const auto space = line.find(' ');
    if (space != std::string::npos) verses += line.substr(space) + '\n';
  }
  return verses;
}

std::string bible() {
  const auto close = [](std::FILE* pipe) { pclose(pipe); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe(
      popen("bible -f gen1:1-rev22:21 </dev/null 2>/dev/null", "r"), close);
  std::string text;
  std::array<char, 65536> part{};
  for (std::size_t got = 1; pipe && got > 0;) {
    got = std::fread(part.data(), 1, part.size(), pipe.get());
    text.append(part.data(), got);
  }
  if (!text.empty()) return without_numbers(text);
  throw std::invalid_argument("there is no text: install bible-kjv and bible-kjv-text, or give --text FILE");
}

std::vector<std::string> words_of(const std::string& path) {
  std::string text;
  if (path.empty()) {
    text = bible();
  } else {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::invalid_argument("--text " + path + ": cannot be read");
    std::ostringstream all;
    all << file.rdbuf();
    text = std::move(all).str();
  }
  std::vector<std::string> words(1);
  for (const char one : text) {
    const auto letter = static_cast<unsigned char>(one);
    if (std::isalpha(letter) != 0 || one == '\'') {
      words.back() += static_cast<char>(std::tolower(letter));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

/// Each word's place among the most frequent ones, 0 for all others.
torch::Tensor numbers_of(const std::vector<std::string>& words, std::int64_t vocabulary) {
  std::map<std::string, std::int64_t> count;
  for (const auto& word : words) ++count[word];
  std::vector<std::pair<std::int64_t, std::string>> order;
  for (const auto& [word, times] : count) order.emplace_back(-times, word);
  std::ranges::sort(order);
  std::map<std::string, std::int64_t> number;
  for (const auto& [times, word] : order) {
    if (std::ssize(number) == vocabulary) break;
    number.emplace(word, std::ssize(number) + 1);
  }
  std::vector<std::int64_t> numbers;
  for (const auto& word : words) {
    const auto found = number.find(word);
    numbers.push_back(found == number.end() ? 0 : found->second);
  }
  return torch::tensor(numbers);
}

/// Tells each word of a text from those before it. The last tenth of the text is held out.
class Text final : public Task {
 public:
  explicit Text(const ModelOptions& options) : options_(options) {
    if (options.width % options.heads != 0) {
      throw std::invalid_argument("--width " + std::to_string(options.width) + ": --heads " +
                                  std::to_string(options.heads) + " does not divide it");
    }
    const auto numbers = numbers_of(words_of(options.text), options.vocabulary);
    const auto last = numbers.size(0) / 10;
    if (last <= options.context) {
      throw std::invalid_argument("the text has " + std::to_string(numbers.size(0)) +
                                  " words: more than 10 times --context " + std::to_string(options.context) +
                                  " are needed");
    }
    learned_ = numbers.slice(0, 0, numbers.size(0) - last);
    held_out_ = numbers.slice(0, numbers.size(0) - last);
    torch::manual_seed(static_cast<std::uint64_t>(options.seed));
    model_ = std::make_shared<Transformer>(options);
  }

  torch::nn::Module& model() override { return *model_; }

  torch::Tensor loss() override {
    const auto begins = torch::randint(learned_.size(0) - options_.context, {options_.batch}, torch::kLong);
    return loss_at(learned_, begins);
  }

  std::optional<double> held_out_loss() override {
    const torch::NoGradGuard none;
    constexpr std::int64_t kWindows = 64;
    const auto most = held_out_.size(0) - options_.context - 1;
    const auto begins = torch::arange(kWindows, torch::kLong) * most / kWindows;
    return loss_at(held_out_, begins.to(torch::kLong)).item<double>();
  }

 private:
  /// Of windows that begin there.
  torch::Tensor loss_at(const torch::Tensor& text, const torch::Tensor& begins) {
    const auto places = begins.unsqueeze(1) + torch::arange(options_.context + 1, torch::kLong);
    const auto windows = text.index({places});
    const auto told = model_->forward(windows.slice(1, 0, options_.context));
    return functional::cross_entropy(told.flatten(0, 1), windows.slice(1, 1).flatten());
  }

  ModelOptions options_;
  torch::Tensor learned_, held_out_;
  std::shared_ptr<Transformer> model_;
};

}  // namespace

std::unique_ptr<Task> make_task(const ModelOptions& options) {
  if (options.model == "teacher") return std::make_unique<Teacher>(options);
  if (options.model == "transformer") return std::make_unique<Text>(options);
  throw std::invalid_argument("--model " + options.model + ": give teacher or transformer");
}
