#include "apps/train/data/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

namespace thinwire::train {

namespace {

bool in_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         static_cast<unsigned char>(c) >= 0x80;
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

std::vector<std::string> tokenize(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    if (!in_word(text[at])) {
      if (std::string_view(".,;:?!").find(text[at]) != std::string_view::npos) {
        words.emplace_back(1, text[at]);
      }
      ++at;
      continue;
    }
    std::string word;
    for (; at < text.size(); ++at) {
      const bool apostrophe_inside = text[at] == '\'' && at + 1 < text.size() && in_word(text[at + 1]);
      if (!in_word(text[at]) && !apostrophe_inside) break;
      word += lower(text[at]);
    }
    words.push_back(std::move(word));
  }
  return words;
}

Vocabulary::Vocabulary(const std::vector<std::string>& words, std::size_t most) {
  std::map<std::string_view, std::size_t> counts;
  for (const auto& word : words) ++counts[word];
  std::vector<std::pair<std::string_view, std::size_t>> ranking(counts.begin(), counts.end());
  // Stable, and the map is in alphabetical order: no two machines rank them differently.
  std::stable_sort(ranking.begin(), ranking.end(),
                   [](const auto& left, const auto& right) { return left.second > right.second; });
  ranking.resize(std::min(ranking.size(), most == 0 ? 0 : most - 1));
  for (const auto& [word, count] : ranking) words_.emplace_back(word);
  for (std::size_t i = 0; i < words_.size(); ++i) {
    sorted_.push_back({words_[i], static_cast<std::uint32_t>(i + 1)});
  }
  std::sort(sorted_.begin(), sorted_.end(),
            [](const Entry& left, const Entry& right) { return left.word < right.word; });
}

std::uint32_t Vocabulary::number(std::string_view word) const {
  const auto found =
      std::lower_bound(sorted_.begin(), sorted_.end(), word,
                       [](const Entry& entry, std::string_view wanted) { return entry.word < wanted; });
  return found != sorted_.end() && found->word == word ? found->number : 0;
}

std::string_view Vocabulary::word(std::uint32_t number) const {
  return number == 0 ? "<unk>" : std::string_view(words_.at(number - 1));
}

TextDataset::TextDataset(std::string_view text, std::size_t vocabulary, std::size_t window)
    : window_(window), vocabulary_({}, 0) {
  std::vector<std::string> words = tokenize(text);
  // Both parts need a window and the word that follows it.
  const std::size_t test = std::max(words.size() / kTestShare, window + 1);
  if (words.size() < test + window + 1) {
    throw std::runtime_error(
        fmt::format("the text has {} words, {} are needed for one example to learn from and "
                    "one to test with: give a longer one",
                    words.size(), 2 * (window + 1)));
  }
  const std::vector<std::string> held_out(words.end() - static_cast<std::ptrdiff_t>(test), words.end());
  words.resize(words.size() - test);
  vocabulary_ = Vocabulary(words, vocabulary);
  for (const auto& word : words) training_.push_back(vocabulary_.number(word));
  for (const auto& word : held_out) test_.push_back(vocabulary_.number(word));
  training_windows_ = windows_in(training_);
}

ModelShape TextDataset::shape() const {
  return {.input = Input::words,
          .classes = static_cast<int>(vocabulary_.size()),
          .length = static_cast<int>(window_)};
}

void TextDataset::limit_training(std::uint64_t count) {
  if (count != 0) training_windows_ = std::min<std::size_t>(training_windows_, count);
}

template <class From>
Batch TextDataset::cut(const std::vector<std::uint32_t>& words, std::size_t count, From from) const {
  const auto length = static_cast<std::int64_t>(count);
  const auto window = static_cast<std::int64_t>(window_);
  const Batch batch{torch::empty({length, window}, torch::kInt64),
                    torch::empty({length * window}, torch::kInt64)};
  auto* inputs = batch.inputs.data_ptr<std::int64_t>();
  auto* labels = batch.labels.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < count; ++i) {
    const auto* first = words.data() + from(i) * window_;
    std::copy(first, first + window_, inputs + i * window_);
    std::copy(first + 1, first + window_ + 1, labels + i * window_);
  }
  return batch;
}

Batch TextDataset::training_batch(Span<const std::uint32_t> indices, std::uint64_t, std::uint64_t) const {
  return cut(training_, indices.size(), [&](std::size_t i) { return indices[i]; });
}

Batch TextDataset::test_batch(std::size_t first, std::size_t count) const {
  return cut(test_, count, [&](std::size_t i) { return first + i; });
}

}  // namespace thinwire::train
