#pragma once
// A text to be learned word by word: each example is a window of consecutive words, and what is to be learned
// of each word is the next one.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/train/data/dataset.h"

namespace thinwire::train {

/// Words and punctuation marks in order. A word is a run of letters and digits, with apostrophes inside
/// ("moses'" loses its last one); ASCII letters become small, bytes outside ASCII count as letters and stay
/// as they are. Each of .,;:?! is a token of its own; what else there is separates.
std::vector<std::string> tokenize(std::string_view text);

/// Numbers for words: 0 is everything unknown, then 1, 2, ... by falling frequency.
class Vocabulary {
 public:
  /// The `most - 1` most frequent of `words`; those that are equally frequent in alphabetical order.
  Vocabulary(const std::vector<std::string>& words, std::size_t most);

  /// Of all numbers, the unknown's included.
  std::size_t size() const { return words_.size() + 1; }
  std::uint32_t number(std::string_view word) const;
  /// "<unk>" for 0.
  std::string_view word(std::uint32_t number) const;

 private:
  struct Entry {
    std::string word;
    std::uint32_t number;
  };
  std::vector<std::string> words_;  // of number 1, 2, ...
  std::vector<Entry> sorted_;       // by word
};

class TextDataset : public Dataset {
 public:
  /// The last part of a text, one in so many words, is kept for testing.
  static constexpr std::size_t kTestShare = 20;

  /// `vocabulary`: most words that are told apart; they are counted in the training part. `window`: words of
  /// an example, at least 1. Throws std::runtime_error for a text too short for one window of training and
  /// one of testing.
  TextDataset(std::string_view text, std::size_t vocabulary, std::size_t window = 32);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  ModelShape shape() const override;
  std::size_t training_examples() const override { return training_windows_; }
  std::size_t test_examples() const override { return windows_in(test_); }
  std::size_t test_batch_examples() const override { return 16; }
  void limit_training(std::uint64_t count) override;
  /// inputs [n, window], labels [n * window].
  Batch training_batch(Span<const std::uint32_t> indices, std::uint64_t seed,
                       std::uint64_t epoch) const override;
  Batch test_batch(std::size_t first, std::size_t count) const override;

 private:
  std::size_t windows_in(const std::vector<std::uint32_t>& words) const {
    return (words.size() - 1) / window_;
  }
  /// Window `from(i)` of `words` for each i below count.
  template <class From>
  Batch cut(const std::vector<std::uint32_t>& words, std::size_t count, From from) const;

  std::size_t window_;
  Vocabulary vocabulary_;
  std::vector<std::uint32_t> training_;
  std::vector<std::uint32_t> test_;
  std::size_t training_windows_ = 0;
};

}  // namespace thinwire::train
